"""Drafts whose tokens are drawn, for rules that compare the draft's law with the target's.

Such a rule is exact for any law, if the tokens really came from the law it is told. So a node's law is cut to few ids
and rounded to integers first, and its children are drawn from what is then left, which is what the verifier is sent
(`outrider.shared.laws`). Nothing drawn is dropped, re-ranked or drawn again. What may be decided freely, as long as it
is decided before a node's children are drawn and never by the verifier's coins, is how many there are: here the form of
the tree is fixed beforehand (`shapes`), but for tokens that end the text and for laws with fewer entries than places.

The coins are the device's own (`outrider.shared.coins`, purpose DRAFT), with a key that is used for one draft only. The
noise that device and verifier share would do no harm to a verdict thrown with other coins; coins that the verifier
throws, or coins of an earlier draft whose verdict is known, would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.client.drafter import Budget, Drawing, Law, Proposal
from outrider.client.drafters.growth import ROOT, Candidate, Shape, best_path
from outrider.client.drafters.shapes import DEFAULT_LAW, Node, sparse_tree, worthwhile
from outrider.shared.coins import Purpose, coin
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.laws import MAX_ENTRIES, SparseLaw, quantise, sample, sample_distinct
from outrider.shared.penalties import among
from outrider.shared.sampling import History, Sampling, law

Entries = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Token ids and their logits, [n] each: the likeliest of a node."""


def sparse_law(entries: Entries, sampling: Sampling, text: History | None, drawing: Drawing) -> SparseLaw:
    """What a node's children are drawn from: the warps on ``entries`` alone, rounded to multiples of 2^-bits.

    ``text`` is what stands before the choice, for samplings that look at it.
    """
    order = np.argsort(entries[0], kind="stable")
    ids, logits = entries[0][order], entries[1][order]
    few, short = among(ids, sampling, text) if sampling.adjusts else (sampling, None)
    top = min(drawing.top, MAX_ENTRIES, 1 << drawing.bits)
    return quantise(law(logits, few, short), top=top, bits=drawing.bits, ids=ids)


def places(budget: Budget, drawing: Drawing, known: Law = ()) -> tuple[Node, ...]:
    """The form of the draft: of all with so many children a node the most promising one, as large as is worth it.

    ``known`` is how often children are right by depth and rank, where the budget's prices do not say.
    """
    rows = (budget.prices.law if budget.prices is not None else known) or DEFAULT_LAW
    depth = min(budget.max_depth, budget.max_nodes)
    fitting = tuple(
        rows[min(level, len(rows) - 1)][: drawing.below if level else drawing.first] for level in range(depth)
    )
    tree = sparse_tree(fitting, budget.max_nodes)
    return tree if budget.prices is None else tree[: worthwhile(tree, fitting, budget.prices)]


class Drawn:
    """A draft as it is drawn, level by level; stands in for the `Pool` of a chosen one."""

    sampling = Sampling()
    """What a graph is to be run with: no noise and temperature 1, so that its scores are logits."""

    def __init__(self, budget: Budget, drawing: Drawing, ids: Sequence[int], known: Law = ()) -> None:
        """``ids`` is the sequence that the draft continues."""
        self.budget = budget
        self.drawing = drawing
        self.shape = Shape(width=1, children=drawing.top)
        self.nodes: list[Candidate] = []
        self.slots: dict[int, int] = {}
        self._position = len(ids)
        self._text = budget.sampling.history(ids, budget.generated_from, budget.stop_ids)
        self._tree = places(budget, drawing, known)
        self._below: dict[int, list[int]] = {}
        """Per place (0 = the base, k = node k-1 of the form) the places below it, in rank order."""
        for number, node in enumerate(self._tree, start=1):
            self._below.setdefault(node.parent, []).append(number)
        self._placed: list[int] = []
        """Per node, its place."""
        self._laws: dict[int, SparseLaw] = {}

    def add_level(self, parents: Sequence[int], entries: Sequence[Entries]) -> list[int]:
        """Draw the children of each parent from its entries; returns the indices of the new nodes."""
        fresh: list[int] = []
        for parent, own in zip(parents, entries, strict=True):
            if len(own[0]):
                fresh += self._draw(parent, own)
        return fresh

    def frontier(self, fresh: Sequence[int]) -> list[int]:
        """Which of the newest level have children to come."""
        stops = self.budget.stop_ids
        return [
            node
            for node in fresh
            if self._below.get(self._placed[node]) and self.nodes[node].token_id not in stops
        ]

    def proposal(self) -> Proposal:
        """The draft with its laws; the empty one where there was nothing to draw from."""
        if not self.nodes:
            return Proposal.empty()
        parents = tuple(node.parent + 1 for node in self.nodes)
        laws = tuple(self._laws[row - 1] for row in sorted(set(parents)))
        draft = Draft(tuple(node.token_id for node in self.nodes), parents, self.drawing.kind, laws)
        return Proposal(draft, tuple(node.log_prob for node in self.nodes), best_path(parents))

    def path(self, node: int) -> tuple[int, ...]:
        """The ids from the base to ``node``, its own included; none for ROOT."""
        ids: list[int] = []
        while node != ROOT:
            ids.append(self.nodes[node].token_id)
            node = self.nodes[node].parent
        return tuple(reversed(ids))

    def law(self, parent: int, entries: Entries) -> SparseLaw:
        """What the children of ``parent`` are drawn from."""
        text = self._text.then(self.path(parent)) if self._text is not None else None
        return sparse_law(entries, self.budget.sampling, text, self.drawing)

    def _draw(self, parent: int, entries: Entries) -> list[int]:
        own = self._laws[parent] = self.law(parent, entries)
        below = self._below.get(0 if parent == ROOT else self._placed[parent], [])
        above = self.nodes[parent].total if parent != ROOT else 0.0
        depth = self.nodes[parent].depth + 1 if parent != ROOT else 1
        fresh: list[int] = []
        for token, place in zip(self._tokens(own, len(below), depth), below, strict=False):
            log_prob = math.log(own.counts[own.ids.index(token)]) - own.bits * math.log(2.0)
            fresh.append(len(self.nodes))
            self.nodes.append(Candidate(token, parent, depth, log_prob, above + log_prob))
            self._placed.append(place)
        return fresh

    def _tokens(self, own: SparseLaw, count: int, depth: int) -> tuple[int, ...]:
        """``count`` draws, fewer where the law has no more to give; a sure thing is not drawn twice."""
        count = count if len(own.ids) > 1 else min(count, 1)
        position, first = self._position + depth - 1, len(self.nodes)
        coins = [coin(self.drawing.key, position, Purpose.DRAFT, first + n) for n in range(count)]
        if self.drawing.kind is DraftKind.DISTINCT:
            return sample_distinct(own, coins)
        return tuple(sample(own, each) for each in coins)


def draw(drawn: Drawn, entries: Callable[[int], Entries]) -> Proposal:
    """A draft whose nodes (ROOT = the base) each have ``entries`` that cost no run of a model."""
    fresh = drawn.add_level([ROOT], [entries(ROOT)])
    while frontier := drawn.frontier(fresh):
        fresh = drawn.add_level(frontier, [entries(node) for node in frontier])
    return drawn.proposal()
