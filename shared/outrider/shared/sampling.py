"""How the target chooses a token: warps, the law they leave, and the choice under shared noise.

One ordered list of warps: temperature, then top_k, then top_p, in float64. The law after them is softmax of the
*scores* (warped logits, -inf outside the support). At temperature 0 the choice is the largest logit; above it the
largest ``score + gumbel(seed, position, id)``, which is a draw from the law (Gumbel-max) that any other process with
the same logits repeats. Scores need no normalising: a constant does not move an argmax.

Exact ties, everywhere: the lower id wins. So top_k keeps exactly k ids, and top_p goes through ids by (score
descending, id ascending) and keeps the shortest beginning whose mass reaches top_p, at least one id.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.shared.errors import InvalidField
from outrider.shared.noise import GUMBEL_MAX, gumbel, gumbel_of, words

SAMPLER_ORDER = "temperature,top_k,top_p;gumbel-max;ties=lowest-id;1"
"""Part of the law fingerprint; changes whenever the same logits could give another token."""

NEAR_TIE = 1e-4
"""Relative gap of the two best scores under which another engine may choose differently (float32)."""

Logits = NDArray[np.floating[Any]]
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target chooses. Warps apply in field order. Raises `InvalidField` ("sampling.…") when out of range."""

    temperature: float = 0.0
    """0 = greedy."""
    top_k: int = 0
    """Keep the k largest scores; 0 = off."""
    top_p: float = 0.0
    """Keep the most likely ids that together reach this mass, in (0, 1]; 0 = off."""
    seed: int = 0
    """64 bits; noise = f(seed, absolute position, token id)."""

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, float, sys.float_info.max)
        _within("top_k", self.top_k, int, 2**32 - 1)
        _within("top_p", self.top_p, float, 1)
        _within("seed", self.seed, int, 2**64 - 1)

    @property
    def greedy(self) -> bool:
        """Whether no noise is used."""
        return self.temperature == 0


def _within(name: str, given: Any, kind: type, most: int | float) -> None:
    """Refuse what is no number of that kind in 0 … most; NaN never is."""
    number = not isinstance(given, bool) and isinstance(given, int | kind)
    if number and 0 <= given <= most:
        return
    raise InvalidField(f"sampling.{name}", f"expected {kind.__name__} in 0 .. {most}, got {given!r}")


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token and how far the choice was from falling otherwise."""

    token: int
    gap: float
    """Distance to the nearest other outcome: the two best scores, or a warp's boundary; inf if there is none."""
    scale: float
    """|largest logit over temperature|, at least 1: what `gap` is measured against."""

    def near_tie(self, bound: float = NEAR_TIE) -> bool:
        """Whether logits that differ by rounding only could have given another token."""
        return self.gap < bound * self.scale


def scores(logits: Logits, sampling: Sampling) -> Scores:
    """Warped logits [V] in float64, -inf outside the support. The maximum's id alone remains at temperature 0."""
    values = np.asarray(logits, np.float64)
    if sampling.greedy:
        only = np.full(values.shape, -np.inf)
        only[int(np.argmax(values))] = 0.0
        return only
    values = values / sampling.temperature
    if 0 < sampling.top_k < len(values):
        values = _only(values, _largest(values, sampling.top_k))
    if 0 < sampling.top_p < 1:
        values = _only(values, _nucleus(values, sampling.top_p))
    return values


def law(logits: Logits, sampling: Sampling) -> Scores:
    """The next-token distribution [V] after warping, float64, sums to 1."""
    return _softmax(scores(logits, sampling))


def pick(logits: Logits, sampling: Sampling, position: int) -> int:
    """The target's token at absolute ``position``; exact ties go to the lower id."""
    if sampling.greedy:
        return int(np.argmax(logits))
    return _perturbed_best(scores(logits, sampling), sampling.seed, position)[0]


