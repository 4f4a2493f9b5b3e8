"""Trees whose form is fixed before anything is drafted: by how often each rank at each depth is right.

Of all trees of a size, the one whose places have the largest probabilities brings the most (Sequoia: Chen et al., 2024,
section 3; there by dynamic programming, here best first, which the independence of the ranks allows).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from outrider.client.drafter import Law, Prices

DEFAULT_LAW: Law = tuple(tuple(0.5 * 0.8**head * 0.35**rank for rank in range(8)) for head in range(8))
"""By depth and rank, where nothing was measured."""


@dataclass(frozen=True, slots=True)
class Node:
    """A place in a fixed tree: its parent (0 = the base, k = node k-1), and which child of which depth stands there."""

    parent: int
    depth: int
    rank: int


def chain(depth: int) -> tuple[Node, ...]:
    """The first child at every depth."""
    return tuple(Node(number, number + 1, 0) for number in range(depth))


@lru_cache(maxsize=256)
def sparse_tree(law: Law, max_nodes: int) -> tuple[Node, ...]:
    """The ``max_nodes`` places likeliest to be right, best first; parents before children, siblings by rank.

    ``law`` gives by depth and rank how often a child is right, given its parents; a rank never counts for more than the
    one before it.
    """
    ranks = [np.minimum.accumulate(np.clip(row, 0.0, 1.0)).tolist() for row in law]
    nodes: list[Node] = []
    waiting = [(-ranks[0][0], 0, 0, 1, 0, 1.0)]  # (-value, age, parent, depth, rank, value of the parent)
    age = 0
    while waiting and len(nodes) < max_nodes:
        value, _, parent, depth, rank, above = heapq.heappop(waiting)
        nodes.append(Node(parent, depth, rank))
        below = []
        if rank + 1 < len(ranks[depth - 1]):
            below.append((parent, depth, rank + 1, above))
        if depth < len(ranks):
            below.append((len(nodes), depth + 1, 0, -value))
        for parent_, depth_, rank_, above_ in below:
            age += 1
            heapq.heappush(waiting, (-above_ * ranks[depth_ - 1][rank_], age, parent_, depth_, rank_, above_))
    return tuple(nodes)


def worthwhile(tree: Sequence[Node], law: Law, prices: Prices) -> int:
    """How many of a sparse tree's places to fill, at least one: so many that no other number brings more.

    A place brings the probability of its path, and costs what verifying it, a run of the drafter for its depth and
    feeding its parent do.
    """
    chances = [1.0]
    total, deepest, count, most = 0.0, 0, 0, -np.inf
    fed: set[int] = set()
    for number, node in enumerate(tree, start=1):
        chances.append(chances[node.parent] * float(np.min(law[node.depth - 1][: node.rank + 1])))
        total, deepest = total + chances[-1], max(deepest, node.depth)
        fed.add(node.parent)
        price = prices.verify[min(number, len(prices.verify) - 1)]
        worth = total - price - deepest * prices.level - len(fed) * prices.node
        if worth > most:
            count, most = number, worth
    return count
