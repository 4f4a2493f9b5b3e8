"""What the link carries at a moment, as the proxy's records tell it: for the event log's timeline."""

from __future__ import annotations

from typing import Any

from outrider.client.eventlog import CapacityLine
from outrider.netsim.faults.base import both
from outrider.netsim.scenario.model import Phase
from outrider.netsim.scenario.ride import Ride
from outrider.netsim.settings import DIRECTIONS, Direction, LaneSettings, LinkSettings

STOPPING = ("outage", "blackhole", "halfopen")
"""Faults under which nothing passes."""
STEP_S = 1.0
"""A lane that follows a trace is told by its mean over so many seconds."""


class Carried:
    """The link's capacity, followed through the proxy's records (`StateLog`)."""

    def __init__(self, ride: Ride) -> None:
        self.link: LinkSettings = ride.link
        self.since_s = 0.0
        """When its settings began, seconds since the proxy's start."""
        self.phase: Phase = ride.scenario.phases[0]
        self._phases = ride.scenario.phases
        self._stopped: dict[int, tuple[Direction, ...]] = {}

    @property
    def traced(self) -> bool:
        """Whether the capacity changes by itself."""
        return any(self.link.lane(direction).trace is not None for direction in DIRECTIONS)

    def take(self, record: dict[str, Any]) -> bool:
        """Whether a record changes what the link carries."""
        event, kind = record["event"], record.get("fault")
        if event == "fault-begin" and kind == "relink":
            self.phase = self._phases[int(record["mark"]) % len(self._phases)]
            self.link, self.since_s = self.phase.link, record["t"]
            return True
        if event == "fault-begin" and kind in STOPPING:
            self._stopped[record["id"]] = both(record.get("direction"))
            return True
        return event == "fault-end" and self._stopped.pop(record["id"], None) is not None

    def line(self, at_s: float, time_s: float) -> CapacityLine:
        """The capacity at `time_s` of the proxy, which is `at_s` of the log."""
        up, down = (self._mbit(direction, time_s) for direction in DIRECTIONS)
        return CapacityLine(at_s=at_s, up_mbit=up, down_mbit=down)

    def _mbit(self, direction: Direction, time_s: float) -> float | None:
        if any(direction in stopped for stopped in self._stopped.values()):
            return 0.0
        return _rate(self.link.lane(direction), time_s - self.since_s)


def _rate(lane: LaneSettings, into_s: float) -> float | None:
    if lane.trace is None:
        return lane.rate_mbit
    return round(lane.trace.between(into_s, into_s + STEP_S) * 8e-6 / STEP_S, 6)
