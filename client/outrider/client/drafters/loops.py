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
LONGEST = 256
"""Tokens of the longest repetition that is looked for."""


def times_allowed(length: int) -> int:
    """How often words of ``length`` tokens may stand one after the other: rules of dashes and table borders do."""
    return 4 if length == 1 else 3 if length <= 3 else 2


def circles(text: Sequence[int], token_id: int) -> bool:
    """Whether ``text`` with ``token_id`` behind it ends with the same words more often in a row than allowed."""
    end = len(text)
    for length in range(1, min(LONGEST, end // 2 + 1) + 1):
        if length <= end and text[end - length] != token_id:
            continue
        times = times_allowed(length) + 1
        if times * length > end + 1:
            continue
        # With period ``length``, each token of the repetitions but the first equals the one a period earlier.
        checked = range(end - 1, end - (times - 1) * length, -1)
        if all(text[place] == text[place - length] for place in checked):
            return True
    return False


class Unlooped:
    """Leaves out of a pool's children those that would go round in circles; makes the pool ask for a few more."""

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
        return [each for each in ranked if not circles(text, each[0])][: self._wanted]
