"""Chains and dynamic trees from a graph that keeps own keys and values: what such drafters share.

A level of the tree is fed in one run. Keys and values of drafted tokens lie behind the sequence; where the target
takes a drafted token, they are moved into place instead of being computed again. What a graph reads beside the tokens
(state rows, features) is the subclass's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from outrider.client.drafter import Budget, Law, Proposal, Rows, SequenceDrafter, common_prefix
from outrider.client.drafters.buffers import Mask, OwnCache, RowStore
from outrider.client.drafters.drawing import Drawn, Entries
from outrider.client.drafters.graph import Answer, Array, Graph, Ints
from outrider.client.drafters.growth import ROOT, Growing, Pool
from outrider.client.drafters.loops import Unlooped
from outrider.client.drafters.warped import Adjusting
from outrider.shared.noise import gumbel
from outrider.shared.sampling import Sampling

INGEST_CHUNK = 256
"""Tokens per run; bounds the mask and the time a proposal may have to wait."""

_POSITIONS_KEPT = 64


class Coins:
    """The shared noise of the last positions, for the draft vocabulary: drawing it costs more than keeping it."""

    def __init__(self, vocabulary: Ints) -> None:
        self._vocabulary = vocabulary
        self._kept: dict[tuple[int, int], Array] = {}
        self.none = np.zeros(len(vocabulary), np.float32)
        """Noise of greedy answers [V_d]."""
        self._places: dict[int, int] = {}

    def at(self, seed: int, position: int) -> Array:
        """Noise of the token at ``position``: [V_d]."""
        key = (seed, position)
        if key not in self._kept:
            if len(self._kept) > _POSITIONS_KEPT:
                self._kept.clear()
            full = gumbel(seed, position, self._vocabulary, len(self._vocabulary))
            self._kept[key] = np.asarray(full, np.float32)
        return self._kept[key]

    def of_ids(self, sampling: Sampling, position: int, ids: Sequence[int]) -> Array:
        """The same noise, of some target ids of the draft vocabulary: [n]."""
        self._places = self._places or {token: place for place, token in enumerate(self._vocabulary.tolist())}
        noise: Array = self.of(sampling, position)[0][[self._places[token_id] for token_id in ids]]
        return noise

    def of(self, sampling: Sampling, position: int) -> tuple[Array, float]:
        """What a graph perturbs its logits with at ``position``: noise [V_d], and the inverse temperature."""
        if sampling.temperature > 0:
            return self.at(sampling.seed, position), 1.0 / sampling.temperature
        return self.none, 1.0


@dataclass(frozen=True, slots=True)
class Level:
    """Drafted tokens of one depth, to be fed in one run."""

    nodes: list[int]
    """Pool indices."""
    ids: list[int]
    positions: list[int]
    mask: Mask
    """[n, t+n]: the sequence, and each token's own line of ancestors."""

    @property
    def slot(self) -> int:
        """Cache slot of the first; the others follow."""
        return self.mask.shape[1] - len(self.ids)


@dataclass(slots=True)
class _Drafted:
    """Where the nodes of the last proposal lie in the cache, and how far ``accept`` has walked along them."""

    children: dict[tuple[int, int], int]  # (node number, id) -> node number; 0 = the base
    slots: dict[int, int]  # node number -> cache slot
    pool: dict[int, int]  # node number -> pool index
    node: int = 0


