"""Prompt lookup: what followed earlier occurrences of the text's last tokens (Saxena 2023), as a chain or a tree.

Needs no model and no rows, so it serves while the bundle is still on its way. Every node of a draft is looked up as if
its path were text already, so a copy runs on into itself (a loop repeats) and splits where earlier text went both ways.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from outrider.client.drafter import Budget, Drawing, Proposal, SequenceDrafter
from outrider.client.drafters.drawing import Drawn, Entries, draw
from outrider.client.drafters.growth import ROOT, Pool
from outrider.client.drafters.loops import Unlooped
from outrider.shared.sampling import Sampling

MIN_MATCH = 2
MAX_MATCH = 16
MAX_CHOICES = 4
"""Continuations whose chances are known (the tables below)."""

_BUCKETS = (2, 3, 4, 5, 7, 10, 13, 16)
"""Lengths of a match from which a row of the tables below counts."""
# How often the target went on as its own earlier text did: share of hits at every position of 400 greedy and 400
# sampled (temperature 0.7 and 1.0) answers of SmolLM2-135M-Instruct, 155,000 positions, by
# `python benchmarks/ngram_confidence.py`. Rows by length of the match, columns by the number of different
# continuations (1, 2, 3, 4 or more). Deeper nodes need no table of their own: a copy that was right so far is a longer
# match.
_FIRST_GREEDY = (
    (0.649, 0.499, 0.453, 0.437),
    (0.750, 0.617, 0.615, 0.463),
    (0.833, 0.699, 0.622, 0.567),
    (0.886, 0.766, 0.706, 0.670),
    (0.914, 0.827, 0.768, 0.735),
    (0.948, 0.899, 0.830, 0.790),
    (0.961, 0.915, 0.851, 0.799),
    (0.993, 0.979, 0.962, 0.937),
)
_FIRST_SAMPLED = (
    (0.567, 0.430, 0.362, 0.357),
    (0.703, 0.509, 0.485, 0.389),
    (0.757, 0.628, 0.545, 0.500),
    (0.845, 0.678, 0.595, 0.567),
    (0.871, 0.765, 0.746, 0.613),
    (0.894, 0.802, 0.781, 0.759),
    (0.919, 0.918, 0.900, 0.821),
    (0.967, 0.951, 0.928, 0.902),
)
# Of the misses of the first: share of the second to fourth continuation, when its match is as long, and when shorter.
_OTHERS_GREEDY = ((0.306, 0.389), (0.139, 0.160), (0.063, 0.107))
_OTHERS_SAMPLED = ((0.229, 0.317), (0.130, 0.148), (0.105, 0.075))


@dataclass(frozen=True, slots=True)
class Continuation:
    """One token that followed an earlier occurrence of the text's end."""

    token_id: int
    matched: int
    """Tokens the text's end has in common with the longest such occurrence, at most `MAX_MATCH`."""
    rank: int
    """0 for the longest match; the latest among equals."""
    tied: bool
    """Whether the match is as long as that of rank 0."""
    different: int
    """Different continuations there are in all, matches of a single token included."""


class Lookup:
    """A text, and for each of its places how far the tokens before it agree with the text's end."""

    def __init__(self, tokens: NDArray[np.int64], matched: NDArray[np.int64]) -> None:
        self._tokens = tokens  # [n]
        self._matched = matched  # [n], of tokens[:place] with the whole text; 0 at place 0

    @classmethod
    def of(cls, ids: Sequence[int]) -> Lookup:
        """Look up the end of ``ids``."""
        tokens = np.asarray(ids, dtype=np.int64)
        matched = np.zeros(len(tokens), np.int64)
        last = len(tokens) - 1
        places = np.flatnonzero(tokens[:last] == tokens[last]) + 1 if last > 0 else matched[:0]
        length = 1
        while len(places):
            matched[places] = length
            if length == min(MAX_MATCH, last):
                break
            places = places[places > length]
            places = places[tokens[places - 1 - length] == tokens[last - length]]
            length += 1
        return cls(tokens, matched)

    def after(self, token_id: int) -> Lookup:
        """The same for the text with ``token_id`` behind it."""
        matched = np.zeros(len(self._tokens) + 1, np.int64)
        same = self._tokens == token_id
        matched[1:][same] = np.minimum(self._matched[same] + 1, MAX_MATCH)
        return Lookup(np.append(self._tokens, token_id), matched)

    def continuations(self, count: int) -> list[Continuation]:
        """At most ``count`` different tokens that followed a match of `MIN_MATCH` or more, longest and latest first."""
        places = np.flatnonzero(self._matched)
        if not len(places):
            return []
        order = places[np.argsort(self._matched[places] * len(self._tokens) + places)[::-1]]
        ids, first = np.unique(self._tokens[order], return_index=True)
        best = np.argsort(first)[:count]
        lengths = self._matched[order[first[best]]].tolist()
        return [
            Continuation(token_id, length, rank, length == lengths[0], len(ids))
            for rank, (token_id, length) in enumerate(zip(ids[best].tolist(), lengths, strict=True))
            if length >= MIN_MATCH
        ]


