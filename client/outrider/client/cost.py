"""What a target pass costs, as the verifier measured it."""

from __future__ import annotations

import math

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
