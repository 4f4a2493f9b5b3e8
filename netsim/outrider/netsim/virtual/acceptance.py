"""Which drafted tokens the target would have said: a law by depth and rank, and one luck per position.

Position n of a text has one uniform number, fixed by the seed. The target's token there is the drafter's child of rank
r at depth d where the number falls into the r-th part of that depth's law. So every mode, size and link meets the same
text with the same luck, and the shares come out as recorded.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from outrider.client.drafter import Law
from outrider.client.pacing import MAX_NODES, RANKS, best_trees
from outrider.netsim.errors import BadConfig

LONGEST = 4096
"""Depths for which thresholds are laid out: a tail drafted alone grows with no limit but the answer's."""
BEYOND = 64
FIT_CHAIN = 6
"""The recorded chain by which the shares of first children are shifted."""
FIT_NODES, FIT_DEPTH = 24, 8
"""The recorded tree by which the shares of lower ranks are fitted."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How often children are right given that their parents were, and where it was recorded.

    Raises `BadConfig` unless every depth has probabilities, best first, that sum to at most 1.
    """

    law: Law
    source: str = "given"

    def __post_init__(self) -> None:
        if not self.law:
            raise BadConfig("acceptance", "expected at least one depth")
        for depth, ranks in enumerate(self.law, start=1):
            fine = ranks and all(0 <= share <= 1 for share in ranks) and sum(ranks) <= 1 + 1e-9
            if not fine or list(ranks) != sorted(ranks, reverse=True):
                raise BadConfig(
                    "acceptance", f"depth {depth}: expected falling probabilities of sum <= 1, got {ranks}"
                )

    @property
    def first(self) -> tuple[float, ...]:
        """Per depth, from 1, the share of right first children, the last depth's repeated [LONGEST]."""
        return _first(self.law)

    @property
    def cumulated(self) -> tuple[tuple[float, ...], ...]:
        """Per depth the cumulated shares of ranks."""
        return _cumulated(self.law)

    def tau(self, depth: int, nodes: int, *, tree: bool) -> float:
        """Emitted tokens a round that drafts of this size have on average."""
        law = self.law if tree else tuple(ranks[:1] for ranks in self.law)
        sizes = best_trees(law, depth, nodes)
        return 1.0 + (sizes[-1].expected if sizes else 0.0)


@lru_cache(maxsize=256)
def _first(law: Law) -> tuple[float, ...]:
    return tuple(law[min(depth, len(law) - 1)][0] for depth in range(LONGEST))


@lru_cache(maxsize=256)
def _cumulated(law: Law) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(accumulate(law[min(depth, len(law) - 1)])) for depth in range(64))


def by_alpha(alpha: float) -> Acceptance:
    """The same share of right first guesses at every depth. Raises `BadConfig` outside [0, 1)."""
    if not 0 <= alpha < 1:
        raise BadConfig("alpha", f"expected a share in [0, 1), got {alpha}")
    shares = tuple(min(alpha, (1 - alpha) * share) for share in RANKS)
    return Acceptance(((alpha, *shares),), f"alpha {alpha:g}")


