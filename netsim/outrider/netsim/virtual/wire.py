"""`VirtualLink`: when bytes sent now arrive, without sockets and without waiting.

The lanes and flows are those that the proxy drives (`link.py`), with the same seeds, so both make the same delays and
losses out of the same traffic. Outages are known ahead from the schedule, so `send` returns the true time of arrival:
after the outage, or never (inf) when the link is cut for good.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import Outage, Schedule, Scheduled
from outrider.netsim.faults.base import both
from outrider.netsim.link import Flow, Lane, Link
from outrider.netsim.settings import DIRECTIONS, Direction
from outrider.netsim.virtual.stalls import FOREVER, Stalls


class VirtualLink:
    """A link in virtual time, with one connection at a time; times in seconds, the schedule counts from 0.

    Within a direction sends come in the order of time. Raises `BadConfig` for faults other than outages: what they do
    depends on sockets, which only the proxy has.
    """

    def __init__(self, link: Link, schedule: Schedule | None = None, seed: int = 0) -> None:
        """``seed`` is that of the random outages; the link has its own."""
        schedule = schedule or Schedule()
        for entry in schedule.entries:
            if not isinstance(entry.fault, Outage):
                raise BadConfig(
                    entry.fault.kind,
                    "virtual time knows outages (held bytes) only; drive other faults through the proxy",
                )
        self.link = link
        self.lanes: dict[Direction, Lane] = link.lanes()
        self.stalls: dict[Direction, Stalls] = {d: Stalls(_planned(schedule, d, seed)) for d in DIRECTIONS}
        self.bytes: dict[Direction, int] = dict.fromkeys(DIRECTIONS, 0)
        """Bytes sent so far."""
        self.connections = 1
        self._flows: dict[Direction, Flow] = {d: lane.flow() for d, lane in self.lanes.items()}
        self._by_token = sorted(
            (e for e in schedule.entries if e.token is not None), key=lambda e: e.token or 0, reverse=True
        )

    def send(self, direction: Direction, nbytes: int, now: float) -> float:
        """When the last of ``nbytes`` that are sent at ``now`` arrives; inf: never."""
        return self.arrival(direction, self.release(direction, nbytes, now))

    def release(self, direction: Direction, nbytes: int, now: float) -> float:
        """The same in lane time, which no later outage changes; `arrival` makes real time of it."""
        stalls = self.stalls[direction]
        time = now if stalls.none else stalls.lane_time(now)
        self.bytes[direction] += nbytes
        flow = self._flows[direction]
        size = self.lanes[direction].settings.segment_bytes
        if nbytes <= size:
            return flow.admit(time, nbytes)
        release = time
        for start in range(0, nbytes, size):
            part = min(size, nbytes - start)
            release = flow.admit(time, part, behind=nbytes - start - part)
        return release

    def arrival(self, direction: Direction, release: float) -> float:
        """Real time of a release. To be asked again for what is in flight when `on_token` has begun an outage."""
        stalls = self.stalls[direction]
        return release if stalls.none else stalls.real_time(release)

    def connect(self, now: float) -> float:
        """Give up the connection and make a new one: when its handshake is through (one round trip); inf: never."""
        self.connections += 1
        self._flows = {d: lane.flow() for d, lane in self.lanes.items()}
        there = self.send("up", 0, now)
        return there if there == math.inf else self.send("down", 0, there)

    def on_token(self, token: int, now: float) -> bool:
        """Token number ``token`` is on display at ``now``: whether an outage that waited for it has begun."""
        began = False
        while self._by_token and (self._by_token[-1].token or 0) <= token:
            entry = self._by_token.pop()
            for direction in _directions(entry):
                self.stalls[direction].add(now, FOREVER if entry.for_s is None else now + entry.for_s)
            began = True
        return began

    @property
    def next_token(self) -> int | None:
        """The token that the next outage waits for; None: no outage waits for one."""
        return self._by_token[-1].token if self._by_token else None


def _planned(schedule: Schedule, direction: Direction, seed: int) -> Iterator[tuple[float, float]]:
    """The outages of one direction that have their time already, in order."""
    script = sorted(
        _interval(e) for e in schedule.entries if e.at_s is not None and direction in _directions(e)
    )
    process = schedule.random_outages
    if process is None:
        return iter(script)
    return heapq.merge(script, (_interval(e) for e in process.outages(seed)))


def _interval(entry: Scheduled) -> tuple[float, float]:
    begin = entry.at_s or 0.0
    return begin, FOREVER if entry.for_s is None else begin + entry.for_s


def _directions(entry: Scheduled) -> tuple[Direction, ...]:
    return both(entry.fault.direction) if isinstance(entry.fault, Outage) else ()
