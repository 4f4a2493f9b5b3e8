"""`batch`: M sequences drafted in parallel from one prefix, depth first.

Algorithm 4 of Yin, Chen, Huang, Wang, "A theoretical perspective for speculative decoding algorithm", NeurIPS 2024. The
first tokens of the M sequences are tested in turn as in `multidraft` (independent draws from one law); the first one
accepted decides which sequence is followed, and that one is judged token by token as in `residual`. The others are
dropped, so a rejection further down has no second choice: rejections fall with M to a floor that is not zero (their
Theorem 3 and Proposition 1).

A sequence may not be shared by others beyond the base: the draft is a root with M chains. A draft of that shape is
judged as `multidraft` judges it; this rule is there to hold it to the shape the theorem is about.
"""

from __future__ import annotations

from collections.abc import Mapping

from outrider.cloud.rules.contract import NOTHING, Exact, check_draft
from outrider.cloud.rules.multidraft import descend
from outrider.cloud.rules.nodes import Decision, Nodes
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import InvalidField


def check_sequences(draft: Draft) -> None:
    """Raise `InvalidField` ("draft.parents") unless only the base has several children."""
    below = [parent for parent in draft.parents if parent]
    if len(set(below)) < len(below):
        raise InvalidField(
            "draft.parents", "batch judges sequences that part at the base only", remedy="use multidraft"
        )


class Batch(Exact):
    """The target's law, from M sequences drawn in parallel from the same prefix."""

    name = "batch"
    needs_laws = True
    drafts = frozenset((DraftKind.SAMPLED,))

    def takes(self, draft: Draft) -> None:
        """Drawn sequences with their laws, which part at the base."""
        check_draft(self, draft)
        check_sequences(draft)

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """Choose a sequence by its first token, then follow it."""
        self.takes(nodes.draft)
        return descend(nodes)
