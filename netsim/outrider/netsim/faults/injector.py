"""`Injector`: carries out a schedule on a network's controls. No clock, no timers: the caller passes the time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from outrider.netsim.faults.base import Controls, End, Fault
from outrider.netsim.faults.schedule import Schedule, Scheduled, check_duration

Record = Callable[[str, dict[str, Any]], None]
"""Called with an event's name and its fields."""


def describe(fault: Fault) -> dict[str, Any]:
    """The fault's kind and numbers, for logs; fields left out of its repr are left out here too."""
    return {"fault": fault.kind, **{f.name: getattr(fault, f.name) for f in fields(fault) if f.repr}}


class Injector:
    """Begins and ends faults. Times are the network's; the schedule counts from `start`, which may come late.

    Entries at 0 s begin with the injector itself, so that a first connection can be refused.
    """

    def __init__(
        self, schedule: Schedule, controls: Controls, *, seed: int = 0, record: Record | None = None
    ) -> None:
        self._controls = controls
        self._record: Record = record if record is not None else lambda event, fields: None
        self._timed = sorted(
            (e for e in schedule.entries if e.at_s is not None), key=lambda e: e.at_s or 0.0, reverse=True
        )
        self._by_token = sorted(
            (e for e in schedule.entries if e.token is not None), key=lambda e: e.token or 0, reverse=True
        )
        process = schedule.random_outages
        self._random: Iterator[Scheduled] = iter(()) if process is None else process.outages(seed)
        self._next_random = next(self._random, None)
        self._started: float | None = None
        self._open: dict[int, tuple[Fault, End]] = {}
        self._ends: list[tuple[float, int]] = []
        self._count = 0
        self.moment: float | None = None
        """While a planned fault begins or ends: when it was to. A late timer must not make an outage longer."""

    @property
    def open_faults(self) -> tuple[dict[str, Any], ...]:
        """The faults that are on now, oldest first."""
        return tuple({"id": key, **describe(fault)} for key, (fault, _) in self._open.items())

    def start(self, now: float) -> None:
        """Start the schedule's clock; a second call changes nothing."""
        if self._started is None:
            self._started = now
            self.advance(now)

    def advance(self, now: float) -> None:
        """Begin and end everything due at `now`, in the order of time."""
        while (moment := self._next()) is not None and moment[0] <= now:
            self._step(*moment)

    def wake_at(self) -> float | None:
        """When `advance` has something to do next; `None`: nothing is planned."""
        moment = self._next()
        return None if moment is None else moment[0]

    def on_token(self, token: int, now: float) -> None:
        """Report that the controller saw token number `token`: begins what waits for it or an earlier one."""
        self.advance(now)
        while self._by_token and (self._by_token[-1].token or 0) <= token:
            entry = self._by_token.pop()
            self.trigger(entry.fault, now, entry.for_s)

    def trigger(self, fault: Fault, now: float, for_s: float | None = None) -> int:
        """Begin a fault at `now`; returns its number for `end`. Raises `BadConfig` for an impossible duration."""
        check_duration(fault, for_s)
        self._count += 1
        key = self._count
        self._record("fault-begin", {"id": key, **describe(fault), "for_s": for_s})
        end = fault.begin(self._controls)
        if not fault.instant:
            self._open[key] = (fault, end)
            if for_s is not None:
                heapq.heappush(self._ends, (now + for_s, key))
        return key

    def end(self, key: int) -> None:
        """End fault number `key` now; a fault that is over already is left alone."""
        found = self._open.pop(key, None)
        if found is not None:
            fault, end = found
            self._record("fault-end", {"id": key, "fault": fault.kind})
            end()

    def _next(self) -> tuple[float, str] | None:
        while self._ends and self._ends[0][1] not in self._open:
            heapq.heappop(self._ends)
        moments: list[tuple[float, str]] = []
        if self._ends:
            moments.append((self._ends[0][0], "end"))
        if self._timed and (self._started is not None or self._timed[-1].at_s == 0):
            moments.append(((self._started or 0.0) + (self._timed[-1].at_s or 0.0), "timed"))
        if self._next_random is not None and self._started is not None:
            moments.append((self._started + (self._next_random.at_s or 0.0), "random"))
        return min(moments, default=None)

    def _step(self, time: float, what: str) -> None:
        self.moment = time
        try:
            self._carry_out(time, what)
        finally:
            self.moment = None

    def _carry_out(self, time: float, what: str) -> None:
        if what == "end":
            self.end(heapq.heappop(self._ends)[1])
        elif what == "timed":
            entry = self._timed.pop()
            self.trigger(entry.fault, time, entry.for_s)
        elif self._next_random is not None:
            entry, self._next_random = self._next_random, next(self._random, None)
            self.trigger(entry.fault, time, entry.for_s)