class TreeDrafter(SequenceDrafter, ABC):
    """The sequence, its cache and rows, and the drafts grown on them; subclasses feed the graph."""

    def __init__(self, graph: Graph, row_widths: Sequence[int]) -> None:
        super().__init__()
        layout = graph.layout
        self.graph = graph
        self.layout = layout
        self.cache = OwnCache(layout.own_layers, layout.own_width)
        self.rows = RowStore(row_widths, layout.max_position)
        self.coins = Coins(layout.vocabulary)
        self.cached = 0
        """Leading tokens of the sequence whose keys and values lie in slots 0 …"""
        self._drafted: _Drafted | None = None

    # ---------------------------------------------------------------------------------------------- the five verbs

    def begin(self, ids: Sequence[int]) -> None:
        """Take over ``ids`` and keep what is common with the old sequence."""
        self.rollback(common_prefix(self.ids, ids))
        self.ids.extend(ids[len(self.ids) :])
        self._drafted = None

    def add_rows(self, plane: int, start: int, rows: Rows) -> None:
        """Store rows [count, width]; raises ValueError if they do not fit the bundle."""
        self.rows.add(plane, start, rows)
        self.counters.rows += len(rows)

    def propose(self, budget: Budget) -> Proposal:
        """A chain, or an EAGLE-2 tree of at most ``max_nodes``, below the sequence's last token."""
        self._drafted = None
        room = self.layout.max_position - self.length
        depth = min(budget.max_depth, budget.max_nodes, room)
        if depth < 1 or not self.ids:
            return self.count(Proposal.empty())
        budget = replace(budget, max_depth=depth)
        if budget.drawing is not None:
            return self.count(self._draw(Drawn(budget, budget.drawing, self.ids, self._known(budget))))
        pool = Pool(budget)
        unlooped = Unlooped(pool, self.ids)
        adjusting = None
        if budget.sampling.adjusts:
            adjusting = Adjusting(pool, self.ids, self.layout, self.coins.of_ids)
        ranked = children([ROOT], self.feed_sequence(pool), adjusting)
        fresh = pool.add_level([ROOT], unlooped.children([ROOT], ranked))
        ancestors: dict[int, list[int]] = {ROOT: []}
        while frontier := pool.frontier(fresh):
            level = self._level(pool, frontier, ancestors)
            answer = self.feed_level(pool, level)
            self.cache.write(level.slot, answer.keys, answer.values)
            ranked = children(frontier, answer, adjusting)
            fresh = pool.add_level(frontier, unlooped.children(frontier, ranked))
        proposal, kept = pool.proposal()
        self._remember(proposal, kept, pool)
        return self.count(proposal)

    def _draw(self, drawn: Drawn) -> Proposal:
        """The same for a draft whose nodes are drawn: nothing is dropped, so all of them are remembered."""
        fresh = drawn.add_level([ROOT], logits(self.feed_sequence(drawn)))
        ancestors: dict[int, list[int]] = {ROOT: []}
        while frontier := drawn.frontier(fresh):
            level = self._level(drawn, frontier, ancestors)
            answer = self.feed_level(drawn, level)
            self.cache.write(level.slot, answer.keys, answer.values)
            fresh = drawn.add_level(frontier, logits(answer))
        proposal = drawn.proposal()
        self._remember(proposal, range(len(drawn.nodes)), drawn)
        return proposal

    def _known(self, budget: Budget) -> Law:
        return self.confidence.at(budget.sampling.temperature)

    def accept(self, ids: Sequence[int]) -> None:
        """Append ``ids``; what was computed for proposed nodes along them moves into the sequence."""
        for token_id in ids:
            self._take_over(token_id)
            self.ids.append(token_id)

    def rollback(self, length: int) -> None:
        """Cut the sequence, its cache and its rows to ``length``."""
        if length >= self.length:
            return
        super().rollback(length)
        self.cached = min(self.cached, self.length)
        self.rows.cut(self.length)
        self._drafted = None

    # ------------------------------------------------------------------------------------------ what subclasses do

    @abstractmethod
    def feed_sequence(self, pool: Growing) -> Answer:
        """Feed what is not cached, the last token always: its prediction is the answer."""

    @abstractmethod
    def feed_level(self, pool: Growing, level: Level) -> Answer:
        """Feed drafted tokens, all of them selected; their keys and values are kept by the caller."""

    def moved(self, node: int, position: int) -> bool:
        """Whether what was computed for a drafted node (pool index) holds at ``position`` of the sequence.

        Called before its keys and values move there; a subclass that knows more of a node keeps it here.
        """
        del node, position
        return True

    # -------------------------------------------------------------------------------------------- masks and reuse

    @staticmethod
    def causal(start: int, count: int) -> Mask:
        """Mask of ``count`` consecutive tokens behind ``start`` cached ones: [count, start+count]."""
        return np.tri(count, start + count, start, dtype=np.bool_)

    def _level(self, pool: Growing, frontier: list[int], ancestors: dict[int, list[int]]) -> Level:
        """One level of the tree; new slots lie behind the sequence in the order of feeding."""
        base, past = self.length, self.length + len(pool.slots)
        mask = np.zeros((len(frontier), past + len(frontier)), np.bool_)
        mask[:, :base] = True
        for row, index in enumerate(frontier):
            line = ancestors[pool.nodes[index].parent] + [past + row]
            mask[row, line] = True
            ancestors[index] = line
            pool.slots[index] = past + row
        position = base + pool.nodes[frontier[0]].depth - 1
        ids = [pool.nodes[index].token_id for index in frontier]
        return Level(frontier, ids, [position] * len(ids), mask)

    def _remember(self, proposal: Proposal, kept: Sequence[int], pool: Growing) -> None:
        draft = proposal.draft
        children: dict[tuple[int, int], int] = {}
        for node, parent in enumerate(draft.parents):
            children.setdefault(
                (parent, draft.ids[node]), node + 1
            )  # of equal ones the first, which has most below it
        fed = {node + 1: index for node, index in enumerate(kept) if index in pool.slots}
        self._drafted = _Drafted(children, {node: pool.slots[index] for node, index in fed.items()}, fed)

    def _take_over(self, token_id: int) -> None:
        """If ``token_id`` follows along the last draft and was fed, its slot becomes part of the sequence."""
        drafted = self._drafted
        if drafted is None:
            return
        node = drafted.children.get((drafted.node, token_id), 0)
        slot = drafted.slots.get(node)
        if slot is None or self.cached != self.length or not self.moved(drafted.pool[node], self.cached):
            self._drafted = None
            return
        # Path nodes lie at or behind their place in the sequence, so moving front to back overwrites none of them.
        self.cache.move(slot, self.cached)
        self.cached += 1
        self.counters.reused += 1
        drafted.node = node


def logits(answer: Answer) -> list[Entries]:
    """Per selected row: its likeliest tokens and their logits, of a run without noise."""
    scores = answer.log_probs if answer.scores is None else answer.scores
    return list(zip(answer.token_ids, scores, strict=True))


def children(
    parents: Sequence[int], answer: Answer, adjusting: Adjusting | None
) -> list[list[tuple[int, float]]]:
    """Each parent's children, ranked anew where the target's logits are adjusted."""
    return as_given(answer) if adjusting is None else adjusting.children(parents, answer)


def as_given(answer: Answer) -> list[list[tuple[int, float]]]:
    """Per selected row: its children as (target id, calibrated log-probability), best first."""
    ids, log_probs = answer.token_ids.tolist(), answer.log_probs.tolist()
    return [list(zip(row, scores, strict=True)) for row, scores in zip(ids, log_probs, strict=True)]
