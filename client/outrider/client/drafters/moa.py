"""Drafting with a graph: Mixture of Attentions (Zimmer et al. 2025, sections 2 and 3), and kinds that work alike.

MoA's self-attention runs over the device's own token embeddings, its cross-attention reads the state rows the verifier
sent. Own keys and values depend on ids and positions only (one block, N = 0), so accepted drafted tokens are never
computed again: their slots are moved into place. Positions whose rows have not come are masked; without any row it
drafts all the same. `glide` (other rows) and `independent` (no rows) differ from it in their graph only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.client.drafters.buffers import Mask
from outrider.client.drafters.graph import Answer, Graph, Step
from outrider.client.drafters.growth import Pool
from outrider.client.drafters.trees import INGEST_CHUNK, Level, TreeDrafter
from outrider.shared.sampling import Sampling


class GraphDrafter(TreeDrafter):
    """Chains and dynamic trees from a graph; the kind is the bundle's."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, graph.layout.row_widths)
        self.kind = graph.layout.kind

    def begin(self, ids: Sequence[int]) -> None:
        """Take over ``ids``, keep what is common with the old sequence, and consume all but the last token."""
        super().begin(ids)
        self._ingest(min(self.length, self.layout.max_position) - 1)

    # ------------------------------------------------------------------------------------------------- feeding

    def _ingest(self, stop: int) -> None:
        """Consume the sequence up to ``stop`` in chunks, without looking at what the graph predicts."""
        while self.cached < stop:
            start = self.cached
            end = min(start + INGEST_CHUNK, stop)
            rows = self.rows.span(start)
            mask = self.causal(start, end - start)
            answer = self._run(self.ids[start:end], range(start, end), mask, rows, 1, Sampling())
            self.cache.write(start, answer.keys, answer.values)
            self.cached = end

    def feed_sequence(self, pool: Pool) -> Answer:
        """Consume the last token (again, if it was cached: its keys stay, its prediction is wanted)."""
        self._ingest(self.length - 1)
        start = self.cached = min(self.cached, self.length - 1)
        rows = self.rows.span(self.length - 1)
        positions = range(start, self.length)
        mask = self.causal(start, len(positions))
        answer = self._run(self.ids[start:], positions, mask, rows, pool.shape.children, pool.budget.sampling)
        self.cache.write(start, answer.keys, answer.values)
        self.cached = self.length
        return answer

    def feed_level(self, pool: Pool, level: Level) -> Answer:
        """Consume one level of the tree."""
        rows = self.rows.span(self.length - 1)
        children, sampling = pool.shape.children, pool.budget.sampling
        return self._run(level.ids, level.positions, level.mask, rows, children, sampling, every=True)

    def _run(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        own_mask: Mask,  # [n, t+n]
        rows: int,
        children: int,
        sampling: Sampling,
        *,
        every: bool = False,
    ) -> Answer:
        past = own_mask.shape[1] - len(ids)
        valid = self.rows.valid[:rows]
        select = range(len(ids)) if every else (len(ids) - 1,)
        noise, inv_temperature = self.coins.of(sampling, positions[-1] + 1)
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
                noise=noise,
                inv_temperature=inv_temperature,
                children=min(children, len(self.layout.vocabulary)),
            )
        )

    @staticmethod
    def _tli_mask(own_mask: Mask, valid: Mask) -> Mask:
        """As the own mask, but a position whose row is there is read from the row; a token always sees itself."""
        mask = own_mask.copy()
        mask[:, : len(valid)] &= ~valid
        count, width = own_mask.shape
        rows = np.arange(count)
        mask[rows, width - count + rows] = True
        return mask