class NgramDrafter(SequenceDrafter):
    """Copies from the sequence itself."""

    kind = "ngram"

    def propose(self, budget: Budget) -> Proposal:
        """Continuations of the longest matches, the likeliest first; empty without a match of `MIN_MATCH` tokens."""
        depth = min(budget.max_nodes, budget.max_depth)
        if depth < 1:
            return self.count(Proposal.empty())
        budget = replace(budget, max_depth=depth)
        if budget.drawing is not None:
            return self.count(self._draw(budget, budget.drawing))
        pool = Pool(budget)
        unlooped = Unlooped(pool, self.ids)
        warm = budget.sampling.temperature > 0
        states = {ROOT: Lookup.of(self.ids)}
        first = _ranked(states[ROOT], pool.shape.children, warm)
        fresh = pool.add_level([ROOT], unlooped.children([ROOT], [first]))
        while frontier := pool.frontier(fresh):
            for index in frontier:
                node = pool.nodes[index]
                states[index] = states[node.parent].after(node.token_id)
            ranked = [_ranked(states[index], pool.shape.children, warm) for index in frontier]
            fresh = pool.add_level(frontier, unlooped.children(frontier, ranked))
        return self.count(pool.proposal()[0])

    def _draw(self, budget: Budget, drawing: Drawing) -> Proposal:
        """The law of a node: the continuations found, in proportion to how often each is right.

        Where there is one it is a sure thing, and a ratio rule accepts it with the target's probability of it. The
        law is of what was found and already as sharp as the text that is asked for, so only greed warps it further.
        """
        warm = budget.sampling.temperature > 0
        drawn = Drawn(replace(budget, sampling=Sampling(1.0 if warm else 0.0)), drawing, self.ids)
        states = {ROOT: Lookup.of(self.ids)}

        def entries(node: int) -> Entries:
            if node != ROOT:
                states[node] = states[drawn.nodes[node].parent].after(drawn.nodes[node].token_id)
            found = _ranked(states[node], drawing.top, warm)
            return np.array([token for token, _ in found], np.int64), np.array([share for _, share in found])

        return draw(drawn, entries)


def confidences(found: Sequence[Continuation], warm: bool = False) -> list[float]:
    """Measured probability that the target goes on like each of these; ``warm`` for temperatures above 0."""
    if not found:
        return []
    table, shares = (_FIRST_SAMPLED, _OTHERS_SAMPLED) if warm else (_FIRST_GREEDY, _OTHERS_GREEDY)
    first = table[bucket(found[0].matched)][column(found[0])]
    others = [shares[each.rank - 1][0 if each.tied else 1] for each in found[1:]]
    return [first, *((1.0 - first) * share for share in others)]


def bucket(matched: int) -> int:
    """Row of the tables for a match of this many tokens, at least `MIN_MATCH`."""
    return max(index for index, least in enumerate(_BUCKETS) if matched >= least)


def column(found: Continuation) -> int:
    """Column of the tables: how many different continuations there are."""
    return min(found.different, 4) - 1


def _ranked(lookup: Lookup, count: int, warm: bool) -> list[tuple[int, float]]:
    """At most ``count`` of a node's children as (id, log-probability), best first."""
    found = lookup.continuations(min(count, MAX_CHOICES))
    return [
        (each.token_id, math.log(value)) for each, value in zip(found, confidences(found, warm), strict=True)
    ]
