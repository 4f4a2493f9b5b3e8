"""A device's drafter as a function from a text and its state rows to a chain: what mining and comparing ask of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.client.drafter import Budget, Drafter, Drawing, common_prefix
from outrider.shared.draft import DraftKind
from outrider.shared.laws import MAX_BITS, MAX_ENTRIES, SparseLaw
from outrider.shared.sampling import Sampling

Law = Callable[[int], SparseLaw | None]
"""The law that a token of a chain (0 = the first) would be drawn from at temperature 1; None: there is none.

Worked out when it is asked for, at the price of a pass of the drafter, and only while its text stands.
"""
_LAW = Budget(
    1,
    1,
    sampling=Sampling(1.0),
    drawing=Drawing(DraftKind.SAMPLED, b"nothing is drawn", top=MAX_ENTRIES, bits=MAX_BITS),
)


class ChainDrafter:
    """One drafter over one text that may be rewritten at its end; what stays costs nothing again."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._ids: list[int] = []
        self._rows = 0

    def propose(
        self, ids: Sequence[int], rows: Sequence[NDArray[np.float32]], depth: int
    ) -> tuple[tuple[int, ...], tuple[float, ...], Law]:
        """Up to ``depth`` greedy ids after ``ids``, the drafter's probability that each is the target's, and its laws.

        ``rows``: per plane [n, width], state rows of positions 0 … n-1.
        """
        same = common_prefix(self._ids, ids)
        if not same:
            self._drafter.begin(ids)
            self._rows = 0
        else:
            self._drafter.rollback(same)
            self._drafter.accept(ids[same:])
            self._rows = min(self._rows, same)
        self._ids = list(ids)
        for plane, values in enumerate(rows):
            if len(values) > self._rows:
                self._drafter.add_rows(plane, self._rows, values[self._rows :])
        self._rows = max((len(values) for values in rows), default=0)
        proposal = self._drafter.propose(Budget(max_nodes=depth, max_depth=depth))
        chain = proposal.draft.ids
        sure = tuple(float(np.exp(min(one, 0.0))) for one in proposal.log_probs[: len(chain)])
        return tuple(chain), sure, lambda place: self._law(len(ids), chain[:place])

    def _law(self, length: int, begun: Sequence[int]) -> SparseLaw | None:
        """Of what follows the text and ``begun``. ValueError if the text is no longer ``length`` tokens long."""
        if length != len(self._ids):
            raise ValueError("the text was rewritten since the chain was drafted")
        self._drafter.accept(begun)
        drawn = self._drafter.propose(_LAW).draft
        self._drafter.rollback(length)
        return drawn.laws[0] if drawn.laws else None
