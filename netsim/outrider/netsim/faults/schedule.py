"""When faults strike: by time, by token, or at random."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults.base import Fault
from outrider.netsim.faults.outage import Outage

TAIL_Z = 2.3263478740408408
"""The 99th percentile of the standard normal: what `OutageProcess.tail_s` means."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One fault with its moment: `at_s` seconds after the clock's start, or when token number `token` is reported."""

    fault: Fault
    at_s: float | None = None
    token: int | None = None
    for_s: float | None = None
    """How long it lasts; `None` is for ever."""

    def __post_init__(self) -> None:
        if (self.at_s is None) == (self.token is None):
            raise BadConfig(self.fault.kind, "give its moment either as at=<time> or as token=<number>")
        if self.at_s is not None and not (math.isfinite(self.at_s) and self.at_s >= 0):
            raise BadConfig("at", f"expected a time >= 0, got {self.at_s}")
        if self.token is not None and self.token < 0:
            raise BadConfig("token", f"expected a number >= 0, got {self.token}")
        check_duration(self.fault, self.for_s)


def check_duration(fault: Fault, for_s: float | None) -> None:
    """Raise `BadConfig` unless `for_s` can be the duration of this fault."""
    if for_s is None:
        return
    if fault.instant:
        raise BadConfig("for", f"a {fault.kind} is over at once and takes no duration; leave it out")
    if not (math.isfinite(for_s) and for_s > 0):
        raise BadConfig("for", f"expected a time above 0, got {for_s}")


class Process(Protocol):
    """An endless (or long) sequence of faults, made as it is needed."""

    def outages(self, seed: int) -> Iterator[Scheduled]:
        """The sequence for a seed, in the order of time; each entry has its `at_s`."""


@dataclass(frozen=True, slots=True)
class OutageProcess:
    """Random outages: on/off in time, exponential gaps, log-normal durations (heavy tails, as in mobile traces)."""

    gap_s: float
    """Mean time from the end of one outage to the next."""
    median_s: float
    tail_s: float
    """The 99th percentile of the duration."""

    def __post_init__(self) -> None:
        if not (self.gap_s > 0 and 0 < self.median_s <= self.tail_s < math.inf):
            raise BadConfig("outages", f"expected gap > 0 and 0 < median <= tail, got {self}")

    def outages(self, seed: int) -> Iterator[Scheduled]:
        """The endless sequence for a seed, in the order of time, never overlapping."""
        rng = random.Random(f"outrider.netsim/{seed}/outages")
        sigma = math.log(self.tail_s / self.median_s) / TAIL_Z
        time = 0.0
        while True:
            time += rng.expovariate(1 / self.gap_s)
            duration = self.median_s * math.exp(sigma * rng.gauss(0.0, 1.0))
            yield Scheduled(Outage(), at_s=time, for_s=duration)
            time += duration


@dataclass(frozen=True, slots=True)
class Schedule:
    """A script of faults, and optionally random outages besides. Immutable: each method returns a longer one."""

    entries: tuple[Scheduled, ...] = ()
    random_outages: Process | None = None

    def at(self, at_s: float, fault: Fault, for_s: float | None = None) -> Schedule:
        """Add a fault `at_s` seconds after the clock's start."""
        return self._with(Scheduled(fault, at_s=at_s, for_s=for_s))

    def at_token(self, token: int, fault: Fault, for_s: float | None = None) -> Schedule:
        """Add a fault for when the controller reports token number `token` or a later one."""
        return self._with(Scheduled(fault, token=token, for_s=for_s))

    @property
    def needs_tokens(self) -> bool:
        """Whether some fault waits for a token, so that somebody must report them."""
        return any(entry.token is not None for entry in self.entries)

    def _with(self, entry: Scheduled) -> Schedule:
        return Schedule((*self.entries, entry), self.random_outages)