def by_tau(tau: float, depth: int = 6) -> Acceptance:
    """The alpha at which chains of ``depth`` emit ``tau`` tokens a round. Raises `BadConfig` if none does."""
    if not 1 <= tau < depth + 1:
        raise BadConfig("tau", f"chains of {depth} emit 1 up to (not including) {depth + 1}, got {tau}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        emitted = sum(middle**power for power in range(depth + 1))
        low, high = (middle, high) if emitted < tau else (low, middle)
    return Acceptance(by_alpha(low).law, f"tau {tau:g} in chains of {depth}")


def recorded(
    first: Sequence[float | None], tau_chain: float | None, tau_tree: float | None, source: str
) -> Acceptance:
    """From measured acceptance by depth, and what chains of `FIT_CHAIN` and trees of `FIT_NODES` nodes emitted.

    Shares by depth are means over texts of all kinds; where some are easy and some hard, their products promise more
    than rounds brought. So they are shifted together, in log-odds, until chains emit what was measured. Lower ranks
    were not recorded: they share out what the first one misses in the proportions that pacing assumes, scaled so that
    trees emit what was measured. Depths where nothing was judged are as the last one that was.
    """
    known = [min(max(share, 0.0), 1.0) for share in first if share is not None]
    if not known:
        raise BadConfig("acceptance", "expected at least one recorded depth")
    if tau_chain is not None:
        shift = _fit(lambda by: _chain_tau([_shifted(share, by) for share in known]), tau_chain, -6.0, 6.0)
        known = [_shifted(share, shift) for share in known]
    scale = 1.0
    if tau_tree is not None:
        scale = _fit(
            lambda by: Acceptance(_with_ranks(known, by)).tau(FIT_DEPTH, FIT_NODES, tree=True),
            tau_tree,
            0.0,
            1.0 / sum(RANKS),
        )
    return Acceptance(_with_ranks(known, scale), source)


def _fit(emitted: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where a rising function emits ``wanted``, or the end of the interval that is nearer to it."""
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if emitted(middle) < wanted else (low, middle)
    return low


def _shifted(share: float, by: float) -> float:
    return share if share in (0.0, 1.0) else 1.0 / (1.0 + math.exp(-math.log(share / (1.0 - share)) - by))


def _chain_tau(first: Sequence[float]) -> float:
    law = tuple((share,) for share in first)
    return Acceptance(law).tau(FIT_CHAIN, FIT_CHAIN, tree=False)


def _with_ranks(first: Sequence[float], scale: float) -> Law:
    return tuple((share, *(min(share, scale * (1 - share) * part) for part in RANKS)) for share in first)


def from_rounds(rounds: Sequence[tuple[Sequence[int], Sequence[int]]], source: str) -> Acceptance:
    """From recorded rounds, each (parents as on the wire, path of accepted nodes): shares by depth and rank.

    A node counts as judged where its parent was accepted. Raises `BadConfig` if nothing was judged.
    """
    judged: list[int] = []
    right: list[list[int]] = []
    for parents, path in rounds:
        row = 0
        for depth in range(len(path) + 1):
            children = [node for node, parent in enumerate(parents) if parent == row]
            if not children:
                break
            while len(judged) <= depth:
                judged.append(0)
                right.append([0] * 4)
            judged[depth] += 1
            if depth == len(path):
                break
            rank = children.index(path[depth]) if path[depth] in children else len(children)
            right[depth][min(rank, 3)] += 1
            row = path[depth] + 1
    if not judged:
        raise BadConfig("events", "no round with a draft was recorded")
    law = []
    for count, hits in zip(judged, right, strict=True):
        shares = [hit / count for hit in hits]
        law.append(tuple(min(shares[: rank + 1]) for rank in range(4)))
    return Acceptance(tuple(law), source)


@lru_cache(maxsize=256)
def luck(seed: int, tokens: int) -> tuple[float, ...]:
    """One uniform number per position of an answer and a good way beyond it [tokens + 64]."""
    rng = random.Random(f"outrider.netsim/{seed}/luck")
    return tuple(rng.random() for _ in range(tokens + BEYOND))


class Runs:
    """How many right first guesses in a row begin at a position of a text, each counted once, when it is asked for."""

    def __init__(self, fortune: Sequence[float], first: Sequence[float], tokens: int) -> None:
        self._fortune, self._first = fortune, first
        self.known = [-1] * tokens
        """By position; -1 where nobody has asked."""

    def count(self, position: int) -> int:
        """The run that a draft begins at ``position``."""
        fortune, first, count = self._fortune, self._first, 0
        most = len(fortune) - position
        while count < most and fortune[position + count] < first[count]:
            count += 1
        self.known[position] = count
        return count


@lru_cache(maxsize=256)
def runs(seed: int, tokens: int, law: Law) -> Runs:
    """Those of a text (`luck`) under a law; every mode, size and link shares them."""
    return Runs(luck(seed, tokens), _first(law), tokens)


@dataclass(frozen=True, slots=True)
class Shape:
    """A draft without its tokens."""

    parents: tuple[int, ...]
    """As on the wire: 0 = the base, k = node k - 1."""
    children: tuple[tuple[int, ...], ...]
    """Per row (0 = the base, k = node k - 1) the rows of its children, best first."""
    depth: int
    stem: tuple[int, ...]
    """The rows of the path of first children, the base's included."""

    @property
    def trunk(self) -> int:
        """Length of the path of first children."""
        return len(self.stem) - 1

    def accepted(
        self, fortune: Sequence[float], position: int, cumulated: Sequence[Sequence[float]]
    ) -> tuple[int, ...]:
        """The rows that the target takes, in order, when the draft continues the text at ``position``."""
        row, children = 0, self.children
        path: list[int] = []
        while kids := children[row]:
            chance = fortune[position]
            row = 0
            for kid, share in zip(kids, cumulated[len(path)], strict=False):
                if chance < share:
                    row = kid
                    break
            if not row:
                break
            path.append(row)
            position += 1
        return tuple(path)

    def reached(
        self, fortune: Sequence[float], position: int, cumulated: Sequence[Sequence[float]], run: int
    ) -> int:
        """The length of `accepted`, told that a ``run`` of first guesses is right from ``position`` on."""
        stem, children = self.stem, self.children
        depth = run if run < len(stem) else len(stem) - 1
        row = stem[depth]
        while kids := children[row]:
            shares = cumulated[depth]
            rank = bisect_right(shares, fortune[position + depth])
            if rank >= len(kids) or rank == len(shares):
                break
            row = kids[rank]
            depth += 1
        return depth


@lru_cache(maxsize=2048)
def shape_of(law: Law, depth: int, nodes: int, tree: bool) -> Shape:
    """The most probable tree of so many nodes and levels (a chain: of ``depth``), as `pacing.best_trees` counts it."""
    if not tree:
        rows = tuple((row + 1,) for row in range(depth)) + ((),)
        return Shape(tuple(range(depth)), rows, depth, tuple(range(depth + 1)))
    heap = [(-law[0][0], 1, 0, 0, 1.0)] if depth > 0 else []
    parents: list[int] = []
    depths = [0]
    while heap and len(parents) < min(nodes, MAX_NODES):
        negative, level, rank, parent, above = heapq.heappop(heap)
        parents.append(parent)
        depths.append(level)
        ranks = law[min(level, len(law)) - 1]
        if rank + 1 < len(ranks) and ranks[rank + 1] > 0:
            heapq.heappush(heap, (-above * ranks[rank + 1], level, rank + 1, parent, above))
        below = law[min(level + 1, len(law)) - 1][0]
        if level < depth and below > 0:
            heapq.heappush(heap, (negative * below, level + 1, 0, len(parents), -negative))
    kids = tuple(
        tuple(node + 1 for node, parent in enumerate(parents) if parent == row)
        for row in range(len(parents) + 1)
    )
    stem = [0]
    while kids[stem[-1]]:
        stem.append(kids[stem[-1]][0])
    return Shape(tuple(parents), kids, max(depths), tuple(stem))
