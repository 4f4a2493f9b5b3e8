"""How a draft grows: EAGLE-2's dynamic tree (Li et al. 2024, section 4), of which a chain is the width-one case.

Pure bookkeeping over calibrated log-probabilities. Every level, the best nodes of the newest level are expanded; all
candidates stay in the pool; at the end the best of the pool are kept. A cumulative log-probability never exceeds its
parent's and ties go to the older node, so the kept set is always closed under ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.client.drafter import Budget, Proposal
from outrider.shared.draft import Draft

MAX_WIDTH = 8
MAX_CHILDREN = 4
ROOT = -1


@dataclass(frozen=True, slots=True)
class Shape:
    """How a tree is grown: ``width`` nodes expanded per level, ``children`` proposed by each."""

    width: int
    children: int

    @classmethod
    def of(cls, budget: Budget) -> Shape:
        """One by one for a chain; for a tree wide enough that the best ``max_nodes`` are among the candidates."""
        if not budget.tree or budget.max_nodes < 3:
            return cls(1, 1)
        width = min(max(budget.max_nodes // 3, 2), MAX_WIDTH)
        return cls(width, min(width, MAX_CHILDREN))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node of the pool; ``parent`` is a pool index, ROOT = the base."""

    token_id: int
    parent: int
    depth: int
    log_prob: float
    total: float
    """Cumulative log-probability from the base."""


class Pool:
    """All candidates of one draft, oldest first."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.shape = Shape.of(budget)
        self.nodes: list[Candidate] = []
        self.slots: dict[int, int] = {}
        """Pool index → cache slot, of the nodes that were expanded."""

    def add_level(self, parents: Sequence[int], children: Sequence[Sequence[tuple[int, float]]]) -> list[int]:
        """Add each parent's children [(id, log_prob)] in rank order; returns the pool indices of the new ones.

        Nodes below the floor are left out, except the very first: an edge draft is never empty.
        """
        fresh: list[int] = []
        for parent, ranked in zip(parents, children, strict=True):
            above = self.nodes[parent].total if parent != ROOT else 0.0
            depth = self.nodes[parent].depth + 1 if parent != ROOT else 1
            for token_id, log_prob in ranked:
                log_prob = min(log_prob, 0.0)
                total = above + log_prob
                if total < self.budget.floor and self.nodes or total != total:
                    break
                fresh.append(len(self.nodes))
                self.nodes.append(Candidate(token_id, parent, depth, log_prob, total))
        return fresh

    def frontier(self, fresh: Sequence[int]) -> list[int]:
        """Which of the newest level to expand next; empty when growing cannot improve the draft any more."""
        if not fresh or self.nodes[fresh[0]].depth >= self.budget.max_depth:
            return []
        best = sorted(sorted(fresh, key=self._rank)[: self.shape.width])
        if len(self.nodes) >= self.budget.max_nodes:
            worst_kept = self.nodes[self._kept()[-1]].total
            best = [node for node in best if self.nodes[node].total > worst_kept]
        return best

    def proposal(self) -> tuple[Proposal, list[int]]:
        """The best ``max_nodes`` nodes in creation order, and their pool indices."""
        kept = sorted(self._kept())
        number = {pool: node for node, pool in enumerate(kept)}
        chosen = [self.nodes[pool] for pool in kept]
        draft = Draft(
            ids=tuple(node.token_id for node in chosen),
            parents=tuple(number[node.parent] + 1 if node.parent != ROOT else 0 for node in chosen),
        )
        path = best_path(draft.parents)
        return Proposal(draft, tuple(node.log_prob for node in chosen), path), kept

    def _rank(self, index: int) -> tuple[float, int]:
        return (-self.nodes[index].total, index)

    def _kept(self) -> list[int]:
        return sorted(range(len(self.nodes)), key=self._rank)[: self.budget.max_nodes]


def best_path(parents: Sequence[int]) -> tuple[int, ...]:
    """From the base, always the first (best ranked) child, as 0-based node indices."""
    first: dict[int, int] = {}
    for node, parent in enumerate(parents):
        first.setdefault(parent, node)
    path: list[int] = []
    at = 0
    while at in first:
        path.append(first[at])
        at = first[at] + 1
    return tuple(path)
