"""`multidraft`: several drawn tokens at a node, tested one after the other down a tree (recursive rejection sampling).

Children of a node are tested in draw order. With t the target's law there and d the law they were drawn from, child x
is accepted with probability min(1, t(x)/d(x)); once it is refused, t becomes [t - d]+ normalised. What d becomes
depends on the draw:

- SAMPLED, independent draws (SpecInfer's multi-step sampling: Miao et al., 2024): d stays. A token that was drawn
  twice is tested twice; skipping it would leave t where it was and bias the text.
- DISTINCT, draws without replacement (Jeon et al., "Recursive speculative decoding", 2024; Sequoia: Chen et al.,
  2024): d loses x and is normalised. Tested in any other order than drawn, the text would be biased.

If every child is refused the next token is drawn from the last t; below an accepted one the walk goes on; behind a
leaf comes a draw from its t. The law is the target's. On a chain this is `residual`.
"""

from __future__ import annotations

from collections.abc import Mapping

from outrider.cloud.rules.contract import NOTHING, Exact
from outrider.cloud.rules.nodes import Decision, Nodes
from outrider.cloud.rules.remainder import Remainder
from outrider.cloud.rules.residual import ending
from outrider.shared.coins import Purpose
from outrider.shared.draft import DraftKind
from outrider.shared.frames import TokenKind


def descend(nodes: Nodes) -> Decision:
    """The walk from the base: test a row's children in order, go below the one that is accepted."""
    distinct = nodes.draft.kind is DraftKind.DISTINCT
    path: list[int] = []
    row = 0
    while children := nodes.draft.children(row):
        left = Remainder.at(nodes, row)
        for child in children:
            token = nodes.draft.ids[child]
            if nodes.coin(row, Purpose.ACCEPT, child) < left.ratio(token):
                break
            left.refuse(token, distinct=distinct)
        else:
            return ending(path, nodes.draw(left.law(), row, Purpose.REPLACE), TokenKind.RECOVERED)
        path.append(child)
        row = child + 1
    return ending(path, nodes.draw(nodes.law(row), row, Purpose.BONUS), TokenKind.BONUS)


class Multidraft(Exact):
    """The target's law, from a tree whose siblings were drawn with or without replacement."""

    name = "multidraft"
    needs_laws = True
    drafts = frozenset((DraftKind.SAMPLED, DraftKind.DISTINCT))

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """Walk down the tree."""
        self.takes(nodes.draft)
        return descend(nodes)
