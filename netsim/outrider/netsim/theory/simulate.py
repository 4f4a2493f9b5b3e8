"""Monte Carlo of what the other modules compute: runs side by side in numpy, coins from one seeded generator.

The algorithms are played as they are defined (draft, coin, residual), and use no formula that they are to confirm.
A coin u in [0, 1) accepts if u < a, strictly, so that a token of target probability 0 never passes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.netsim.theory.chains import Process, Rows
from outrider.netsim.theory.pairs import Array, normalised, positive, ratio
from outrider.netsim.theory.sequence import Rule

MOST_DEVIATIONS = 4.5
"""A mean further than this many standard errors from its exact value counts as wrong; one in 150,000 does by chance."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over runs beside its exact value."""

    exact: float
    mean: float
    error: float
    """Standard error of the mean."""
    z: float
    """Distance from the exact value in standard errors; 0 where the two agree to 1e-9, whatever the error."""


def estimate(exact: float, values: NDArray[np.float64] | NDArray[np.int64]) -> Estimate:
    """Mean and standard error of independent runs, at least two of them."""
    mean, error = float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
    off = mean - exact
    if abs(off) < 1e-9:
        z = 0.0
    else:  # without spread and yet elsewhere: wrong, by a number that JSON can hold
        z = off / error if error > 0 else float(np.copysign(1e9, off))
    return Estimate(exact, mean, error, z)


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """What the runs did."""

    rejections: NDArray[np.int64]  # [runs]
    rounds: NDArray[np.int64]  # [runs]
    tokens: Rows  # [runs, horizon]


def draw(laws: Array, rng: np.random.Generator) -> Rows:
    """One token from each law, [runs], by its inverse distribution function."""
    cumulative = laws.cumsum(axis=-1)
    coins = rng.random(len(laws)) * cumulative[:, -1]
    return np.minimum((cumulative <= coins[:, None]).sum(axis=-1), laws.shape[-1] - 1)


def play_batch(process: Process, batch: int, runs: int, rng: np.random.Generator) -> Played:
    """Algorithm 4 with M drafts per round, drafting to the horizon; M = 1 is speculative decoding without bonus.

    A drafted text is extended only where it is followed: what the dropped ones would have said changes nothing.
    """
    state, fresh = np.zeros(runs, dtype=np.int64), np.ones(runs, dtype=np.bool_)
    rejections, rounds, tokens = np.zeros(runs, dtype=np.int64), np.zeros(runs, dtype=np.int64), []
    for step in process.steps:
        target, draft = step.target[state], step.draft[state]
        rounds += fresh
        open_, token = np.arange(runs), np.zeros(runs, dtype=np.int64)
        left = target  # what the open runs still have to emit, [open, vocabulary]
        for turn in range(batch):
            tries = np.flatnonzero(fresh[open_]) if turn else np.arange(len(open_))
            who = open_[tries]
            drafted = draw(draft[who], rng)
            chance = ratio(left[tries, drafted], draft[who, drafted])
            accepted = rng.random(len(who)) < chance
            token[who[accepted]] = drafted[accepted]
            left = left.copy()
            left[tries] = normalised(positive(left[tries] - draft[who]), left[tries])
            kept = np.ones(len(open_), dtype=np.bool_)
            kept[tries[accepted]] = False
            open_, left = open_[kept], left[kept]
        token[open_] = draw(left, rng)
        rejections[open_] += 1
        fresh = np.zeros(runs, dtype=np.bool_)
        fresh[open_] = True
        state = process.after(state, token)
        tokens.append(token)
    return Played(rejections, rounds, np.stack(tokens, axis=1))


def play_window(
    process: Process, window: int, runs: int, rng: np.random.Generator, *, bonus: bool = True
) -> Played:
    """Speculative decoding with at most `window` drafts per round, with or without a bonus token after a full one."""
    state, accepted = np.zeros(runs, dtype=np.int64), np.zeros(runs, dtype=np.int64)
    rejections, rounds, tokens = np.zeros(runs, dtype=np.int64), np.zeros(runs, dtype=np.int64), []
    for step in process.steps:
        target, draft = step.target[state], step.draft[state]
        if not bonus:
            accepted[accepted == window] = 0
        rounds += accepted == 0
        free = accepted == window
        drafted, every = draw(draft, rng), np.arange(runs)
        passed = (rng.random(runs) < ratio(target[every, drafted], draft[every, drafted])) & ~free
        residual = normalised(positive(target - draft), target)
        own = draw(np.where(free[:, None], target, residual), rng)
        token = np.where(passed, drafted, own)
        rejections += ~passed & ~free
        accepted = np.where(passed, accepted + 1, 0)
        state = process.after(state, token)
        tokens.append(token)
    return Played(rejections, rounds, np.stack(tokens, axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class Paid:
    """What runs of a rule paid, summed over the horizon, each [runs]."""

    rejections: NDArray[np.int64]
    loss: Array
    distance: Array
    tokens: Rows  # [runs, horizon]

    @property
    def gap(self) -> Array:
        """rejections + loss - distance of each run; its mean is 0 for rules on the line."""
        return self.rejections + self.loss - self.distance


def play_rule(process: Process, rule: Rule, runs: int, rng: np.random.Generator) -> Paid:
    """A rule (b, P) on its own output, drafting to the horizon; loss and distance are exact at each visited prefix."""
    state = np.zeros(runs, dtype=np.int64)
    rejections, loss, distance = np.zeros(runs, dtype=np.int64), np.zeros(runs), np.zeros(runs)
    tokens = []
    for step in process.steps:
        accept, replacement = rule(step)
        kept = accept * step.draft
        lost = (
            np.abs(kept + (1 - kept.sum(axis=-1, keepdims=True)) * replacement - step.target).sum(axis=-1) / 2
        )
        drafted = draw(step.draft[state], rng)
        passed = rng.random(runs) < accept[state, drafted]
        own = draw(np.broadcast_to(replacement, step.target.shape)[state], rng)
        token = np.where(passed, drafted, own)
        rejections += ~passed
        loss += lost[state]
        distance += (np.abs(step.target - step.draft).sum(axis=-1) / 2)[state]
        state = process.after(state, token)
        tokens.append(token)
    return Paid(rejections, loss, distance, np.stack(tokens, axis=1))
