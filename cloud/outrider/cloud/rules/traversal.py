"""`traversal`: a tree judged from its leaves to its root (Weng et al., "Traversal verification for speculative tree
decoding", NeurIPS 2025).

Siblings are drawn without replacement. A node's chance of being kept is p = min(1, p(parent)·t(x)/d(x)) with its
parent's present t and d; the root's is 1. The walk goes to the first leaf and keeps it with probability p, all above
it included. Otherwise the leaf is gone, and its parent's laws change by what it took: with R = [p·t - d]+ and S its
mass, t becomes R/S, d loses x and is normalised, p becomes S/(S + 1 - p). Then the next sibling is tried, and a node
without any left is a leaf itself. The next token is drawn from the t of the node that is kept. The root always is.

The law is the target's. On a chain the coins, too, fall as in `block`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.cloud.rules.block import keeping
from outrider.cloud.rules.contract import NO_PARAMETERS, NOTHING, check_draft
from outrider.cloud.rules.multidraft import without
from outrider.cloud.rules.nodes import Decision, Nodes
from outrider.cloud.rules.residual import Law, ending, left_mass, left_over
from outrider.shared.coins import Purpose
from outrider.shared.draft import DraftKind
from outrider.shared.frames import TokenKind
from outrider.shared.sampling import Sampling


@dataclass(slots=True)
class _Place:
    """A row on the way down, as the leaves already gone have left it."""

    row: int
    left: list[int]
    """Children not tried yet."""
    target: Law
    draft: Law
    kept: float
    """p: the chance that it is kept, once it is a leaf."""

    def lose(self, token: int) -> None:
        """A child with this token is gone."""
        mass = left_mass(self.target, self.draft, kept=self.kept)
        self.target = left_over(self.target, self.draft, kept=self.kept)
        self.kept = keeping(mass, self.kept)
        self.draft = without(self.draft, token)


class Traversal:
    """The target's law, from a tree drawn without replacement; keeps more than `multidraft`."""

    name = "traversal"
    needs_hidden = False
    needs_laws = True
    lossy = False
    drafts = frozenset((DraftKind.DISTINCT,))
    parameters = NO_PARAMETERS

    def check(self, sampling: Sampling, given: Mapping[str, float] = NOTHING) -> None:
        """Any sampling will do."""

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """Down to the first leaf, then back up until a leaf is kept."""
        check_draft(self, nodes.draft)
        way = [self._place(nodes, 0, 1.0)]
        while True:
            here = way[-1]
            if here.left:
                child = here.left.pop(0)
                token = nodes.draft.ids[child]
                kept = min(1.0, here.kept * float(here.target[token]) / float(here.draft[token]))
                if kept > 0.0:
                    way.append(self._place(nodes, child + 1, kept))
                else:  # nothing below it can be kept either
                    here.lose(token)
            elif len(way) == 1 or self._keeps(nodes, way[-2].row, here):
                break
            else:
                way.pop()
                way[-1].lose(nodes.draft.ids[here.row - 1])
        return self._end(nodes, way)

    @staticmethod
    def _place(nodes: Nodes, row: int, kept: float) -> _Place:
        children = list(nodes.draft.children(row))
        target = nodes.law(row)
        return _Place(row, children, target, nodes.draft_law(row) if children else target, kept)

    @staticmethod
    def _keeps(nodes: Nodes, parent: int, leaf: _Place) -> bool:
        return nodes.coin(parent, Purpose.ACCEPT, leaf.row - 1) < leaf.kept

    @staticmethod
    def _end(nodes: Nodes, way: list[_Place]) -> Decision:
        path, last = [place.row - 1 for place in way[1:]], way[-1]
        refused = bool(nodes.draft.children(last.row))
        purpose, kind = (
            (Purpose.REPLACE, TokenKind.RECOVERED) if refused else (Purpose.BONUS, TokenKind.BONUS)
        )
        return ending(path, nodes.draw(last.target, last.row, purpose), kind)
