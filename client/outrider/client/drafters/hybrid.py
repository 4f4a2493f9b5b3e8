"""A model's draft and a copy of earlier text in one tree.

Both say how likely each of their tokens is, on one scale (calibrated on what the target really wrote). Where both
speak, each has heard the other: two guesses that differ cannot both be right, and one that two had is surer than each
alone. So their nodes compete for the budget by the probability of the whole path. Copying costs no run of the model and
no state rows; where text repeats itself, it is right more often than the model, elsewhere it is silent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from outrider.client.drafter import Budget, Drafter, Prices, Proposal, Rows
from outrider.client.drafters.growth import best_path, worth_keeping
from outrider.client.drafters.ngram import NgramDrafter
from outrider.client.drafters.shapes import DEFAULT_LAW
from outrider.shared.draft import Draft

LEFT = 0.01
"""What is left for other tokens, at least: nobody is surer than that when another disagrees."""

_BASE = -1


class HybridDrafter:
    """Any drafter, and prompt lookup beside it."""

    kind = "hybrid"

    def __init__(self, model: Drafter, copy: Drafter | None = None) -> None:
        self.model = model
        self.copy = copy if copy is not None else NgramDrafter()
        self.counters = model.counters
        self.confidence = model.confidence

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return self.model.length

    def begin(self, ids: Sequence[int]) -> None:
        """Both take over ``ids``."""
        self.model.begin(ids)
        self.copy.begin(ids)

    def add_rows(self, plane: int, start: int, rows: Rows) -> None:
        """State rows are the model's."""
        self.model.add_rows(plane, start, rows)

    def propose(self, budget: Budget) -> Proposal:
        """The likeliest nodes of both drafts; for a chain, the one of which more is expected to be accepted."""
        if budget.drawing is not None:
            return self._drawn(budget)
        drafted = self.model.propose(budget)
        # A copy costs no run of the model; what of it is worth verifying is decided on both together.
        copied = self.copy.propose(replace(budget, prices=None))
        merged = merge((drafted, copied), budget)
        self.counters.nodes += len(merged.draft) - len(drafted.draft)
        return merged

    def _drawn(self, budget: Budget) -> Proposal:
        """The whole draft of one of the two: of the copy where it is surer of the next token than the model usually is.

        Which one is decided by the text before the draft, so what is drawn is drawn from the law that is told. Nodes
        of both in one tree would have been chosen.
        """
        sure = self.copy.propose(Budget(1, 1, sampling=budget.sampling)).log_probs
        usual = self.confidence.at(budget.sampling.temperature) or DEFAULT_LAW
        if sure and math.exp(sure[0]) > usual[0][0]:
            return self.copy.propose(replace(budget, prices=None))
        return self.model.propose(budget)

    def accept(self, ids: Sequence[int]) -> None:
        """Both append ``ids``; the model reuses its work as far as it had drafted them itself."""
        self.model.accept(ids)
        self.copy.accept(ids)

    def rollback(self, length: int) -> None:
        """Both cut the sequence."""
        self.model.rollback(length)
        self.copy.rollback(length)


@dataclass(slots=True)
class _Node:
    token_id: int
    parent: int
    depth: int
    log_prob: float
    total: float = 0.0


def merge(proposals: Sequence[Proposal], budget: Budget) -> Proposal:
    """One proposal within ``budget``, each path once, its probabilities by `agreed`.

    Kept are the nodes of the largest path probability (earlier proposals first among equals), so by these probabilities
    no one proposal's nodes are expected to bring more accepted tokens. Where the budget names prices, only as many are
    kept as are worth verifying.
    """
    nodes = _union(proposals)
    if budget.tree:
        kept = _likeliest_nodes(nodes, budget)
    else:
        kept = _likeliest_chain(nodes, min(budget.max_nodes, budget.max_depth), budget.prices)
    number = {index: node for node, index in enumerate(kept)}
    draft = Draft(
        ids=tuple(nodes[index].token_id for index in kept),
        parents=tuple(
            0 if nodes[index].parent == _BASE else number[nodes[index].parent] + 1 for index in kept
        ),
    )
    return Proposal(draft, tuple(nodes[index].log_prob for index in kept), best_path(draft.parents))


def agreed(opinions: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Token → probability, from the opinions of several that know different things: each token → probability.

    Taken as independent readings of one truth, so what each gives to a token is multiplied, and what it gives to none
    of its own stands for all others. A single opinion stays as it is.
    """
    rest = [max(1.0 - sum(opinion.values()), LEFT) for opinion in opinions]
    tokens = dict.fromkeys(token for opinion in opinions for token in opinion)
    weights = {
        token: math.prod(opinion.get(token, left) for opinion, left in zip(opinions, rest, strict=True))
        for token in tokens
    }
    whole = sum(weights.values()) + math.prod(rest)
    return {token: weight / whole for token, weight in weights.items()}


def _union(proposals: Sequence[Proposal]) -> list[_Node]:
    """All nodes, each path once; a parent before its children."""
    nodes: list[_Node] = []
    places: dict[tuple[int, int], int] = {}
    said: dict[
        int, list[dict[int, float]]
    ] = {}  # parent -> of each proposal that has children there: token -> share
    for proposal in proposals:
        here: list[int] = []  # node of this proposal -> index in nodes
        own: dict[int, dict[int, float]] = {}
        draft = proposal.draft
        for token_id, parent, log_prob in zip(draft.ids, draft.parents, proposal.log_probs, strict=True):
            above = here[parent - 1] if parent else _BASE
            index = places.setdefault((above, token_id), len(nodes))
            if index == len(nodes):
                depth = nodes[above].depth + 1 if parent else 1
                nodes.append(_Node(token_id, above, depth, log_prob))
            own.setdefault(above, {})[token_id] = math.exp(log_prob)
            here.append(index)
        for above, opinion in own.items():
            said.setdefault(above, []).append(opinion)
    for above, opinions in said.items():
        if len(opinions) > 1:
            for token_id, share in agreed(opinions).items():
                nodes[places[above, token_id]].log_prob = math.log(share)
    for node in nodes:
        node.total = node.log_prob + (0.0 if node.parent == _BASE else nodes[node.parent].total)
    return nodes


def _likeliest_nodes(nodes: Sequence[_Node], budget: Budget) -> list[int]:
    """The best of all, parents first: a path never gets likelier, and among equals the shallower stands before."""
    fitting = [index for index, node in enumerate(nodes) if node.depth <= budget.max_depth]
    fitting.sort(key=lambda index: (-nodes[index].total, nodes[index].depth, index))
    kept = fitting[: max(budget.max_nodes, 0)]
    if budget.prices is not None and kept:
        kept = kept[: worth_keeping([math.exp(nodes[index].total) for index in kept], budget.prices)[0]]
    return kept


def _likeliest_chain(nodes: Sequence[_Node], depth: int, prices: Prices | None) -> list[int]:
    """The path of at most ``depth`` nodes with the largest expected number of accepted tokens, beyond its price."""
    end, most = _BASE, -math.inf
    expected: list[float] = []
    for index, node in enumerate(nodes):
        above = 0.0 if node.parent == _BASE else expected[node.parent]
        expected.append(above + math.exp(node.total))
        price = prices.verify[min(node.depth, len(prices.verify) - 1)] if prices is not None else 0.0
        if node.depth <= depth and expected[index] - price > most:
            end, most = index, expected[index] - price
    path: list[int] = []
    while end != _BASE:
        path.append(end)
        end = nodes[end].parent
    return path[::-1]
