"""A draft: the tokens a device proposes to follow a base, as a chain or a tree.

Nodes are numbered as on the wire: node ``i`` of ``ids`` is *row* ``i + 1``, row 0 is the base (the last token both
sides agree on), and ``parents[i]`` is a row. A parent always comes before its children; siblings stand in rank order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.shared.errors import InvalidField


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed token ids and, per node, its parent: 0 = the base, k = node k-1."""

    ids: tuple[int, ...]
    parents: tuple[int, ...]

    @classmethod
    def chain(cls, ids: Sequence[int]) -> Draft:
        """Each token follows the one before it."""
        return cls(tuple(ids), tuple(range(len(ids))))

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.ids)

    @property
    def is_chain(self) -> bool:
        """Whether every node follows the one before; true of an empty draft."""
        return all(parent == node for node, parent in enumerate(self.parents))

    @property
    def depths(self) -> tuple[int, ...]:
        """Per node, tokens from the base to it, itself included: children of the base have depth 1."""
        rows = [0]
        for parent in self.parents:
            rows.append(rows[parent] + 1)
        return tuple(rows[1:])

    def children(self, row: int) -> tuple[int, ...]:
        """Nodes that follow ``row`` (0 = the base, k = node k-1), in rank order."""
        return tuple(node for node, parent in enumerate(self.parents) if parent == row)

    def path_to(self, node: int) -> tuple[int, ...]:
        """Node indices (0-based) from the child of the base down to ``node``, both included."""
        path = []
        row = node + 1
        while row:
            path.append(row - 1)
            row = self.parents[row - 1]
        return tuple(reversed(path))

    def validate(
        self, *, vocabulary: int, max_nodes: int, max_depth: int, max_chain: int, trees: bool = True
    ) -> None:
        """Raise `InvalidField` ("draft.ids" or "draft.parents") unless a verifier may take this draft.

        A chain may have ``max_chain`` tokens; anything with siblings ``max_nodes`` nodes, ``max_depth`` deep.
        Siblings with the same id are refused: a path is then determined by its ids.
        """
        if len(self.ids) != len(self.parents):
            raise InvalidField("draft.parents", f"{len(self.parents)} parents for {len(self.ids)} ids")
        for node, (token, parent) in enumerate(zip(self.ids, self.parents, strict=True)):
            if not 0 <= token < vocabulary:
                raise InvalidField("draft.ids", f"id {token} of node {node} is outside 0 .. {vocabulary - 1}")
            if not 0 <= parent <= node:
                raise InvalidField("draft.parents", f"parent {parent} of node {node} is outside 0 .. {node}")
        if self.is_chain:
            if len(self.ids) > max_chain:
                raise InvalidField(
                    "draft.ids", f"a chain of {len(self.ids)} tokens, at most {max_chain} are taken"
                )
            return
        if not trees:
            raise InvalidField("draft.parents", "a tree, but trees were not agreed on")
        if len(self.ids) > max_nodes:
            raise InvalidField("draft.ids", f"a tree of {len(self.ids)} nodes, at most {max_nodes} are taken")
        if max(self.depths) > max_depth:
            raise InvalidField(
                "draft.parents", f"{max(self.depths)} tokens deep, at most {max_depth} are taken"
            )
        if len(set(zip(self.parents, self.ids, strict=True))) < len(self.ids):
            raise InvalidField("draft.ids", "two siblings have the same id")
