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
from outrider.netsim.settings import Direction
from outrider.netsim.virtual.stalls import FOREVER, Stalls


class Way:
    """One direction of a virtual link."""

    def __init__(self, lane: Lane, stalls: Stalls) -> None:
        self.lane, self.stalls = lane, stalls
        self.bytes = 0
        """Bytes sent so far."""
        self.flow: Flow = lane.flow()
        self.free = stalls.none
        """No outage will come."""
        self._size = lane.settings.segment_bytes

    def send(self, nbytes: int, now: float) -> float:
        """When the last of ``nbytes`` that are sent at ``now`` arrives; inf: never."""
        if self.free and nbytes <= self._size:
            self.bytes += nbytes
            return self.flow.admit(now, nbytes)
        return self.stalls.real_time(self.release(nbytes, now))

    def release(self, nbytes: int, now: float) -> float:
        """The same in lane time, which no later outage changes; `Stalls.real_time` makes real time of it."""
        self.bytes += nbytes
        time = self.stalls.lane_time(now)
        if nbytes <= self._size:
            return self.flow.admit(time, nbytes)
        release = time
        for start in range(0, nbytes, self._size):
            part = min(self._size, nbytes - start)
            release = self.flow.admit(time, part, behind=nbytes - start - part)
        return release


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
        self.ways: dict[Direction, Way] = {
            direction: Way(lane, Stalls(_planned(schedule, direction, seed)))
            for direction, lane in link.lanes().items()
        }
        self.up, self.down = self.ways["up"], self.ways["down"]
        self.connections = 1
        self._by_token = sorted(
            (e for e in schedule.entries if e.token is not None), key=lambda e: e.token or 0, reverse=True
        )
        self.next_token = self._by_token[-1].token if self._by_token else None
        """The token that the next outage waits for; None: no outage waits for one."""

    def send(self, direction: Direction, nbytes: int, now: float) -> float:
        """When the last of ``nbytes`` that are sent at ``now`` arrives; inf: never."""
        return self.ways[direction].send(nbytes, now)

    def release(self, direction: Direction, nbytes: int, now: float) -> float:
        """The same in lane time, which no later outage changes; `arrival` makes real time of it."""
        return self.ways[direction].release(nbytes, now)

    def arrival(self, direction: Direction, release: float) -> float:
        """Real time of a release. To be asked again for what is in flight when `on_token` has begun an outage."""
        return self.ways[direction].stalls.real_time(release)

    def connect(self, now: float) -> float:
        """Give up the connection and make a new one: when its handshake is through (one round trip); inf: never."""
        self.connections += 1
        for way in self.ways.values():
            way.flow = way.lane.flow()
        there = self.up.send(0, now)
        return there if there == math.inf else self.down.send(0, there)

    def on_token(self, token: int, now: float) -> bool:
        """Token number ``token`` is on display at ``now``: whether an outage that waited for it has begun."""
        began = False
        while self._by_token and (self._by_token[-1].token or 0) <= token:
            entry = self._by_token.pop()
            for direction in _directions(entry):
                way = self.ways[direction]
                way.stalls.add(now, FOREVER if entry.for_s is None else now + entry.for_s)
                way.free = False
            began = True
        self.next_token = self._by_token[-1].token if self._by_token else None
        return began


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