def choose(logits: Logits, sampling: Sampling, position: int) -> Choice:
    """`pick`, with the distance to the nearest other outcome."""
    values = np.asarray(logits)
    if sampling.greedy:
        token, gap = _best_two(values)
        return Choice(token, gap, max(1.0, abs(float(values[token]))))
    warped = scores(values, sampling)
    token, best, second = _perturbed_best(warped, sampling.seed, position)
    scale = max(1.0, abs(float(np.max(warped))))
    gap = min(best - second, _boundary_gap(values, warped, sampling, position, token, best, NEAR_TIE * scale))
    return Choice(token, gap, scale)


def _perturbed_best(warped: Scores, seed: int, position: int) -> tuple[int, float, float]:
    """Id of the largest score + noise, that value, and the runner-up's.

    Noise is bounded, so ids too far below the best score cannot win nor come second by less than a near tie; logs are
    only taken for the others.
    """
    top = int(np.argmax(warped))
    bits = words(seed, position, len(warped))
    floor = warped[top] + gumbel_of(bits[top : top + 1])[0] - GUMBEL_MAX - 1.0
    near = np.flatnonzero(warped >= floor)
    perturbed = warped[near] + gumbel_of(bits[near])
    index, gap = _best_two(perturbed)
    best = float(perturbed[index])
    return int(near[index]), best, best - gap


def _best_two(values: Logits) -> tuple[int, float]:
    """Index of the maximum (lowest on ties) and its distance to the runner-up."""
    top = int(np.argmax(values))
    if len(values) < 2:
        return top, math.inf
    before = float(np.max(values[:top])) if top else -math.inf
    after = float(np.max(values[top + 1 :])) if top + 1 < len(values) else -math.inf
    return top, float(values[top]) - max(before, after)


def _boundary_gap(
    logits: Logits, warped: Scores, sampling: Sampling, position: int, token: int, best: float, margin: float
) -> float:
    """How far a warp's boundary is from changing the choice; inf when it cannot.

    Rounding can swap the last id kept and the first one left out. That matters if the one kept was chosen, or if the
    one left out would have been.
    """
    kept = np.isfinite(warped)
    if bool(kept.all()):
        return math.inf
    plain = np.asarray(logits, np.float64) / sampling.temperature
    inside = int(np.flatnonzero(kept)[np.argmin(plain[kept])])
    outside_ids = np.flatnonzero(~kept)
    outside = int(outside_ids[np.argmax(plain[outside_ids])])
    would = float(plain[outside] + gumbel(sampling.seed, position, np.asarray([outside]), len(plain))[0])
    if token != inside and would < best - margin:
        return math.inf
    gap = float(plain[inside] - plain[outside])
    if 0 < sampling.top_p < 1:
        base = plain if not 0 < sampling.top_k < len(plain) else _only(plain, _largest(plain, sampling.top_k))
        mass = _softmax(base)
        total = float(np.sum(mass[kept]))
        gap = min(gap, abs(total - sampling.top_p), abs(total - float(mass[inside]) - sampling.top_p))
    return gap


def _largest(values: Scores, count: int) -> NDArray[np.intp]:
    """Ids of the ``count`` largest values; of equal ones at the boundary, the lower ids."""
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)[: count - len(above)]
    return np.concatenate((above, equal))


def _nucleus(values: Scores, mass: float) -> NDArray[np.intp]:
    """Ids of the shortest beginning, by (value descending, id ascending), whose mass reaches ``mass``."""
    probabilities = _softmax(values)
    for count in (min(1024, len(values)), len(values)):  # the few likeliest are nearly always enough to sort
        ids = np.sort(_largest(values, count))
        order = ids[np.argsort(-values[ids], kind="stable")]
        reached = np.cumsum(probabilities[order])
        if reached[-1] >= mass:
            break
    return order[: int(np.searchsorted(reached, mass, side="left")) + 1]


def _only(values: Scores, ids: NDArray[np.intp]) -> Scores:
    kept = np.full(values.shape, -np.inf)
    kept[ids] = values[ids]
    return kept


def _softmax(values: Scores) -> Scores:
    exponents = np.exp(values - np.max(values))
    return exponents / np.sum(exponents)
