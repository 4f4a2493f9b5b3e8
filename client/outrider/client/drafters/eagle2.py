"""The EAGLE-2 drafter on the device (Li et al. 2024, arXiv 2401.15077 and 2406.16858).

The graph joins each token with the *feature* (the target's final hidden state) of the position before it, and predicts
the feature at the token. Where a state row has come the feature is the target's; elsewhere the drafter goes on with
what it predicted itself. When rows come later, everything that was computed from predictions is fed once more, with
the true features. Trees are grown as for every kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from outrider.client.drafter import Drafter, Rows
from outrider.client.drafters.buffers import FIRST_CAPACITY, Mask, grown
from outrider.client.drafters.graph import Answer, Array, Graph, Layout, OnnxGraph, Step
from outrider.client.drafters.growth import ROOT, Growing
from outrider.client.drafters.trees import INGEST_CHUNK, Level, TreeDrafter
from outrider.shared.sampling import Sampling

INGEST_ALONE = 32
"""Tokens in a row whose features the drafter predicts one after another; of a longer stretch without rows, what comes
before them goes through at once, with nothing known."""


class Eagle2Drafter(TreeDrafter):
    """Chains and dynamic trees from an EAGLE-2 graph; feeding waits for a proposal, so that rows can come first."""

    kind = "eagle2"

    def __init__(self, graph: Graph, width: int) -> None:
        """``graph`` takes and returns features of ``width``.

        Cached are only tokens whose keys and values agree with today's features.
        """
        super().__init__(graph, (width,))
        self._predicted = np.zeros((FIRST_CAPACITY, width), np.float32)
        """By position: what was predicted when its token was fed last."""
        self._features: dict[int, Array] = {}
        """Predicted at the nodes of the last draft that were fed, by pool index; ROOT = the sequence's last token."""

    def add_rows(self, plane: int, start: int, rows: Rows) -> None:
        """Store rows [count, width]; raises ValueError if they do not fit the bundle.

        Tokens behind a feature that changes will be fed again: the first of them is the one after the first new row.
        """
        stop = start + len(rows)
        known = self.rows.known(max(stop, 0))[max(start, 0) :]
        old = self.rows.planes[0][start:stop][: len(known)].copy() if known.any() else None
        super().add_rows(plane, start, rows)
        changed = ~known
        if old is not None:
            changed[: len(old)] |= (old != rows[: len(old)]).any(axis=1)
        fresh = np.flatnonzero(changed)
        if len(fresh):
            self.cached = min(self.cached, start + int(fresh[0]) + 1)

    # ------------------------------------------------------------------------------------------------- feeding

    def feed_sequence(self, pool: Growing) -> Answer:
        """Feed what is not cached, the last token always (its prediction is wanted); the answer for the last token."""
        last = self.length - 1
        self.cached = min(self.cached, last)
        self._room(self.length)
        valid = self.rows.known(self.length)
        blind = self._blind(valid)
        while True:
            start = self.cached
            ready = valid | blind
            # A span ends where the feature before the next token is only being predicted in the same run.
            stops = np.flatnonzero(~ready[start : min(last, start + INGEST_CHUNK - 1)])
            stop = start + 1 + int(stops[0]) if len(stops) else min(last + 1, start + INGEST_CHUNK)
            answer = self._feed_span(start, stop, valid, blind, pool if stop > last else None)
            if stop > last:
                self._features = {ROOT: self._predicted[last]}
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

    def _feed_span(self, start: int, stop: int, valid: Mask, blind: Mask, pool: Growing | None) -> Answer:
        """Feed tokens start … stop-1 of the sequence; with a ``pool``, its children for the last one."""
        count, first = stop - start, max(start - 1, 0)
        features = self._predicted[first : stop - 1].copy()
        true = np.flatnonzero(valid[first : stop - 1])
        features[true] = self.rows.planes[0][first + true]
        features[blind[first : stop - 1]] = 0.0
        before = np.zeros((count, features.shape[1]), np.float32)
        before[count - len(features) :] = features
        mask = self.causal(start, count)
        answer = self._run(self.ids[start:stop], range(start, stop), before, mask, (count - 1,), pool)
        self.cache.write(start, answer.keys, answer.values)
        self._predicted[start:stop] = predicted(answer)
        self._predicted[start:stop][blind[start:stop]] = 0.0
        self.cached = stop
        return answer

    def feed_level(self, pool: Growing, level: Level) -> Answer:
        """Feed one level of the tree, each token with what was predicted at its parent."""
        before = np.stack([self._features[pool.nodes[index].parent] for index in level.nodes])
        answer = self._run(level.ids, level.positions, before, level.mask, range(len(level.ids)), pool)
        self._features.update(zip(level.nodes, predicted(answer), strict=True))
        return answer

    def _run(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        before: Array,  # [n, H]
        own_mask: Mask,  # [n, t+n]
        select: Sequence[int],
        pool: Growing | None,
    ) -> Answer:
        past = own_mask.shape[1] - len(ids)
        sampling = pool.sampling if pool else Sampling()
        noise, inv_temperature = self.coins.of(sampling, positions[-1] + 1)
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
                noise=noise,
                inv_temperature=inv_temperature,
                children=min(pool.shape.children if pool else 1, len(self.layout.vocabulary)),
                features=before,
            )
        )

    def moved(self, node: int, position: int) -> bool:
        """Keep the drafted node's feature, unless a row came before it: that changes what it has to be fed with."""
        if self.rows.known(position)[-1]:
            return False
        self._room(position + 1)
        self._predicted[position] = self._features[node]
        return True

    def _room(self, size: int) -> None:
        if size > len(self._predicted):
            self._predicted = grown(self._predicted, max(size, 2 * len(self._predicted)))


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
