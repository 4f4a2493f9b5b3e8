"""The Medusa drafter on the device (Cai et al. 2024, arXiv 2401.10774): heads on the newest final state, one run each.

Head k (from 0) drafts the token k + 2 positions after the state it reads; where the newest row is older than the last
token's predecessor, the first heads are behind and only the later ones serve. Beyond the last head there is nothing to
say: a device that is alone drafts a few tokens and then proposes nothing.

No head knows what the others drafted, so the tree cannot follow the draft: its form is fixed by how often each rank of
each head is right, as measured once on held-out text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.client.drafter import Budget, Drafter, Law, Proposal, Rows, SequenceDrafter, common_prefix
from outrider.client.drafters.buffers import RowStore
from outrider.client.drafters.drawing import Drawn, Entries, draw
from outrider.client.drafters.graph import Array, Layout, open_session
from outrider.client.drafters.growth import ROOT, best_path, worth_keeping
from outrider.client.drafters.shapes import DEFAULT_LAW, Node, chain, sparse_tree
from outrider.client.drafters.trees import Coins
from outrider.shared.draft import Draft
from outrider.shared.sampling import Sampling

MAX_HEADS = 64


class MedusaGraph:
    """The bundle's graph on onnxruntime: one final state in, the best tokens of every head out."""

    def __init__(self, model: bytes, layout: Layout) -> None:
        """Open a model in memory. Raises ValueError if it is not a graph of this layout."""
        if len(layout.row_widths) != 1:
            raise ValueError(f"a medusa drafter reads one plane of rows, not {len(layout.row_widths)}")
        self.layout = layout
        self._session = open_session(model)
        shapes = {tensor.name: tensor.shape for tensor in self._session.get_inputs()}
        wanted = {"feature", "noise", "inv_temperature", "inv_kappa", "k"}
        have = {tensor.name for tensor in self._session.get_outputs()}
        wrong = sorted(wanted ^ shapes.keys()) + sorted({"scores", "token_ids", "logsumexp"} - have)
        wrong += ["feature"] if shapes.get("feature") != [1, layout.row_widths[0]] else []
        wrong += ["noise"] if shapes.get("noise", [0, 0])[1:] != [len(layout.vocabulary)] else []
        if wrong:
            raise ValueError(f"the bundle's graph differs from its metadata at: {', '.join(wrong)}")
        heads = shapes["noise"][0]
        if type(heads) is not int or not 1 <= heads <= MAX_HEADS:
            raise ValueError(f"the bundle's graph must have 1 to {MAX_HEADS} heads, not {heads}")
        self.heads = heads

    def run(
        self, feature: Array, noise: Array, temperature: float, children: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Ids and calibrated log-probabilities, both [heads, children], of feature [1, H] under noise [heads, V_d].

        At a ``temperature`` above 0 scores are logits / T + noise, of which T / kappa is calibrated; else kappa alone.
        """
        warmth = temperature if temperature > 0 else 1.0
        inv_kappa = warmth / self.layout.kappa_at(temperature)
        feeds: dict[str, Any] = {
            "feature": feature,
            "noise": noise,
            "inv_temperature": np.array([1.0 / warmth], np.float32),
            "inv_kappa": np.array([inv_kappa], np.float32),
            "k": np.array([children], np.int64),
        }
        scores, ids, total = self._session.run(["scores", "token_ids", "logsumexp"], feeds)
        return ids, scores.astype(np.float64) * inv_kappa - total.astype(np.float64)[:, None]

    def logits(self, feature: Array, entries: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Ids and logits of every head's likeliest tokens, both [heads, entries], of feature [1, H]."""
        none = np.zeros((self.heads, len(self.layout.vocabulary)), np.float32)
        kappa = self.layout.kappa_at(0.0)
        ids, scaled = self.run(feature, none, 0.0, min(entries, len(self.layout.vocabulary)))
        return ids, scaled * kappa


class MedusaDrafter(SequenceDrafter):
    """Chains and fixed sparse trees from a Medusa graph."""

    kind = "medusa"

    def __init__(self, graph: MedusaGraph) -> None:
        """Trees have the form that ``confidence`` gives them, or `DEFAULT_LAW` where nothing was measured."""
        super().__init__()
        self.graph = graph
        self.layout = graph.layout
        self.rows = RowStore(graph.layout.row_widths, graph.layout.max_position)
        self.coins = Coins(self.layout.vocabulary)

    # ---------------------------------------------------------------------------------------------- the five verbs

    def begin(self, ids: Sequence[int]) -> None:
        """Take over ``ids``; rows of what is common with the old sequence stay."""
        self.rollback(common_prefix(self.ids, ids))
        self.ids.extend(ids[len(self.ids) :])

    def add_rows(self, plane: int, start: int, rows: Rows) -> None:
        """Store rows [count, width]; raises ValueError if they do not fit the bundle. Only the newest is read."""
        self.rows.add(plane, start, rows)
        self.counters.rows += len(rows)

    def propose(self, budget: Budget) -> Proposal:
        """A chain, or a fixed tree of at most ``max_nodes``; empty where no head reaches beyond the last token."""
        newest = self.rows.span(self.length - 1) - 1 if self.length else -1
        behind = self.length - 2 - newest
        room = min(self.layout.max_position - self.length, self.graph.heads - behind)
        depth = min(budget.max_depth, budget.max_nodes, room)
        if depth < 1 or newest < 0:
            return self.count(Proposal.empty())
        law = _from_head(self.confidence.at(budget.sampling.temperature) or DEFAULT_LAW, behind, depth)
        if budget.drawing is not None:
            drawn = Drawn(replace(budget, max_depth=depth), budget.drawing, self.ids, law)
            return self.count(self._counted(self._draw(drawn, newest, behind)))
        nodes = sparse_tree(law, budget.max_nodes) if _branching(budget) else chain(depth)
        children = min(1 + max(node.rank for node in nodes), len(self.layout.vocabulary))
        ids, log_probs = self._run(newest, behind, budget.sampling, children)
        return self.count(self._counted(_proposal(nodes, ids[behind:], log_probs[behind:], budget)))

    def rollback(self, length: int) -> None:
        """Cut the sequence and its rows to ``length``."""
        if length >= self.length:
            return
        super().rollback(length)
        self.rows.cut(self.length)

    # ------------------------------------------------------------------------------------------------------ the run

    def _run(
        self, newest: int, behind: int, sampling: Sampling, children: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        warm = sampling.temperature > 0
        noise = np.zeros((self.graph.heads, len(self.layout.vocabulary)), np.float32)
        if warm:
            for head in range(behind, self.graph.heads):
                noise[head] = self.coins.at(sampling.seed, newest + 2 + head)
        feature = self.rows.planes[0][newest : newest + 1]
        return self.graph.run(feature, noise, sampling.temperature, children)

    def _draw(self, drawn: Drawn, newest: int, behind: int) -> Proposal:
        """Every node of a depth has the law of its head, but for warps that look at the text before it."""
        ids, logits = self.graph.logits(self.rows.planes[0][newest : newest + 1], drawn.drawing.top)

        def entries(node: int) -> Entries:
            head = behind + (0 if node == ROOT else drawn.nodes[node].depth)
            return ids[head], logits[head]

        return draw(drawn, entries)

    def _counted(self, proposal: Proposal) -> Proposal:
        """One run gave all levels. Time is reckoned by levels, so it counts as one for each that was of use."""
        self.counters.passes += max(proposal.draft.depths, default=0)
        self.counters.ingested += len(set(proposal.draft.parents))
        return proposal


# ------------------------------------------------------------------------------------------------------------ the tree


def _branching(budget: Budget) -> bool:
    """Whether siblings are wanted, and affordable."""
    return budget.tree and budget.max_nodes >= 3


def _from_head(law: Law, first: int, depth: int) -> Law:
    """The law of the heads ``first`` …; heads beyond its end are like its last."""
    return tuple(law[min(first + level, len(law) - 1)] for level in range(depth))


def _proposal(
    nodes: Sequence[Node], ids: NDArray[np.int64], log_probs: NDArray[np.float64], budget: Budget
) -> Proposal:
    """Tokens into a tree's places; what lies below the floor, or is not worth its verification, is left out."""
    number = {0: 0}
    totals = [0.0]
    kept: list[tuple[int, int, float]] = []  # id, parent, log-probability
    for place, node in enumerate(nodes, start=1):
        if node.parent not in number or node.rank >= ids.shape[1]:
            continue
        log_prob = min(float(log_probs[node.depth - 1, node.rank]), 0.0)
        total = totals[number[node.parent]] + log_prob
        if kept and total < budget.floor:
            continue
        kept.append((int(ids[node.depth - 1, node.rank]), number[node.parent], log_prob))
        number[place] = len(kept)
        totals.append(total)
    if budget.prices is not None:
        count, _ = worth_keeping([math.exp(total) for total in totals[1:]], budget.prices)
        kept = kept[:count]
    parents = tuple(parent for _, parent, _ in kept)
    draft = Draft(tuple(token_id for token_id, _, _ in kept), parents)
    return Proposal(draft, tuple(log_prob for _, _, log_prob in kept), best_path(parents))


def make_medusa(data: bytes, layout: Layout) -> Drafter:
    """A drafter of a bundle's bytes. ValueError if the graph is not of this layout."""
    return MedusaDrafter(MedusaGraph(data, layout))
