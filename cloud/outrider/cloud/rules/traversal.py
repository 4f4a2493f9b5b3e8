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
from outrider.cloud.rules.contract import NOTHING, Exact
from outrider.cloud.rules.nodes import Decision, Nodes
from outrider.cloud.rules.remainder import Remainder
from outrider.cloud.rules.residual import ending
from outrider.shared.coins import Purpose
from outrider.shared.draft import DraftKind
from outrider.shared.frames import TokenKind


@dataclass(slots=True)
class _Place:
    """A row on the way down, as the leaves already gone have left it."""

    row: int
    untried: list[int]
    """Children not tried yet, the next one last."""
    kept: float
    """p: the chance that it is kept, once it is a leaf."""
    left: Remainder | None
    """Its laws; None if it never had children, since its law is wanted only if it is kept."""

    @classmethod
    def at(cls, nodes: Nodes, row: int, kept: float) -> _Place:
        children = nodes.draft.children(row)
        return cls(row, list(reversed(children)), kept, Remainder.at(nodes, row) if children else None)


class Traversal(Exact):
    """The target's law, from a tree drawn without replacement; keeps more than `multidraft`."""

    name = "traversal"
    needs_laws = True
    drafts = frozenset((DraftKind.DISTINCT,))

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """Down to the first leaf, then back up until a leaf is kept."""
        self.takes(nodes.draft)
        way = [_Place.at(nodes, 0, 1.0)]
        while True:
            here = way[-1]
            if here.left is not None and here.untried:
                child = here.untried.pop()
                kept = min(1.0, here.kept * here.left.ratio(nodes.draft.ids[child]))
                if kept > 0.0:
                    way.append(_Place.at(nodes, child + 1, kept))
                else:  # nothing below it can be kept either
                    self._lose(nodes, here, child)
            elif len(way) == 1 or nodes.coin(way[-2].row, Purpose.ACCEPT, here.row - 1) < here.kept:
                return self._end(nodes, way)
            else:
                way.pop()
                self._lose(nodes, way[-1], here.row - 1)

    @staticmethod
    def _lose(nodes: Nodes, place: _Place, child: int) -> None:
        """``child`` is gone."""
        if place.left is not None:
            mass = place.left.refuse(nodes.draft.ids[child], place.kept, distinct=True)
            place.kept = keeping(mass, place.kept)

    @staticmethod
    def _end(nodes: Nodes, way: list[_Place]) -> Decision:
        path, last = [place.row - 1 for place in way[1:]], way[-1]
        if last.left is None:
            return ending(path, nodes.draw(nodes.law(last.row), last.row, Purpose.BONUS), TokenKind.BONUS)
        return ending(path, nodes.draw(last.left.law(), last.row, Purpose.REPLACE), TokenKind.RECOVERED)
