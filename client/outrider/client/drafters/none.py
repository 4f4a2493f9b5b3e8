"""No drafter: every proposal is empty, so every round is one step of the target or plain streaming."""

from __future__ import annotations

from outrider.client.drafter import Budget, Proposal, SequenceDrafter


class NoDrafter(SequenceDrafter):
    """Says nothing."""

    kind = "none"

    def propose(self, budget: Budget) -> Proposal:
        """An empty proposal, whatever the budget."""
        del budget
        return self.count(Proposal.empty())
