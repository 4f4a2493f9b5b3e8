"""A device's drafter as a function from a text and its state rows to a chain: what mining and comparing ask of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.client.drafter import Budget, Drafter, common_prefix


class ChainDrafter:
    """One drafter over one text that may be rewritten at its end; what stays costs nothing again."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._ids: list[int] = []
        self._rows = 0

    def propose(
        self, ids: Sequence[int], rows: Sequence[NDArray[np.float32]], depth: int
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Up to ``depth`` greedy ids after ``ids``, and the drafter's probability that each is the target's.

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
        return tuple(chain), tuple(float(np.exp(min(one, 0.0))) for one in proposal.log_probs[: len(chain)])
