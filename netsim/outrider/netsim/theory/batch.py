"""Algorithm 4 and Theorem 3: M drafted texts from one prefix.

At the first position of a round (a *fresh* one) the M first tokens are tested in turn, each against what the ones
before left over: t¹ = target, accept with min(1, tᵐ / draft), tᵐ⁺¹ = nrm([tᵐ - draft]+). The first accepted one is
followed with ordinary speculative decoding and the others are dropped; a rejection deeper down ends the round.

Theorem 3 (2411.00841, §3.3, in the form derived for this project):
E[rejections] = Theorem 1's sum - Σ_n Σ_prefix f(prefix) · (TV - Π_m TV(tᵐ, draft)), where f(prefix) is the probability
that the text so far is this prefix *and* the next position is fresh.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.netsim.errors import BadConfig
from outrider.netsim.theory.chains import Process
from outrider.netsim.theory.pairs import Array, Pair, positive, tv

ENDLESS = None
"""In place of a number of drafts: the limit of infinitely many."""


def root_mass(pair: Pair, batch: int | None) -> Array:
    """Π_m TV(tᵐ, draft) · t^(M+1), [..., vocabulary]: what is emitted when all M first tokens are rejected.

    Its sum is the probability of that. Computed without normalising in between: mass ← [mass - Σmass · draft]+.
    For M → ∞ only the target's mass on tokens that are never drafted remains: as long as the sum stays above some
    ρ > 0, every drafted token loses ρ·draft a turn, and so runs out. Raises `BadConfig` for batch < 1.
    """
    if batch is ENDLESS:
        return np.where(pair.draft > 0, 0.0, pair.target)
    if batch < 1:
        raise BadConfig("batch", f"expected at least 1 draft, got {batch}")
    mass = pair.target
    for _ in range(batch):
        mass = positive(mass - mass.sum(axis=-1, keepdims=True) * pair.draft)
    return mass


def root_rejection(pair: Pair, batch: int | None) -> Array:
    """Probability that all M first tokens are rejected, [...]."""
    return root_mass(pair, batch).sum(axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Theorem 3 on one process."""

    rejections: float
    """Expected rejections over the horizon."""
    improvement: float
    """What M drafts save against one: the theorem's second term."""
    fresh: Array
    """Probability that a position is the first of a round, [horizon]."""


def batched(process: Process, batch: int | None) -> Batch:
    """Expected rejections with M drafts per round, by the recursion for f; `ENDLESS` gives the floor for M → ∞."""
    roots = process.split(root_mass(process.stacked(), batch))
    fresh, rejections, improvement = [], 0.0, 0.0
    start = np.ones(1)
    for weight, step, root in zip(process.marginals(), process.steps, roots, strict=True):
        inside, distance = weight - start, tv(step)
        saved = float(start @ (distance - root.sum(axis=-1)))
        rejections += float(weight @ distance) - saved
        improvement += saved
        fresh.append(float(start.sum()))
        start = process.advance(start[:, None] * root + inside[:, None] * positive(step.target - step.draft))
    return Batch(rejections, improvement, np.array(fresh))


def bernoulli_root(u: float, v: float, batch: int) -> float:
    """Root rejection for draft Bernoulli(u) and target Bernoulli(v), u ≥ v: (u - v)·u^(M-1)."""
    if not 0 <= v <= u <= 1:
        raise BadConfig("bernoulli", f"expected 0 <= v <= u <= 1, got u = {u}, v = {v}")
    return (u - v) * u ** (batch - 1)


def uniform_root(draft_size: int, target_size: int, batch: int) -> float:
    """Root rejection for a draft uniform on U tokens and a target uniform on V of them: (1 - V/U)^M."""
    return (1 - target_size / draft_size) ** batch
