"""How a draft grows: EAGLE-2's dynamic tree (Li et al. 2024, section 4), of which a chain is the width-one case.

Pure bookkeeping over calibrated log-probabilities. Every level, the best nodes of the newest level are expanded; all
candidates stay in the pool; at the end the best of the pool are kept. A cumulative log-probability never exceeds its
parent's and ties go to the older node, so the kept set is always closed under ancestors.

Where the budget names prices, a draft grows as long as that pays: a node is worth the probability of its path, a pass
of the drafter and a wider pass of the target cost the tokens that their time would bring otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.client.drafter import Budget, Prices, Proposal
from outrider.shared.draft import Draft
from outrider.shared.sampling import Sampling

MAX_WIDTH = 8
MAX_CHILDREN = 4
ROOT = -1


@dataclass(frozen=True, slots=True)
class Shape:
    """How a tree is grown: ``width`` nodes expanded per level, ``children`` proposed by each; both at most."""

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


class Growing(Protocol):
    """What those who feed a draft's nodes know of it."""

    shape: Shape
    nodes: list[Candidate]
    """Oldest first."""
    slots: dict[int, int]
    """Index of a node → cache slot, of those that were fed."""

    @property
    def sampling(self) -> Sampling:
        """What a graph is run with."""


class Pool:
    """All candidates of one draft, oldest first."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.sampling = budget.sampling
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
        """Which of the newest level to expand next; empty when growing cannot improve the draft, or does not pay."""
        if not fresh or self.nodes[fresh[0]].depth >= self.budget.max_depth:
            return []
        best = sorted(fresh, key=self._rank)[: self.shape.width]
        if len(self.nodes) >= self.budget.max_nodes:
            worst_kept = self.nodes[self._best()[-1]].total
            best = [node for node in best if self.nodes[node].total > worst_kept]
        if self.budget.prices is not None:
            best = best[: self._paying(best, self.budget.prices)]
        return sorted(best)

    def proposal(self) -> tuple[Proposal, list[int]]:
        """The nodes worth verifying, at most ``max_nodes``, in creation order, and their pool indices."""
        kept = sorted(self._kept())
        number = {pool: node for node, pool in enumerate(kept)}
        chosen = [self.nodes[pool] for pool in kept]
        draft = Draft(
            ids=tuple(node.token_id for node in chosen),
            parents=tuple(number[node.parent] + 1 if node.parent != ROOT else 0 for node in chosen),
        )
        path = best_path(draft.parents)
        return Proposal(draft, tuple(node.log_prob for node in chosen), path), kept

    def path(self, index: int) -> tuple[int, ...]:
        """The ids from below the base to this node; () for ROOT."""
        ids: list[int] = []
        while index != ROOT:
            ids.append(self.nodes[index].token_id)
            index = self.nodes[index].parent
        return tuple(reversed(ids))

    def _rank(self, index: int) -> tuple[float, int]:
        return (-self.nodes[index].total, index)

    def _best(self) -> list[int]:
        return sorted(range(len(self.nodes)), key=self._rank)[: self.budget.max_nodes]

    def _kept(self) -> list[int]:
        best = self._best()
        if self.budget.prices is None:
            return best
        return best[: worth_keeping([math.exp(self.nodes[n].total) for n in best], self.budget.prices)[0]]

    def _paying(self, best: Sequence[int], prices: Prices) -> int:
        """How many of ``best`` (best first, all of one level) to expand; 0 when no further pass pays.

        Children are foreseen as `Prices.law` says. The first node is expanded if any number of further levels below it
        pays, since a staircase of costs may have to be climbed before it does; each other one on its children alone.
        """
        if not best:
            return 0
        seen = [math.exp(node.total) for node in self.nodes]
        now = self._value(seen, prices)
        depth = self.nodes[best[0]].depth + 1
        if not self._chain_pays(seen, now, math.exp(self.nodes[best[0]].total), depth, prices):
            return 0
        taken, most = 0, now
        for index in best:
            chance = math.exp(self.nodes[index].total)
            seen += [chance * prices.child(depth, rank) for rank in range(self.shape.children)]
            value = self._value(seen, prices)
            if taken and value - most < prices.node:
                break
            taken, most = taken + 1, value
        return taken

    def _chain_pays(self, seen: list[float], now: float, chance: float, depth: int, prices: Prices) -> bool:
        """Whether some number of levels, one node expanded in each, brings what it costs."""
        foreseen = list(seen)
        for levels in range(1, self.budget.max_depth - depth + 2):
            at = depth + levels - 1
            foreseen += [chance * prices.child(at, rank) for rank in range(self.shape.children)]
            chance *= prices.child(at)
            if self._value(foreseen, prices) - now >= levels * (prices.level + prices.node):
                return True
            if chance < prices.level + prices.node:
                return False
        return False

    def _value(self, chances: Sequence[float], prices: Prices) -> float:
        ordered = sorted(chances, reverse=True)[: self.budget.max_nodes]
        return worth_keeping(ordered, prices)[1]


def worth_keeping(chances: Sequence[float], prices: Prices) -> tuple[int, float]:
    """How many nodes to keep, and what they bring beyond their price.

    ``chances`` are path probabilities, best first. At least one is kept; of equally good numbers the smallest.
    """
    last = len(prices.verify) - 1
    total, count, value = 0.0, 0, -math.inf
    for number, chance in enumerate(chances, start=1):
        total += chance
        worth = total - prices.verify[min(number, last)]
        if worth > value or number == 1:
            count, value = number, worth
    return count, value


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
