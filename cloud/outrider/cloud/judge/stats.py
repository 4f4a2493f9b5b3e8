"""The few statistics that judging needs: intervals, a paired test, ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
_Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % interval; nan where nothing could be counted."""

    value: float
    low: float
    high: float

    def to_json(self) -> list[float | None]:
        """[value, low, high], None for nan."""
        return [round(one, 4) if math.isfinite(one) else None for one in (self.value, self.low, self.high)]


def wilson(hits: int, count: int, z: float = _Z95) -> Interval:
    """A proportion with Wilson's score interval (Wilson 1927)."""
    if count <= 0:
        return Interval(math.nan, 0.0, 1.0)
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    low = max(0.0, middle - half) if hits else 0.0
    high = min(1.0, middle + half) if hits < count else 1.0
    return Interval(share, low, high)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value that two methods err alike, from the prompts only one of them gets right.

    The binomial test of McNemar (1947) without approximation: 1 where there are no such prompts.
    """
    count = only_first + only_second
    tail = sum(math.comb(count, k) for k in range(min(only_first, only_second) + 1))
    return float(min(1.0, 2 * tail / 2**count))


def auc(scores: NDArray[np.float64], good: NDArray[np.bool_]) -> float:
    """Probability that a good one scores above a bad one, ties half (Mann-Whitney); nan if one class is missing."""
    num_good = int(good.sum())
    num_bad = len(good) - num_good
    if not num_good or not num_bad:
        return math.nan
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle_rank = np.cumsum(counts) - (counts - 1) / 2
    ranks = middle_rank[inverse]
    return float((ranks[good].sum() - num_good * (num_good + 1) / 2) / (num_good * num_bad))


def auc_interval(
    scores: NDArray[np.float64],
    good: NDArray[np.bool_],
    groups: Sequence[object],
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """AUC with a bootstrap interval over groups (prompts): labels of one prompt are not independent."""
    members = _members(groups)
    rng = np.random.default_rng(seed)
    cloud = []
    for _ in range(resamples):
        drawn = np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))])
        cloud.append(auc(scores[drawn], good[drawn]))
    return _interval(auc(scores, good), np.asarray(cloud))


def ratio_interval(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], seed: int = 0
) -> Interval:
    """Quotient of sums over prompts [n], with a bootstrap interval by prompt."""
    drawn = draws(len(numerators), seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(numerators.sum() / denominators.sum()) if denominators.sum() else math.nan
        cloud = numerators[drawn].sum(axis=1) / denominators[drawn].sum(axis=1)
    return _interval(value, cloud)


def recovered_interval(
    judged: NDArray[np.float64], draft: NDArray[np.float64], target: NDArray[np.float64], seed: int = 0
) -> Interval:
    """(acc - acc_draft) / (acc_target - acc_draft) of per-prompt outcomes [n], with a bootstrap interval by prompt.

    nan where the target is not better than the drafter: then there is nothing to recover.
    """
    drawn = draws(len(judged), seed)
    gained, room = judged - draft, target - draft
    value = float(gained.sum() / room.sum()) if room.sum() > 0 else math.nan
    rooms = room[drawn].sum(axis=1)
    gains = gained[drawn].sum(axis=1)
    return _interval(value, gains[rooms > 0] / rooms[rooms > 0])


def draws(count: int, seed: int, resamples: int = RESAMPLES) -> NDArray[np.int64]:
    """Prompt numbers drawn with replacement, [resamples, count]; the same for all methods of one comparison."""
    return np.random.default_rng(seed).integers(count, size=(resamples, count))


def _members(groups: Sequence[object]) -> list[NDArray[np.int64]]:
    places: dict[object, list[int]] = {}
    for place, group in enumerate(groups):
        places.setdefault(group, []).append(place)
    return [np.asarray(found) for found in places.values()]


def _interval(value: float, cloud: NDArray[np.float64]) -> Interval:
    known = cloud[np.isfinite(cloud)]
    if not len(known) or not math.isfinite(value):
        return Interval(value, math.nan, math.nan)
    low, high = np.quantile(known, [0.025, 0.975])
    return Interval(value, float(low), float(high))
