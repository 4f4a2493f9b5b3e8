"""`VirtualLink`: when bytes sent now arrive, without sockets and without waiting.

The lanes and flows are those that the proxy drives (`link.py`), with the same seeds, so both make the same delays and
losses out of the same traffic. Outages are known ahead from the schedule, so `send` returns the true time of arrival:
after the outage, or never (inf) when the link is cut for good, or when the connection breaks first (`told_s` says when
the device learns of it). Phases of a ride switch the lanes as time goes by.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import Outage, OutageProcess, Relink, Schedule, Scheduled
from outrider.netsim.faults.base import both
from outrider.netsim.link import Flow, Lane, Link
from outrider.netsim.settings import Direction
from outrider.netsim.virtual.breaks import KINDS, Breaks, break_of
from outrider.netsim.virtual.stalls import FOREVER, Stalls

PLAYED = (Outage, Relink, *KINDS)
"""Faults whose effect on a device follows from times alone."""


class Way:
    """One direction of a virtual link."""

    def __init__(
        self,
        lane: Lane,
        stalls: Stalls,
        direction: Direction = "up",
        others: Iterator[Scheduled] | None = None,
        breaks: Breaks | None = None,
    ) -> None:
        """``others``: everything that happens by time, in order, for the switches in it."""
        self.lane, self.stalls = lane, stalls
        self._direction, self._breaks = direction, breaks
        self._others: Iterator[Scheduled] = iter(()) if others is None else others
        self._ahead = next(self._others, None)
        self.bytes = 0
        """Bytes sent so far."""
        self.flow: Flow = lane.flow()
        self.free = stalls.none and self._ahead is None and (breaks is None or breaks.none)
        """Nothing will happen to it."""
        self._size = lane.settings.segment_bytes

    def send(self, nbytes: int, now: float) -> float:
        """When the last of ``nbytes`` that are sent at ``now`` arrives; inf: never."""
        if self.free and nbytes <= self._size:
            self.bytes += nbytes
            return self.flow.admit(now, nbytes)
        arrival = self.stalls.real_time(self.release(nbytes, now))
        if self._breaks is not None and self._breaks.lost(self._direction, arrival):
            return math.inf
        return arrival

    def release(self, nbytes: int, now: float) -> float:
        """The same in lane time, which no later outage changes; `Stalls.real_time` makes real time of it."""
        self.bytes += nbytes
        if self._ahead is not None:
            self._follow(now)
        time = self.stalls.lane_time(now)
        if nbytes <= self._size:
            return self.flow.admit(time, nbytes)
        release = time
        for start in range(0, nbytes, self._size):
            part = min(self._size, nbytes - start)
            release = self.flow.admit(time, part, behind=nbytes - start - part)
        return release

    def _follow(self, now: float) -> None:
        """Switch the lane as often as it was due."""
        while self._ahead is not None and (self._ahead.at_s or 0.0) <= now:
            to, at = self._ahead.fault, self._ahead.at_s or 0.0
            if isinstance(to, Relink):
                self.lane.switch(
                    self.stalls.lane_time(at),
                    to.link.lane(self._direction),
                    rtt_s=to.link.rtt_s,
                    redraw_s=to.link.redraw_s,
                    name=f"{to.name}/{to.mark}",
                )
                self._size = self.lane.settings.segment_bytes
            self._ahead = next(self._others, None)


class VirtualLink:
    """A link in virtual time, with one connection at a time; times in seconds, the schedule counts from 0.

    Within a direction sends come in the order of time. Raises `BadConfig` for faults that are not `PLAYED`: what they
    do depends on sockets, which only the proxy has.
    """

    def __init__(self, link: Link, schedule: Schedule | None = None, seed: int = 0) -> None:
        """``seed`` is that of the random outages; the link has its own."""
        schedule = schedule or Schedule()
        check(schedule.entries)
        self.link = link
        self._breaks = Breaks(_others(schedule, seed))
        self.ways: dict[Direction, Way] = {
            direction: Way(
                lane,
                Stalls(_planned(schedule, direction, seed)),
                direction,
                _others(schedule, seed),
                self._breaks,
            )
            for direction, lane in link.lanes().items()
        }
        self.up, self.down = self.ways["up"], self.ways["down"]
        self.connections = 1
        self._by_token = sorted(
            (e for e in schedule.entries if e.token is not None), key=lambda e: e.token or 0, reverse=True
        )
        self.next_token = self._by_token[-1].token if self._by_token else None
        """The token of this answer that the next fault waits for; None: no fault waits for one."""
        self._before = 0

    @property
    def told_s(self) -> float:
        """When the device learns that its connection broke under a message; inf: it did not, or nobody tells."""
        return self._breaks.told_s

    def next_answer(self, before: int) -> None:
        """Another answer begins; tokens are counted over all answers, and there were so many ``before`` it."""
        self._before = before
        self._wait()

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
        self._breaks.connect(now)
        for way in self.ways.values():
            way.flow = way.lane.flow()
        there = self.up.send(0, now)
        return there if there == math.inf else self.down.send(0, there)

    def on_token(self, token: int, now: float) -> bool:
        """The answer's token number ``token`` is on display at ``now``: whether a fault that waited for it began."""
        began = False
        while self._by_token and (self._by_token[-1].token or 0) <= token + self._before:
            entry = self._by_token.pop()
            broken = break_of(entry, now)
            if broken is not None:
                self._breaks.add(broken)
            for direction in _directions(entry):
                self.ways[direction].stalls.add(now, FOREVER if entry.for_s is None else now + entry.for_s)
            for way in self.ways.values():
                way.free = False
            began = True
        self._wait()
        return began

    def _wait(self) -> None:
        token = self._by_token[-1].token if self._by_token else None
        self.next_token = None if token is None else token - self._before


def check(entries: Iterable[Scheduled]) -> None:
    """Raise `BadConfig` for the first fault that virtual time does not play."""
    for entry in entries:
        if not isinstance(entry.fault, PLAYED):
            known = ", ".join(sorted(kind.kind for kind in PLAYED if kind is not Relink))
            raise BadConfig(
                entry.fault.kind, f"virtual time knows {known}; drive other faults through the proxy"
            )


def _others(schedule: Schedule, seed: int) -> Iterator[Scheduled]:
    """All that happens by time, in order, where there may be more than outages."""
    script = sorted((e for e in schedule.entries if e.at_s is not None), key=_at)
    process = schedule.random_outages
    if process is not None and not isinstance(process, OutageProcess):
        return heapq.merge(script, process.outages(seed), key=_at)
    return iter(()) if all(isinstance(entry.fault, Outage) for entry in script) else iter(script)


def _at(entry: Scheduled) -> float:
    return entry.at_s or 0.0


def _planned(schedule: Schedule, direction: Direction, seed: int) -> Iterator[tuple[float, float]]:
    """The outages of one direction that have their time already, in order.

    Whatever else happens is an outage of no length: an endless ride without outages must not be searched for one.
    """
    script = sorted(_interval(e, direction) for e in schedule.entries if e.at_s is not None)
    process = schedule.random_outages
    if process is None:
        return iter([each for each in script if each[0] < each[1]])
    return heapq.merge(script, (_interval(e, direction) for e in process.outages(seed)))


def _interval(entry: Scheduled, direction: Direction) -> tuple[float, float]:
    begin = entry.at_s or 0.0
    if direction not in _directions(entry):
        return begin, begin
    return begin, FOREVER if entry.for_s is None else begin + entry.for_s


def _directions(entry: Scheduled) -> tuple[Direction, ...]:
    return both(entry.fault.direction) if isinstance(entry.fault, Outage) else ()
