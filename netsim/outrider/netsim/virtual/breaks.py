"""When a connection dies, in virtual time: resets, blackholes and half-open stretches, known ahead as stalls are.

A message of a connection that a break strikes is lost if it would arrive after the break's begin; the device is told so
at its end, by a reset. It has its own deadlines besides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from outrider.netsim.faults import Blackhole, HalfOpen, Reset, Scheduled
from outrider.netsim.faults.base import both
from outrider.netsim.settings import DIRECTIONS, Direction

KINDS = (Reset, Blackhole, HalfOpen)


@dataclass(frozen=True, slots=True)
class Break:
    """One of them. Real seconds."""

    begin_s: float
    end_s: float
    """When the connection is reset; inf: never."""
    directions: tuple[Direction, ...]
    """Which bytes are lost from the begin on; all others are from the end on."""
    newcomers: bool
    """It strikes connections made meanwhile too."""


def break_of(entry: Scheduled, begin_s: float) -> Break | None:
    """The break that a scheduled fault is; None where it is none."""
    fault = entry.fault
    if isinstance(fault, Reset):
        return Break(begin_s, begin_s, DIRECTIONS, False)
    if not isinstance(fault, (Blackhole, HalfOpen)):
        return None
    end_s = math.inf if entry.for_s is None else begin_s + entry.for_s
    return Break(begin_s, end_s, both(fault.direction), isinstance(fault, Blackhole))


class Breaks:
    """The breaks of a link, drawn as far as they are needed, and what they do to its one connection."""

    def __init__(self, source: Iterator[Scheduled]) -> None:
        """``source``: everything that happens by time, in order; what is no break is passed over."""
        self._source = source
        self._ahead = next(source, None)
        self._known: list[Break] = []
        self._opened_s = 0.0
        self.told_s = math.inf
        """When the device learns that the connection is dead; inf: no message of it was lost, or it never does."""

    @property
    def none(self) -> bool:
        """Whether there is none and never will be by itself."""
        return not self._known and self._ahead is None

    def add(self, one: Break) -> None:
        """One more, e.g. one that a token has brought."""
        self._known.append(one)

    def connect(self, now: float) -> None:
        """A new connection instead of the old one."""
        self._opened_s, self.told_s = now, math.inf
        self._known = [one for one in self._known if one.end_s > now]

    def lost(self, direction: Direction, arrival: float) -> bool:
        """Whether a message of the connection that would arrive then never does."""
        if arrival == math.inf:
            return True
        while self._ahead is not None and (self._ahead.at_s or 0.0) <= arrival:
            found = break_of(self._ahead, self._ahead.at_s or 0.0)
            if found is not None:
                self._known.append(found)
            self._ahead = next(self._source, None)
        lost = False
        for one in self._known:
            spared = one.end_s <= self._opened_s or (not one.newcomers and one.begin_s <= self._opened_s)
            if not spared and arrival > (one.begin_s if direction in one.directions else one.end_s):
                lost, self.told_s = True, min(self.told_s, one.end_s)
        return lost
