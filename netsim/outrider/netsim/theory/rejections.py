"""Theorem 1: the expected number of rejections, exactly; and what a finite window does to it.

Theorem 1 (2411.00841, §3.1): E[rejections in T tokens] = Σ_n E_{prefix ~ target} TV(target, draft | prefix). It holds
literally when no token goes untested. A bonus token, which a round of γ accepted drafts ends with, is not tested, so
real systems reject less often; `windowed` gives their count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.netsim.errors import BadConfig
from outrider.netsim.theory.chains import Process
from outrider.netsim.theory.pairs import Array, positive, tv


def rejections_by_position(process: Process) -> Array:
    """Probability of a rejection at each position, [horizon]."""
    pairs = zip(process.marginals(), process.steps, strict=True)
    return np.array([float(weight @ tv(step)) for weight, step in pairs])


def expected_rejections(process: Process) -> float:
    """Theorem 1's sum: expected rejections over the horizon, drafting to its end."""
    return float(rejections_by_position(process).sum())


@dataclass(frozen=True, slots=True)
class Windowed:
    """Expectations over the horizon when at most `window` tokens are drafted per round."""

    window: int
    bonus: bool
    tokens: int
    rejections: float
    rounds: float
    """Target passes begun; the last one may be cut by the horizon."""

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens per target pass, recovered and bonus tokens included (τ)."""
        return self.tokens / self.rounds


def windowed(process: Process, window: int, *, bonus: bool = True) -> Windowed:
    """Rejections and rounds with a window of γ drafts, exactly.

    The state is (context, drafts accepted in this round so far): min(target, draft) goes one on, [target - draft]+
    starts a new round, and after γ acceptances either the bonus token ends the round or, without one, the next round
    starts at once. Without bonus the rejections are Theorem 1's for every window. Raises `BadConfig` for window < 1.
    """
    if window < 1:
        raise BadConfig("window", f"expected at least 1 draft a round, got {window}")
    offsets = [np.ones(1)] + [np.zeros(1)] * window  # [window + 1] of [rows]
    rejections = rounds = 0.0
    for step in process.steps:
        if not bonus:
            offsets = [offsets[0] + offsets[window], *offsets[1:window], np.zeros_like(offsets[0])]
        shared = np.minimum(step.target, step.draft)
        tested = np.sum(offsets[:window], axis=0)
        rounds += float(offsets[0].sum())
        rejections += float(tested @ tv(step))
        again = tested[:, None] * positive(step.target - step.draft) + offsets[window][:, None] * step.target
        moved = [process.advance(weight[:, None] * shared) for weight in offsets[:window]]
        offsets = [process.advance(again), *moved]
    return Windowed(window, bonus, process.horizon, rejections, rounds)


def windowed_rate(acceptance: float, window: int) -> float:
    """Rejections per emitted token in the long run, with bonus tokens, when every draft is accepted with `acceptance`.

    (1 - α^γ)(1 - α) / (1 - α^(γ+1)): below 1 - α, and 1 - α for an endless window.
    """
    if acceptance == 1.0:
        return 0.0
    return (1 - acceptance**window) * (1 - acceptance) / (1 - acceptance ** (window + 1))


def tokens_per_round(acceptance: float, window: int) -> float:
    """Emitted tokens per round, (1 - α^(γ+1)) / (1 - α), when every draft is accepted with `acceptance`."""
    return float(sum(acceptance**n for n in range(window + 1)))
