"""When a lane stands still, known ahead: lane time and real time as functions of each other.

The proxy learns of an outage when it begins (`link.LaneClock`). A simulator knows its script, so it can say at once
when bytes sent now will arrive. Both count lane time the same way: real time minus all the time stood still.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator

FOREVER = math.inf
"""The end of a stall that has none."""


class Stalls:
    """The intervals in which one direction stands still, drawn from sorted sources as far as they are needed."""

    def __init__(self, intervals: Iterator[tuple[float, float]]) -> None:
        """``intervals``: (begin, end) in real seconds in the order of begin; they may overlap, the end may be inf."""
        self._source = intervals
        self._ahead = next(intervals, None)
        self._begins: list[float] = []
        self._ends: list[float] = []
        self._lane_begins: list[float] = []
        """Lane time at each begin."""
        self._calm = (0.0, -math.inf, 0.0)
        """A stretch of real time without stalls, and the time lost before it: most questions are about the same one."""

    @property
    def none(self) -> bool:
        """Whether there is no stall and never will be one by itself."""
        return not self._begins and self._ahead is None

    def lane_time(self, now: float) -> float:
        """Lane time at real time ``now``."""
        since, until, lost = self._calm
        if since < now < until:
            return now - lost
        self._draw(now)
        at = bisect_right(self._begins, now) - 1
        self._remember(at)
        if at < 0:
            return now
        return self._lane_begins[at] + max(now - self._ends[at], 0.0)

    def _remember(self, at: int) -> None:
        """The stretch behind stall number ``at``."""
        later = self._begins[at + 1] if at + 1 < len(self._begins) else math.inf
        if self._ahead is not None:
            later = min(later, self._ahead[0])
        since = 0.0 if at < 0 else self._ends[at]
        self._calm = (since, later, 0.0 if at < 0 else since - self._lane_begins[at])

    def real_time(self, lane_time: float) -> float:
        """The first real time at which the lane has reached ``lane_time``; inf if it never does."""
        since, until, lost = self._calm
        if since < lane_time + lost < until:
            return lane_time + lost
        while True:
            at = self._after(lane_time)
            real = lane_time if at < 0 else self._ends[at] + (lane_time - self._lane_begins[at])
            if self._ahead is None or real <= self._ahead[0] or real == FOREVER:
                return real
            self._draw(real)

    def add(self, begin: float, end: float) -> None:
        """One more stall, e.g. one that a token has brought: times computed before must be asked again."""
        if end == FOREVER:  # whatever was planned behind it does not matter any more
            self._draw(begin)
            self._ahead = None
        self._draw(end)
        intervals = sorted([*zip(self._begins, self._ends, strict=True), (begin, end)])
        self._begins, self._ends, self._lane_begins = [], [], []
        self._calm = (0.0, -math.inf, 0.0)
        for one in intervals:
            self._append(*one)

    def stalled(self, now: float) -> bool:
        """Whether the lane stands still at ``now``."""
        self._draw(now)
        at = bisect_right(self._begins, now) - 1
        return at >= 0 and now < self._ends[at]

    def within(self, until: float) -> tuple[tuple[float, float], ...]:
        """All stalls that begin before ``until``, overlapping ones joined."""
        self._draw(until)
        pairs = zip(self._begins, self._ends, strict=True)
        return tuple(pair for pair in pairs if pair[0] < until)

    def _after(self, lane_time: float) -> int:
        # What is due in the very moment of the begin still gets through.
        at = bisect_right(self._lane_begins, lane_time) - 1
        while at >= 0 and self._lane_begins[at] >= lane_time:
            at -= 1
        return at

    def _draw(self, until: float) -> None:
        while self._ahead is not None and self._ahead[0] <= until:
            self._append(*self._ahead)
            self._ahead = next(self._source, None)

    def _append(self, begin: float, end: float) -> None:
        if self._ends and begin <= self._ends[-1]:
            self._ends[-1] = max(self._ends[-1], end)
            return
        lane = self._lane_begins[-1] + begin - self._ends[-1] if self._begins else begin
        self._begins.append(begin)
        self._ends.append(end)
        self._lane_begins.append(lane)

    def __repr__(self) -> str:
        shown = ", ".join(f"{b:g}-{e:g}" for b, e in zip(self._begins, self._ends, strict=True))
        return f"Stalls({shown}{'' if self._ahead is None else ', …'})"
