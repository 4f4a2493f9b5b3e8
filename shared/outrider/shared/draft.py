"""A draft: the tokens a device proposes to follow a base, as a chain or a tree.

Nodes are numbered as on the wire: node ``i`` of ``ids`` is *row* ``i + 1``, row 0 is the base (the last token both
sides agree on), and ``parents[i]`` is a row. A parent always comes before its children; siblings stand in rank order,
or, where they were drawn, in draw order.

How the tokens were come by decides which rules may judge them: a rule that compares laws is exact only for tokens that
were really drawn from the law that is reported (`DraftKind`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from outrider.shared.errors import InvalidField
from outrider.shared.laws import SparseLaw


class DraftKind(IntEnum):
    """How the tokens of a draft were come by."""

    CHOSEN = 1
    """Picked in any way that does not look at the verifier's coins: likeliest first, pruned, retrieved, greedy."""
    SAMPLED = 2
    """The children of a row are independent draws from its law: all of them, in draw order, equal ones included."""
    DISTINCT = 3
    """The children of a row were drawn from its law without replacement: all of them, in draw order."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed token ids and, per node, its parent: 0 = the base, k = node k-1."""

    ids: tuple[int, ...]
    parents: tuple[int, ...]
    kind: DraftKind = DraftKind.CHOSEN
    """How the tokens were come by."""
    laws: tuple[SparseLaw, ...] = ()
    """Per row that has children, in row order, the law they were drawn from; empty = not told."""

    @classmethod
    def chain(
        cls, ids: Sequence[int], kind: DraftKind = DraftKind.CHOSEN, laws: Sequence[SparseLaw] = ()
    ) -> Draft:
        """Each token follows the one before it; a chain has one law per token."""
        return cls(tuple(ids), tuple(range(len(ids))), kind, tuple(laws))

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

    @property
    def inner_rows(self) -> tuple[int, ...]:
        """Rows that have children, ascending: those that `laws` is about."""
        return tuple(sorted(set(self.parents)))

    @property
    def has_siblings(self) -> bool:
        """Whether any row has more than one child."""
        return len(set(self.parents)) < len(self.parents)

    @property
    def has_twins(self) -> bool:
        """Whether two siblings have the same id, as independent draws may: a path is not determined by its ids."""
        return len(set(zip(self.parents, self.ids, strict=True))) < len(self.ids)

    def law_of(self, row: int) -> SparseLaw:
        """The law the children of ``row`` were drawn from; ValueError if it has none or none was told."""
        rows = self.inner_rows
        if not self.laws or row not in rows:
            raise ValueError(f"no draft law is known at row {row}")
        return self.laws[rows.index(row)]

    def only(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """The part that consists of ``nodes`` (ascending), renumbered below ``root`` (0 = the base, k = node k-1).

        Laws of rows that keep children stay. Dropping *some* children of a row would make the rest a selection: keep a
        row's children all or none where the kind is not CHOSEN.
        """
        rows = {root: 0} | {node + 1: number for number, node in enumerate(nodes, 1)}
        kept = tuple(rows[self.parents[node]] for node in nodes)
        old = {new: row for row, new in rows.items()}
        laws = tuple(self.law_of(old[row]) for row in sorted(set(kept))) if self.laws else ()
        return replace(self, ids=tuple(self.ids[node] for node in nodes), parents=kept, laws=laws)

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
        """Raise `InvalidField` ("draft.ids", "draft.parents", "draft.laws…") unless a verifier may take this draft.

        A chain may have ``max_chain`` tokens; anything with siblings ``max_nodes`` nodes, ``max_depth`` deep.
        Siblings with the same id are refused, so that a path is determined by its ids, except in a SAMPLED draft:
        leaving out a token that was drawn twice would bias the verdict.
        """
        if len(self.ids) != len(self.parents):
            raise InvalidField("draft.parents", f"{len(self.parents)} parents for {len(self.ids)} ids")
        for node, (token, parent) in enumerate(zip(self.ids, self.parents, strict=True)):
            if not 0 <= token < vocabulary:
                raise InvalidField("draft.ids", f"id {token} of node {node} is outside 0 .. {vocabulary - 1}")
            if not 0 <= parent <= node:
                raise InvalidField("draft.parents", f"parent {parent} of node {node} is outside 0 .. {node}")
        self._validate_shape(max_nodes, max_depth, max_chain, trees)
        if self.laws:
            self.check_laws(vocabulary)

    def _validate_shape(self, max_nodes: int, max_depth: int, max_chain: int, trees: bool) -> None:
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
        if self.has_twins and self.kind is not DraftKind.SAMPLED:
            raise InvalidField("draft.ids", "two siblings have the same id")

    def check_laws(self, vocabulary: int | None = None) -> None:
        """Raise `InvalidField` ("draft.laws…") unless these are laws that these tokens can have been drawn from."""
        if self.kind is DraftKind.CHOSEN:
            raise InvalidField("draft.laws", "laws of tokens that were not drawn from them")
        rows = self.inner_rows
        if len(self.laws) != len(rows):
            raise InvalidField(
                "draft.laws.sizes", f"{len(self.laws)} laws for {len(rows)} rows with children"
            )
        support = {row: frozenset(law.ids) for row, law in zip(rows, self.laws, strict=True)}
        for law in self.laws:
            if vocabulary is not None and max(law.ids) >= vocabulary:
                raise InvalidField("draft.laws.ids", f"id {max(law.ids)} is outside 0 .. {vocabulary - 1}")
        for node, (token, parent) in enumerate(zip(self.ids, self.parents, strict=True)):
            if token not in support[parent]:
                raise InvalidField(
                    "draft.laws.ids", f"the law of node {node} gives its own id {token} no mass"
                )
