"""The EAGLE-2 drafter on the device (Li et al. 2024, arXiv 2401.15077 and 2406.16858).

The graph joins each token with the *feature* (the target's final hidden state) of the position before it, and predicts
the feature at the token. Where a state row has come the feature is the target's; elsewhere the drafter goes on with
what it predicted itself. When rows come later, everything that was computed from predictions is fed once more, with
the true features. Trees are grown as for every kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from outrider.client.drafter import Budget, Drafter, Proposal, Rows, SequenceDrafter, common_prefix
from outrider.client.drafters.buffers import FIRST_CAPACITY, Mask, OwnCache, RowStore, grown
from outrider.client.drafters.graph import Answer, Array, Graph, Layout, OnnxGraph, Step
from outrider.client.drafters.growth import ROOT, Pool
from outrider.client.drafters.moa import ranked
from outrider.shared.noise import gumbel
from outrider.shared.sampling import Sampling

INGEST_CHUNK = 256
"""Tokens per run; bounds the mask and the time a proposal may have to wait."""

INGEST_ALONE = 32
"""Tokens in a row whose features the drafter predicts one after another; of a longer stretch without rows, what comes
before them goes through at once, with nothing known."""


@dataclass(slots=True)
class _Drafted:
    """Where the nodes of the last proposal lie in the cache, what was predicted there, and where ``accept`` stands."""

    children: dict[tuple[int, int], int]  # (node number, id) -> node number; 0 = the base
    slots: dict[int, int]  # node number -> cache slot
    features: dict[int, Array]  # node number -> predicted feature [H]
    node: int = 0


class Eagle2Drafter(SequenceDrafter):
    """Chains and dynamic trees from an EAGLE-2 graph."""

    kind = "eagle2"

    def __init__(self, graph: Graph, width: int) -> None:
        """``graph`` takes and returns features of ``width``."""
        super().__init__()
        layout = graph.layout
        self.graph = graph
        self.layout = layout
        self.cache = OwnCache(layout.own_layers, layout.own_width)
        self.rows = RowStore((width,), layout.max_position)
        self.cached = 0
        """Leading tokens of the sequence whose keys and values lie in slots 0 … and agree with today's features."""
        self._predicted = np.zeros((FIRST_CAPACITY, width), np.float32)
        """By position: what was predicted when its token was fed last."""
        self._drafted: _Drafted | None = None
        self._silence = np.zeros(len(layout.vocabulary), np.float32)
        self._noise: dict[tuple[int, int], Array] = {}

    # ---------------------------------------------------------------------------------------------- the five verbs

    def begin(self, ids: Sequence[int]) -> None:
        """Take over ``ids``, keep what is common with the old sequence; feeding waits, so that rows can come first."""
        self.rollback(common_prefix(self.ids, ids))
        self.ids.extend(ids[len(self.ids) :])
        self._drafted = None

    def add_rows(self, plane: int, start: int, rows: Rows) -> None:
        """Store rows [count, width]; raises ValueError if they do not fit the bundle.

        Tokens behind a feature that changes will be fed again: the first of them is the one after the first new row.
        """
        stop = start + len(rows)
        known = self._valid(max(stop, 0))[max(start, 0) :]
        old = self.rows.planes[0][start:stop][: len(known)].copy() if known.any() else None
        self.rows.add(plane, start, rows)
        self.counters.rows += len(rows)
        changed = ~known
        if old is not None:
            changed[: len(old)] |= (old != rows[: len(old)]).any(axis=1)
        fresh = np.flatnonzero(changed)
        if len(fresh):
            self.cached = min(self.cached, start + int(fresh[0]) + 1)

    def propose(self, budget: Budget) -> Proposal:
        """A chain, or an EAGLE-2 tree of at most ``max_nodes``, below the sequence's last token."""
        self._drafted = None
        room = self.layout.max_position - self.length
        depth = min(budget.max_depth, budget.max_nodes, room)
        if depth < 1 or not self.ids:
            return self.count(Proposal.empty())
        pool = Pool(replace(budget, max_depth=depth))
        features: dict[int, Array] = {}
        answer = self._feed_sequence(pool)
        features[ROOT] = self._predicted[self.length - 1]
        fresh = pool.add_level([ROOT], ranked(answer))
        ancestors: dict[int, list[int]] = {ROOT: []}
        while frontier := pool.frontier(fresh):
            answer = self._feed_level(pool, frontier, ancestors, features)
            fresh = pool.add_level(frontier, ranked(answer))
        proposal, kept = pool.proposal()
        self._remember(proposal, kept, pool, features)
        return self.count(proposal)

    def accept(self, ids: Sequence[int]) -> None:
        """Append ``ids``; slots and features of proposed nodes along them move into the sequence."""
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

    # ------------------------------------------------------------------------------------------------- feeding

    def _feed_sequence(self, pool: Pool) -> Answer:
        """Feed what is not cached, the last token always (its prediction is wanted); the answer for the last token."""
        last = self.length - 1
        self.cached = min(self.cached, last)
        self._room(self.length)
        valid = self._valid(self.length)
        blind = self._blind(valid)
        while True:
            start = self.cached
            ready = valid | blind
            # A span ends where the feature before the next token is only being predicted in the same run.
            stops = np.flatnonzero(~ready[start : min(last, start + INGEST_CHUNK - 1)])
            stop = start + 1 + int(stops[0]) if len(stops) else min(last + 1, start + INGEST_CHUNK)
            answer = self._feed_span(start, stop, valid, blind, pool if stop > last else None)
            if stop > last:
                return answer

    def _blind(self, valid: Mask) -> Mask:
        """Positions whose feature stays unknown: those of a long stretch without rows, but for its last tokens.

        Only tokens that were not fed count: where something was predicted once, that is used.
        """
        start, last = self.cached, self.length - 1
        blind = np.zeros(self.length, np.bool_)
        if np.count_nonzero(~valid[start:last]) > INGEST_ALONE:
            blind[start : last - INGEST_ALONE] = ~valid[start : last - INGEST_ALONE]
        return blind

    def _feed_span(self, start: int, stop: int, valid: Mask, blind: Mask, pool: Pool | None) -> Answer:
        """Feed tokens start … stop-1 of the sequence; with a ``pool``, its children for the last one."""
        count, first = stop - start, max(start - 1, 0)
        features = self._predicted[first : stop - 1].copy()
        true = np.flatnonzero(valid[first : stop - 1])
        features[true] = self.rows.planes[0][first + true]
        features[blind[first : stop - 1]] = 0.0
        before = np.zeros((count, features.shape[1]), np.float32)
        before[count - len(features) :] = features
        mask = np.tri(count, start + count, start, dtype=np.bool_)
        answer = self._run(self.ids[start:stop], range(start, stop), before, mask, (count - 1,), pool)
        self.cache.write(start, answer.keys, answer.values)
        self._predicted[start:stop] = predicted(answer)
        self._predicted[start:stop][blind[start:stop]] = 0.0
        self.cached = stop
        return answer

    def _feed_level(
        self, pool: Pool, frontier: list[int], ancestors: dict[int, list[int]], features: dict[int, Array]
    ) -> Answer:
        """Feed one level of the tree; new slots lie behind the sequence in the order of feeding."""
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
        before = np.stack([features[pool.nodes[index].parent] for index in frontier])
        answer = self._run(ids, [position] * len(ids), before, mask, range(len(ids)), pool)
        self.cache.write(past, answer.keys, answer.values)
        features.update(zip(frontier, predicted(answer), strict=True))
        return answer

    def _run(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        before: Array,  # [n, H]
        own_mask: Mask,  # [n, t+n]
        select: Sequence[int],
        pool: Pool | None,
    ) -> Answer:
        past = own_mask.shape[1] - len(ids)
        sampling = pool.budget.sampling if pool else Sampling()
        warm = sampling.temperature > 0
        self.counters.passes += 1
        self.counters.ingested += len(ids)
        return self.graph.run(
            Step(
                ids=np.array(ids, np.int64),
                positions=np.array(positions, np.int64),
                own_mask=own_mask,
                tli_mask=own_mask,
                own_keys=[buffer[:past] for buffer in self.cache.keys],
                own_values=[buffer[:past] for buffer in self.cache.values],
                rows=(),
                row_valid=np.zeros(0, np.bool_),
                select=np.array(select, np.int64),
                noise=self._coins(sampling.seed, positions[-1] + 1) if warm else self._silence,
                inv_temperature=1.0 / sampling.temperature if warm else 1.0,
                children=min(pool.shape.children if pool else 1, len(self.layout.vocabulary)),
                features=before,
            )
        )

    def _coins(self, seed: int, position: int) -> Array:
        """The shared noise of the token at ``position``, for the draft vocabulary: [V_d]."""
        key = (seed, position)
        if key not in self._noise:
            if len(self._noise) > 64:
                self._noise.clear()
            full = gumbel(seed, position, self.layout.vocabulary, len(self.layout.vocabulary))
            self._noise[key] = np.asarray(full, np.float32)
        return self._noise[key]

    def _room(self, size: int) -> None:
        if size > len(self._predicted):
            self._predicted = grown(self._predicted, max(size, 2 * len(self._predicted)))

    def _valid(self, size: int) -> Mask:
        """Which of the first ``size`` positions have rows."""
        valid = np.zeros(size, np.bool_)
        known = self.rows.valid[:size]
        valid[: len(known)] = known
        return valid

    # ------------------------------------------------------------------------------------------------------- reuse

    def _remember(self, proposal: Proposal, kept: list[int], pool: Pool, features: dict[int, Array]) -> None:
        draft = proposal.draft
        children = {(parent, draft.ids[node]): node + 1 for node, parent in enumerate(draft.parents)}
        fed = {node + 1: index for node, index in enumerate(kept) if index in pool.slots}
        slots = {node: pool.slots[index] for node, index in fed.items()}
        self._drafted = _Drafted(children, slots, {node: features[index] for node, index in fed.items()})

    def _take_over(self, token_id: int) -> None:
        """If ``token_id`` follows along the last draft and was fed, its slot and feature join the sequence."""
        drafted = self._drafted
        if drafted is None:
            return
        node = drafted.children.get((drafted.node, token_id), 0)
        slot = drafted.slots.get(node)
        # A row that came for the position before changes what the token has to be fed with.
        if slot is None or self.cached != self.length or self._valid(self.cached)[-1]:
            self._drafted = None
            return
        # Path nodes lie at or behind their place in the sequence, so moving front to back overwrites none of them.
        self.cache.move(slot, self.cached)
        self._room(self.cached + 1)
        self._predicted[self.cached] = drafted.features[node]
        self.cached += 1
        self.counters.reused += 1
        drafted.node = node


def predicted(answer: Answer) -> Array:
    """The features a graph returned [n, H]; ValueError if it returns none."""
    if answer.features is None:
        raise ValueError("the graph returns no features")
    return answer.features


def make_eagle2(data: bytes, layout: Layout) -> Drafter:
    """A drafter of a bundle's bytes. ValueError if the graph is not of this layout, or has not one plane of rows."""
    if len(layout.row_widths) != 1 or layout.features not in (0, layout.row_widths[0]):
        raise ValueError(
            f"an eagle2 drafter reads one plane of rows as wide as a feature, not {layout.row_widths}"
        )
    # The graph itself has no rows: here they become the features it takes.
    width = layout.row_widths[0]
    return Eagle2Drafter(OnnxGraph(data, replace(layout, row_widths=(), features=width)), width)
