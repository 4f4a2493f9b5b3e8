"""Whole rides in virtual time: a scenario's phases, faults and questions, with any mode, as often as there are seeds.

The timeline is the one that `outrider-sim run` rides (`scenario.ride`). A question is its number of tokens; every one
has a session of its own, as there, and the link's time goes on from one to the next. Not played are the device's fixed
sizes, its rule and its temperature, and its patience while an outage has an end: it waits for it. A ride that ends asks
nothing more; the answer under way is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outrider.netsim.link import Link
from outrider.netsim.scenario.model import Scenario
from outrider.netsim.scenario.ride import Ride
from outrider.netsim.virtual.modes import Mode
from outrider.netsim.virtual.outcome import Outcome, together
from outrider.netsim.virtual.planner import Device
from outrider.netsim.virtual.server import VerifierCost, serve_alone
from outrider.netsim.virtual.session import Answer, Session
from outrider.netsim.virtual.wire import VirtualLink, check

TEXTS = 2**32
"""Between the seeds of a ride's texts: the first question's is the ride's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Riding:
    """Who rides. Raises `BadConfig` where the scenario has faults that virtual time does not play."""

    scenario: Scenario
    device: Device
    cost: VerifierCost
    answer: Answer
    """Of every question; its seed is the first ride's."""
    rides: int = 1
    """Seeds count up from the answer's."""

    def __post_init__(self) -> None:
        check(self.scenario.faults)
        for phase in self.scenario.phases:
            check(phase.faults)


def ride(riding: Riding, mode: Mode, seed: int) -> Outcome:
    """All questions of one ride, one after the other; sums as of one answer."""
    timeline, cost = Ride(riding.scenario), riding.cost
    link = VirtualLink(Link(timeline.link, seed), timeline.schedule(), seed)
    outcomes: list[Outcome] = []
    now, tokens = 0.0, 0
    for number in range(len(riding.scenario.questions)):
        if now >= timeline.end_s:
            break
        link.next_answer(tokens)
        answer = replace(riding.answer, seed=seed + number * TEXTS)
        session = Session(riding.device, answer, link, cost, mode.pacing, asked_s=now)
        session.solo = True
        serve_alone(mode.run(session), cost)
        outcomes.append(Outcome.of(session))
        tokens += outcomes[-1].tokens
        now += outcomes[-1].seconds
        if session.cut_off:  # the device waits for the link as long as it is told to
            now += riding.scenario.device.patience_s
    return together(outcomes)


def rides(riding: Riding, modes: Sequence[Mode]) -> list[dict[str, Any]]:
    """A cell a mode: the figures over all rides, and the share of their time in which the device wrote alone.

    Modes without a drafter have no such share: they wait.
    """
    cells = []
    first = riding.answer.seed
    for mode in modes:
        told = together([ride(riding, mode, seed) for seed in range(first, first + riding.rides)]).figures()
        share = told["offline_s"] / told["seconds"] if told["seconds"] and mode.pacing is not None else None
        place = {"scenario": riding.scenario.name, "mode": mode.name, "rides": riding.rides}
        cells.append(place | told | {"offline_share": None if share is None else round(share, 6)})
    return cells
