"""Text that nobody checks must not go round in circles.

Small models repeat themselves, and a copy of a copy repeats for ever. While the target judges, it ends that; a device
that writes alone would fill the screen. So in text drafted alone the same words never follow themselves more than a few
times. Only that text counts: a loop in what the target said is the target's, and it may well go on with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outrider.client.drafters.growth import Pool

SPARE = 7
"""Entries asked for beyond the children wanted, in case the best ones would repeat."""
PHRASE = 6
"""Tokens of which the same ones may stand twice in text drafted alone, next to each other or not."""
_IN_A_ROW = (4, 3, 3, 2, 2)
"""How often words of 1, 2, … tokens may follow themselves: table borders and rules of dashes do."""


def repeats(text: Sequence[int], token_id: int) -> bool:
    """Whether ``text`` with ``token_id`` behind it ends with words that were said often enough."""
    after = (*text[-(PHRASE * PHRASE) :], token_id)
    in_a_row = any(
        after[-length:] * times == after[-length * times :]
        for length, times in enumerate((most + 1 for most in _IN_A_ROW), start=1)
    )
    return in_a_row or _times_said(text, token_id) > 2


def _times_said(text: Sequence[int], token_id: int) -> int:
    """How often the last `PHRASE` tokens stand in the text, themselves included."""
    before = tuple(text[len(text) - PHRASE + 1 :])
    if len(text) < PHRASE - 1:
        return 0
    return 1 + sum(
        text[place] == token_id and tuple(text[place - PHRASE + 1 : place]) == before
        for place in range(PHRASE - 1, len(text))
    )


class Unlooped:
    """Leaves out of a pool's children those that would repeat what was said; makes the pool ask for a few more."""

    def __init__(self, pool: Pool, ids: Sequence[int]) -> None:
        """``ids`` is the sequence that the draft continues; the budget says from where on it was written alone."""
        self._pool = pool
        self._since = pool.budget.alone_from
        self._wanted = pool.shape.children
        if self._since is not None:
            self._written = tuple(ids[self._since :])
            pool.shape = replace(pool.shape, children=self._wanted + SPARE)

    def children(
        self, parents: Sequence[int], ranked: Sequence[Sequence[tuple[int, float]]]
    ) -> list[list[tuple[int, float]]]:
        """Each parent's children [(id, log_prob)] in their order, at most as many as the pool first wanted."""
        if self._since is None:
            return [list(each) for each in ranked]
        return [self._of(parent, each) for parent, each in zip(parents, ranked, strict=True)]

    def _of(self, parent: int, ranked: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
        text = (*self._written, *self._pool.path(parent))
        return [each for each in ranked if not repeats(text, each[0])][: self._wanted]
