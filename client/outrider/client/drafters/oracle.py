"""A drafter that knows the answer: the upper bound of every measurement, and the base of the test drafters."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.client.drafter import Budget, Proposal, SequenceDrafter

LOG_SURE = -0.01


class OracleDrafter(SequenceDrafter):
    """Proposes the ids of a known text at their positions."""

    kind = "oracle"

    def __init__(self, truth: Sequence[int]) -> None:
        super().__init__()
        self.truth = tuple(truth)
        """The whole sequence, prompt included."""

    def propose(self, budget: Budget) -> Proposal:
        """The next ids of the known text; empty at its end."""
        count = max(min(budget.max_nodes, budget.max_depth), 0)
        ids = self.truth[self.length : self.length + count]
        return self.count(Proposal.chain(ids, [LOG_SURE] * len(ids)))
