"""Drafting with a graph: Mixture of Attentions (Zimmer et al. 2025, sections 2 and 3), and kinds that work alike.

MoA's self-attention runs over the device's own token embeddings, its cross-attention reads the state rows the verifier
sent. Own keys and values depend on ids and positions only (one block, N = 0), so accepted drafted tokens are never
computed again: their slots are moved into place. Positions whose rows have not come are masked; without any row it
drafts all the same. `glide` (other rows) and `independent` (no rows) differ from it in their graph only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from outrider.client.drafter import Budget, Proposal, Rows, SequenceDrafter, common_prefix
from outrider.client.drafters.buffers import Mask, OwnCache, RowStore
from outrider.client.drafters.graph import Answer, Array, Graph, Step
from outrider.client.drafters.growth import ROOT, Pool
from outrider.shared.noise import gumbel
from outrider.shared.sampling import Sampling

INGEST_CHUNK = 256
"""Prompt tokens per run; bounds the mask and the time a proposal may have to wait."""


@dataclass(slots=True)
class _Drafted:
    """Where the nodes of the last proposal lie in the cache, and how far ``accept`` has walked along them."""

    children: dict[tuple[int, int], int]  # (node number, id) -> node number; 0 = the base
    slots: dict[int, int]  # node number -> cache slot
    node: int = 0


class GraphDrafter(SequenceDrafter):
    """Chains and dynamic trees from a graph; the kind is the bundle's."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        layout = graph.layout
        self.kind = layout.kind
        self.graph = graph
        self.layout = layout
        self.cache = OwnCache(layout.own_layers, layout.own_width)
        self.rows = RowStore(layout.row_widths, layout.max_position)
        self.cached = 0
        """Leading tokens of the sequence whose keys and values lie in slots 0 …"""
        self._drafted: _Drafted | None = None
        self._silence = np.zeros(len(layout.vocabulary), np.float32)
        self._noise: dict[tuple[int, int], Array] = {}

    # ---------------------------------------------------------------------------------------------- the five verbs

    def begin(self, ids: Sequence[int]) -> None:
        """Take over ``ids``, keep what is common with the old sequence, and consume all but the last token."""
        self.rollback(common_prefix(self.ids, ids))
        self.ids.extend(ids[len(self.ids) :])
        self._drafted = None
        self._ingest(min(self.length, self.layout.max_position) - 1)

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
        pool = Pool(_limited(budget, depth))
        self._ingest(self.length - 1)
        answer = self._feed_pending(pool)
        fresh = pool.add_level([ROOT], ranked(answer))
        ancestors: dict[int, list[int]] = {ROOT: []}
        while frontier := pool.frontier(fresh):
            answer = self._feed_level(pool, frontier, ancestors)
            fresh = pool.add_level(frontier, ranked(answer))
        proposal, kept = pool.proposal()
        self._remember(proposal, kept, pool)
        return self.count(proposal)

    def accept(self, ids: Sequence[int]) -> None:
        """Append ``ids``; slots of proposed nodes along them move into the sequence."""
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

    def _ingest(self, stop: int) -> None:
        """Consume the sequence up to ``stop`` in chunks, without looking at what the graph predicts."""
        while self.cached < stop:
            start = self.cached
            end = min(start + INGEST_CHUNK, stop)
            rows = self.rows.span(start)
            answer = self._run(
                self.ids[start:end], range(start, end), self._causal(end - start), rows, 1, None
            )
            self.cache.write(start, answer.keys, answer.values)
            self.cached = end

    def _feed_pending(self, pool: Pool) -> Answer:
        """Consume the last token (again, if it was cached: its keys stay, its prediction is wanted)."""
        start = self.cached = min(self.cached, self.length - 1)
        rows = self.rows.span(self.length - 1)
        positions = range(start, self.length)
        mask = self._causal(len(positions))
        answer = self._run(self.ids[start:], positions, mask, rows, pool.shape.children, pool.budget.sampling)
        self.cache.write(start, answer.keys, answer.values)
        self.cached = self.length
        return answer

    def _feed_level(self, pool: Pool, frontier: list[int], ancestors: dict[int, list[int]]) -> Answer:
        """Consume one level of the tree; new slots lie behind the sequence in the order of feeding."""
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
        rows = self.rows.span(base - 1)
        shape, sampling = pool.shape, pool.budget.sampling
        answer = self._run(ids, [position] * len(ids), mask, rows, shape.children, sampling, every=True)
        self.cache.write(past, answer.keys, answer.values)
        return answer

    def _run(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        own_mask: Mask,  # [n, t+n]
        rows: int,
        children: int,
        sampling: Sampling | None,
        *,
        every: bool = False,
    ) -> Answer:
        past = own_mask.shape[1] - len(ids)
        valid = self.rows.valid[:rows]
        select = range(len(ids)) if every else (len(ids) - 1,)
        warm = sampling is not None and sampling.temperature > 0
        self.counters.passes += 1
        self.counters.ingested += len(ids)
        return self.graph.run(
            Step(
                ids=np.array(ids, np.int64),
                positions=np.array(positions, np.int64),
                own_mask=own_mask,
                tli_mask=self._tli_mask(own_mask, valid) if self.layout.row_mask else own_mask,
                own_keys=[buffer[:past] for buffer in self.cache.keys],
                own_values=[buffer[:past] for buffer in self.cache.values],
                rows=[buffer[:rows] for buffer in self.rows.planes],
                row_valid=valid,
                select=np.array(select, np.int64),
                noise=self._coins(sampling.seed, positions[-1] + 1) if sampling and warm else self._silence,
                inv_temperature=1.0 / sampling.temperature if sampling and warm else 1.0,
                children=min(children, len(self.layout.vocabulary)),
            )
        )

    # -------------------------------------------------------------------------------------------- masks and coins

    def _causal(self, count: int) -> Mask:
        """Mask of ``count`` consecutive tokens behind the cached ones: [count, cached+count]."""
        return np.tri(count, self.cached + count, self.cached, dtype=np.bool_)

    @staticmethod
    def _tli_mask(own_mask: Mask, valid: Mask) -> Mask:
        """As the own mask, but a position whose row is there is read from the row; a token always sees itself."""
        mask = own_mask.copy()
        mask[:, : len(valid)] &= ~valid
        count, width = own_mask.shape
        rows = np.arange(count)
        mask[rows, width - count + rows] = True
        return mask

    def _coins(self, seed: int, position: int) -> Array:
        """The shared noise of the token at ``position``, for the draft vocabulary: [V_d]."""
        key = (seed, position)
        if key not in self._noise:
            if len(self._noise) > 64:
                self._noise.clear()
            full = gumbel(seed, position, self.layout.vocabulary, len(self.layout.vocabulary))
            self._noise[key] = np.asarray(full, np.float32)
        return self._noise[key]

    # ------------------------------------------------------------------------------------------------------- reuse

    def _remember(self, proposal: Proposal, kept: list[int], pool: Pool) -> None:
        draft = proposal.draft
        children = {(parent, draft.ids[node]): node + 1 for node, parent in enumerate(draft.parents)}
        slots = {node + 1: pool.slots[index] for node, index in enumerate(kept) if index in pool.slots}
        self._drafted = _Drafted(children, slots)

    def _take_over(self, token_id: int) -> None:
        """If ``token_id`` follows along the last draft and was fed, its slot becomes part of the sequence."""
        drafted = self._drafted
        if drafted is None:
            return
        node = drafted.children.get((drafted.node, token_id), 0)
        slot = drafted.slots.get(node)
        if slot is None or self.cached != self.length:
            self._drafted = None
            return
        # Path nodes lie at or behind their place in the sequence, so moving front to back overwrites none of them.
        self.cache.move(slot, self.cached)
        self.cached += 1
        self.counters.reused += 1
        drafted.node = node


def ranked(answer: Answer) -> list[list[tuple[int, float]]]:
    """Per selected row: its children as (target id, calibrated log-probability), best first."""
    ids, log_probs = answer.token_ids.tolist(), answer.log_probs.tolist()
    return [list(zip(row, scores, strict=True)) for row, scores in zip(ids, log_probs, strict=True)]


def _limited(budget: Budget, depth: int) -> Budget:
    return replace(budget, max_depth=depth)
