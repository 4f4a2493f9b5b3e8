"""From prompts' tallies to figures: quotients of sums per category, their mean, and bootstrap intervals by prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Tally = Mapping[str, tuple[float, float]]
RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with the interval of `LEVEL` around it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures by measure; a measure that was never tried is absent."""

    categories: Mapping[str, Mapping[str, Figure]]
    mean: Mapping[str, Figure]
    """Over the categories that have the measure, each counting once."""


def summarise(
    tallies: Mapping[str, Sequence[Tally]], *, seed: int = 0, resamples: int = RESAMPLES
) -> Summary:
    """Figures of per-prompt tallies by category.

    Percentile bootstrap (Efron 1979): prompts are drawn with replacement within each category, the same draws for all
    measures, and for all drafters measured on the same prompts with the same seed.
    """
    draws = {
        category: _draws(len(found), resamples, seed, number)
        for number, (category, found) in enumerate(sorted(tallies.items()))
        if found
    }
    names = list(dict.fromkeys(name for found in tallies.values() for tally in found for name in tally))
    categories: dict[str, dict[str, Figure]] = {category: {} for category in tallies if tallies[category]}
    mean: dict[str, Figure] = {}
    for name in names:
        values: list[float] = []
        clouds: list[NDArray[np.float64]] = []
        for category, found in categories.items():
            value, cloud = _ratios(tallies[category], name, draws[category])
            if np.isfinite(value):
                found[name] = _figure(value, cloud)
                values.append(value)
                clouds.append(cloud)
        if values:
            # A draw in which some category never tried the measure has no mean.
            mean[name] = _figure(float(np.mean(values)), np.mean(clouds, axis=0))
    return Summary(categories, mean)


def difference(
    one: Mapping[str, Sequence[Tally]],
    other: Mapping[str, Sequence[Tally]],
    name: str,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Figure | None:
    """Mean of a measure by ``one`` less that by ``other`` on the same prompts, drawn in pairs; None if either lacks it.

    Far narrower than two intervals side by side: what is hard for one drafter is hard for the other.
    """
    values: list[float] = []
    clouds: list[NDArray[np.float64]] = []
    for number, category in enumerate(sorted(one)):
        if len(one[category]) != len(other.get(category, ())):
            raise ValueError(f"{category}: measured on {len(one[category])} prompts and on others")
        draws = _draws(len(one[category]), resamples, seed, number)
        value, cloud = _ratios(one[category], name, draws)
        less, less_cloud = _ratios(other[category], name, draws)
        if np.isfinite(value) and np.isfinite(less):
            values.append(value - less)
            clouds.append(cloud - less_cloud)
    return _figure(float(np.mean(values)), np.mean(clouds, axis=0)) if values else None


def _draws(count: int, resamples: int, seed: int, number: int) -> NDArray[np.int64]:
    """Prompt numbers, [resamples, count]."""
    return np.random.default_rng((seed, number)).integers(count, size=(resamples, count))


def _ratios(
    tallies: Sequence[Tally], name: str, draws: NDArray[np.int64]
) -> tuple[float, NDArray[np.float64]]:
    """The quotient of sums over all prompts (nan if nothing was tried), and over each draw: [resamples]."""
    pairs = np.array([tally.get(name, (0.0, 0.0)) for tally in tallies], np.float64)
    total = pairs.sum(axis=0)
    drawn = pairs[draws].sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(total[0] / total[1]) if total[1] else float("nan"), drawn[:, 0] / drawn[:, 1]


def _figure(value: float, cloud: NDArray[np.float64]) -> Figure:
    known = cloud[np.isfinite(cloud)]
    if not len(known):
        return Figure(value, value, value)
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Figure(value, float(low), float(high))
