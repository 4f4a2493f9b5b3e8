"""The one ordered list of warps: from a position's logits to the scores whose softmax is the law.

bias → repetition penalty → presence penalty → frequency penalty → least length → temperature → top_k → top_p → min_p,
in float64. Each takes scores [V], the sampling and the text before the choice, and gives scores [V], -inf where an id
is out of the question; one that is off gives back what it got. Both sides run this list, the verifier at every node of
a draft with that node's own text.

Exact ties, everywhere: the lower id wins. So top_k keeps exactly k ids, and top_p goes through ids by (score
descending, id ascending) and keeps the shortest beginning whose mass (after top_k) reaches top_p, at least one id.
min_p keeps ids at least min_p times as likely as the likeliest, equal ones alike (Nguyen et al., "Turning up the heat:
min-p sampling", 2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outrider.shared.penalties import History, Scores, bias, frequency, least_length, presence, repetition

if TYPE_CHECKING:
    from outrider.shared.sampling import Sampling

Logits = NDArray[np.floating[Any]]
Warp = Callable[[Scores, "Sampling", History | None], Scores]


def temperature(values: Scores, sampling: Sampling, history: History | None) -> Scores:
    """Divide by the temperature; at 0 the largest alone is left, with score 0."""
    if not sampling.greedy:
        return values / sampling.temperature
    point = np.full(values.shape, -np.inf)
    point[int(np.argmax(values))] = 0.0
    return point


def top_k(values: Scores, sampling: Sampling, history: History | None) -> Scores:
    """Keep the k largest."""
    if not 0 < sampling.top_k < len(values):
        return values
    return only(values, largest(values, sampling.top_k))


def top_p(values: Scores, sampling: Sampling, history: History | None) -> Scores:
    """Keep the most likely ids that together reach the mass."""
    if not 0 < sampling.top_p < 1:
        return values
    return only(values, _nucleus(values, sampling.top_p))


def min_p(values: Scores, sampling: Sampling, history: History | None) -> Scores:
    """Keep what is not too unlikely beside the likeliest."""
    if not sampling.min_p:
        return values
    return np.where(values >= min_p_floor(values, sampling), values, -np.inf)


ADJUSTMENTS: tuple[Warp, ...] = (bias, repetition, presence, frequency, least_length)
"""What is done to logits before the temperature; greedy choices honour these."""
TRUNCATIONS: tuple[Warp, ...] = (top_k, top_p, min_p)
"""What leaves ids out after it."""
WARPS: tuple[Warp, ...] = (*ADJUSTMENTS, temperature, *TRUNCATIONS)
"""All, in order."""


def apply(warps: tuple[Warp, ...], logits: Logits, sampling: Sampling, history: History | None) -> Scores:
    """``logits`` [V] through ``warps`` in order, float64; the input is never written to."""
    values = np.asarray(logits, np.float64)
    for warp in warps:
        values = warp(values, sampling, history)
    return values


def min_p_floor(values: Scores, sampling: Sampling) -> float:
    """The score below which min_p leaves an id out."""
    return float(np.max(values)) + math.log(sampling.min_p)


def largest(values: Scores, count: int) -> NDArray[np.intp]:
    """Ids of the ``count`` largest values; of equal ones at the boundary, the lower ids."""
    groups = 4 * count
    if len(values) < 4 * groups:
        return _largest(values, count)
    # The largest of each group are so many different values: none below the ``count``-th of them can be meant.
    tops = values[: len(values) // groups * groups].reshape(-1, groups).max(axis=0)
    near = np.flatnonzero(values >= np.partition(tops, groups - count)[groups - count])
    return near[_largest(values[near], count)]


def _largest(values: Scores, count: int) -> NDArray[np.intp]:
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)[: count - len(above)]
    return np.concatenate((above, equal))


def only(values: Scores, ids: NDArray[np.intp]) -> Scores:
    """``values`` at ``ids``, -inf elsewhere."""
    kept = np.full(values.shape, -np.inf)
    kept[ids] = values[ids]
    return kept


def softmax(values: Scores) -> Scores:
    """The law of scores: sums to 1."""
    exponents = np.exp(values - np.max(values))
    return exponents / np.sum(exponents)


def _nucleus(values: Scores, mass: float) -> NDArray[np.intp]:
    """Ids of the shortest beginning, by (value descending, id ascending), whose mass reaches ``mass``."""
    probabilities = softmax(values)
    possible = np.flatnonzero(values > -np.inf)
    few = (count for count in (1024, 8192) if count < len(possible))
    for count in (*few, len(possible)):  # the few likeliest are nearly always enough to sort
        ids = possible if count == len(possible) else np.sort(largest(values, count))
        order = ids[np.argsort(-values[ids], kind="stable")]
        reached = np.cumsum(probabilities[order])
        if reached[-1] >= mass:
            break
    return order[: int(np.searchsorted(reached, mass, side="left")) + 1]
