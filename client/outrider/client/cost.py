"""What a target pass costs, as the verifier measured it, and a run of the drafter, as the device does."""

from __future__ import annotations

import math
from dataclasses import dataclass

from outrider.shared.frames import CostCurve

ASSUMED_PASS_S = 0.030
PAD = 8
"""Rows to which a width-invariant engine pads its passes."""


def pass_s(cost: CostCurve, width: int, unknown_s: float = ASSUMED_PASS_S) -> float:
    """Seconds of a target pass of ``width`` tokens: interpolated, beyond the last measurement at its mean slope.

    ``unknown_s`` where nothing was measured.
    """
    if not cost.widths:
        return unknown_s
    measured = dict(zip(cost.widths, cost.costs_us, strict=True))
    points = sorted(measured.items())  # each width once, whatever a server claims
    if width > PAD and measured.get(1, 0) > 0.9 * measured.get(PAD, math.inf):
        width = -(-width // PAD) * PAD  # one token costs what eight do: passes are padded
    if len(points) == 1:
        return max(points[0][1], 1) / 1e6
    (w0, c0), (w1, c1) = points[0], points[-1]
    if width >= w1:
        return max(c1 + (width - w1) * max(c1 - c0, 0) / (w1 - w0), 1) / 1e6
    for (left, low), (right, high) in zip(points, points[1:], strict=False):
        if width <= right:
            share = max(width - left, 0) / (right - left)
            return max(low + share * (high - low), 1) / 1e6
    return max(c1, 1) / 1e6


# --------------------------------------------------------------------------------------------------- the device's side


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one run of the drafter's model costs on this device, seconds: so much in any case, so much per node."""

    pass_s: float
    node_s: float

    def level_s(self, nodes: float) -> float:
        """Seconds to expand a level of this many nodes together."""
        return self.pass_s + nodes * self.node_s


class StepTimes:
    """Fits `StepCost` to the drafts made so far, the latest counting most.

    Least squares of seconds per pass over nodes per pass. Chains all have one node per pass and say nothing about wider
    levels; the slope is therefore drawn towards a share of the whole that was measured (weights pass through the core
    at every run, however many nodes there are).
    """

    SHARE = 0.3
    """Assumed cost of a node as a share of the cost of a pass without any."""
    TRUST = 0.3
    """Weight of that assumption, as a variance of nodes per pass."""
    KEEP = 0.95
    """Weight that is left to older drafts after each new one."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, passes: int, nodes: int, elapsed_s: float) -> None:
        """A draft took ``elapsed_s`` for this many passes, with this many nodes going through in all."""
        if passes < 1 or nodes < passes or not 0 < elapsed_s < math.inf:
            return
        x, y = nodes / passes, elapsed_s / passes
        known = self.cost()
        if known is not None and self._weight > 4:
            y = min(y, 4 * known.level_s(x))  # the machine was busy with something else
        old, new = (self._weight, self._x, self._y, self._xx, self._xy), (1.0, x, y, x * x, x * y)
        self._weight, self._x, self._y, self._xx, self._xy = (
            self.KEEP * before + value for before, value in zip(old, new, strict=True)
        )

    def cost(self) -> StepCost | None:
        """The fit; None before the first draft."""
        if not self._weight:
            return None
        x, y = self._x / self._weight, self._y / self._weight
        variance = max(self._xx / self._weight - x * x, 0.0)
        together = self._xy / self._weight - x * y
        assumed = self.SHARE * y / (1.0 + self.SHARE * x)
        slope = (together + self.TRUST * assumed) / (variance + self.TRUST)
        slope = min(max(slope, 0.0), y / x)
        return StepCost(y - slope * x, slope)
