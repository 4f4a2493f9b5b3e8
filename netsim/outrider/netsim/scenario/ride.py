"""A scenario in time: which phase when, and every fault of it in order."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from outrider.netsim.faults import Relink, Schedule, Scheduled
from outrider.netsim.scenario.model import Phase, Scenario
from outrider.netsim.settings import LinkSettings


@dataclass(frozen=True, slots=True)
class Span:
    """A phase as it is ridden: from `start_s` to before `end_s`, seconds from the ride's start."""

    phase: Phase
    start_s: float
    end_s: float
    """`inf` for one that goes on."""
    number: int
    """Spans before it; with the seed it fixes everything random in it."""


@dataclass(frozen=True, slots=True)
class Ride:
    """A scenario's timeline. A `faults.Process`: relinks, random outages and scripted faults of the phases, in order.

    A random outage ends with its phase at the latest; a scripted fault lasts as long as it says.
    """

    scenario: Scenario

    @property
    def link(self) -> LinkSettings:
        """The first phase's link: what the proxy begins with."""
        return self.scenario.phases[0].link

    @property
    def lap_s(self) -> float:
        """Seconds of all phases together, `inf` where the last has no duration."""
        return sum(math.inf if p.duration_s is None else p.duration_s for p in self.scenario.phases)

    @property
    def end_s(self) -> float:
        """When the run ends because the ride does; `inf`: not by itself."""
        return self.lap_s if self.scenario.after == "end" else math.inf

    def spans(self) -> Iterator[Span]:
        """The phases in the order of time; endless when the ride repeats."""
        phases, start, number = self.scenario.phases, 0.0, 0
        while True:
            for index, phase in enumerate(phases):
                last = index == len(phases) - 1 and self.scenario.after == "stay"
                end = math.inf if last or phase.duration_s is None else start + phase.duration_s
                yield Span(phase, start, end, number)
                start, number = end, number + 1
            if self.scenario.after != "repeat" or math.isinf(start):
                return

    def at(self, time_s: float) -> Span:
        """The span of a moment; after the end of the ride the last one."""
        for span in self.spans():
            if time_s < span.end_s:
                break
        return span

    def outages(self, seed: int) -> Iterator[Scheduled]:
        """Everything that happens by time in the phases, in order; `at_s` counts from the ride's start."""
        for span in self.spans():
            if span.number:
                yield Scheduled(Relink(span.phase.name, span.phase.link, str(span.number)), at_s=span.start_s)
            yield from heapq.merge(_script(span), _random(span, seed), key=_at)

    def schedule(self) -> Schedule:
        """What the proxy carries out, beginning with `link`."""
        return Schedule(self.scenario.faults, random_outages=self)


def _at(entry: Scheduled) -> float:
    return entry.at_s or 0.0


def _script(span: Span) -> list[Scheduled]:
    return sorted((replace(fault, at_s=span.start_s + _at(fault)) for fault in span.phase.faults), key=_at)


def _random(span: Span, seed: int) -> Iterator[Scheduled]:
    """The span's random outages, endless where it is: merged as they are needed."""
    process = span.phase.outages
    for outage in process.outages(_seed(seed, span.number)) if process is not None else ():
        at = span.start_s + _at(outage)
        if at >= span.end_s:
            return
        yield replace(outage, at_s=at, for_s=min(outage.for_s or 0.0, span.end_s - at))


def _seed(seed: int, number: int) -> int:
    digest = hashlib.sha256(f"outrider.netsim.scenario/{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big")
