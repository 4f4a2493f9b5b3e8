"""Drafting with a graph: Mixture of Attentions (Zimmer et al. 2025, sections 2 and 3), and kinds that work alike.

MoA's self-attention runs over the device's own token embeddings, its cross-attention reads the state rows the verifier
sent. Accepted drafted tokens are not computed again: their slots are moved into place. Where own keys and values depend
on ids and positions only (one block, N = 0) that is for good, elsewhere until rows come below a token that has none.
Positions whose rows have not come are masked; without any row it drafts all the same. `glide` (other rows) and
`independent` (no rows) differ from it in their graph only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.client.drafter import Rows
from outrider.client.drafters.buffers import Mask
from outrider.client.drafters.graph import Answer, Graph, Step
from outrider.client.drafters.growth import Growing
from outrider.client.drafters.trees import INGEST_CHUNK, Level, TreeDrafter
from outrider.shared.sampling import Sampling


class GraphDrafter(TreeDrafter):
    """Chains and dynamic trees from a graph; the kind is the bundle's.

    In layers that read own keys and values only where there are no rows, a token without a row has keys and values made
    of the rows below it. So when rows come below such a token, it is fed once more, and a proposal is the same whenever
    they came.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, graph.layout.row_widths)
        self.kind = graph.layout.kind
        self._news: int | None = None
        """First of the rows that came since anything was fed."""

    def begin(self, ids: Sequence[int]) -> None:
        """Take over ``ids``, keep what is common with the old sequence, and consume all but the last token."""
        super().begin(ids)
        self._ingest(min(self.length, self.layout.max_position) - 1)

    def add_rows(self, plane: int, start: int, rows: Rows) -> None:
        """Store rows [count, width]; raises ValueError if they do not fit the bundle.

        What they make stale is decided when something is fed: until then, its own row may come.
        """
        super().add_rows(plane, start, rows)
        if self.layout.row_mask and self.rows.valid[start : start + len(rows)].any():
            self._news = start if self._news is None else min(start, self._news)

    # ------------------------------------------------------------------------------------------------- feeding

    def _settle(self) -> None:
        """Of what is cached, let go of the first token that has no row, but new rows below it, and all behind it."""
        if self._news is not None:
            bare = np.flatnonzero(~self.rows.known(self.cached)[self._news :])
            if len(bare):
                self.cached = self._news + int(bare[0])
            self._news = None

    def _ingest(self, stop: int) -> None:
        """Consume the sequence up to ``stop`` in chunks, without looking at what the graph predicts."""
        self._settle()
        while self.cached < stop:
            start, end = self.cached, self._chunk_end(stop)
            mask = self.causal(start, end - start)
            rows = self.rows.span(start)
            answer = self._run(self.ids[start:end], range(start, end), mask, rows, 1, Sampling())
            self.cache.write(start, answer.keys, answer.values)
            self.cached = end

    def _chunk_end(self, stop: int) -> int:
        """Where the chunk that begins with what is not cached ends: before a token that sees more rows than it does."""
        start, end = self.cached, min(self.cached + INGEST_CHUNK, stop)
        if not self.layout.row_mask:
            return end
        known = self.rows.known(end)[start:]
        first = np.flatnonzero(known[:-1] & ~known[1:])
        return start + 1 + int(first[0]) if len(first) else end

    def feed_sequence(self, pool: Growing) -> Answer:
        """Consume the last token (again, if it was cached: its keys stay, its prediction is wanted)."""
        self._ingest(self.length - 1)
        start = self.cached = min(self.cached, self.length - 1)
        rows = self.rows.span(self.length - 1)
        positions = range(start, self.length)
        mask = self.causal(start, len(positions))
        answer = self._run(self.ids[start:], positions, mask, rows, pool.shape.children, pool.sampling)
        self.cache.write(start, answer.keys, answer.values)
        self.cached = self.length
        if self.layout.row_mask and self.rows.known(self.length)[-1]:
            self._news = self.length - 1  # a row of the last token is not read before something follows
        return answer

    def feed_level(self, pool: Growing, level: Level) -> Answer:
        """Consume one level of the tree."""
        rows = self.rows.span(self.length - 1)
        children, sampling = pool.shape.children, pool.sampling
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
