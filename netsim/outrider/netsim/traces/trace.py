"""`Trace`: what a loader makes of a file."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outrider.netsim.settings import Direction
from outrider.netsim.traces.capacity import Capacity
from outrider.netsim.traces.steps import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Capacity, and perhaps round trip, over time."""

    source: str
    """The text it was read from."""
    format: str
    down: Capacity | None
    """Towards the device. A file of one direction has the same here and in `up`: which it is, the user says."""
    up: Capacity | None
    rtt_ms: Steps | None = None
    """The round trip over time; `None`: the file has none, take it from the preset or a flag."""
    joint: bool = False
    """The directions (and the round trip) belong together: one file drives the whole link."""

    def capacity(self, direction: Direction) -> Capacity | None:
        """The capacity of one direction; `None` if the file has none for it."""
        return self.up if direction == "up" else self.down

    def shifted(self, by_s: float) -> Trace:
        """The same trace begun `by_s` seconds later in it."""
        one_way = self.up is self.down
        down = None if self.down is None else self.down.shifted(by_s)
        up = down if one_way else None if self.up is None else self.up.shifted(by_s)
        rtt = None if self.rtt_ms is None else self.rtt_ms.shifted(by_s)
        return replace(self, down=down, up=up, rtt_ms=rtt)
