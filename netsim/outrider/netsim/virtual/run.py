"""Simulate answers: one device on a verifier of its own, or many devices on one verifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from outrider.netsim.events.schema import Line
from outrider.netsim.faults import Schedule
from outrider.netsim.link import Link
from outrider.netsim.settings import LinkSettings
from outrider.netsim.virtual.journal import Journal
from outrider.netsim.virtual.modes import Mode
from outrider.netsim.virtual.outcome import Outcome
from outrider.netsim.virtual.planner import Device
from outrider.netsim.virtual.server import Load, VerifierCost, serve_alone, serve_many
from outrider.netsim.virtual.session import Answer, Session
from outrider.netsim.virtual.wire import VirtualLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that decides how an answer goes."""

    device: Device
    cost: VerifierCost
    link: LinkSettings = field(default_factory=LinkSettings)
    schedule: Schedule = field(default_factory=Schedule)
    answer: Answer = field(default_factory=Answer)

    def seeded(self, seed: int) -> Setup:
        """The same with another seed for text, link and outages."""
        return replace(self, answer=replace(self.answer, seed=seed))

    def session(self, mode: Mode, journal: Journal | None = None) -> Session:
        """A fresh session, always the same one."""
        seed = self.answer.seed
        link = VirtualLink(Link(self.link, seed), self.schedule, seed)
        return Session(self.device, self.answer, link, self.cost, mode.pacing, journal)


def simulate(setup: Setup, mode: Mode) -> Outcome:
    """One answer on a verifier of its own."""
    session = setup.session(mode)
    session.solo = True
    serve_alone(mode.run(session), setup.cost)
    return Outcome.of(session)


def logged(setup: Setup, mode: Mode) -> list[Line]:
    """The event log of one answer, without its head."""
    journal = Journal(start=setup.answer.prompt)
    session = setup.session(mode, journal)
    serve_alone(mode.run(session), setup.cost)
    outcome = Outcome.of(session)
    journal.ended(outcome.seconds, outcome.verified == outcome.tokens, outcome.figures())
    return journal.lines


def simulate_many(setups: Sequence[Setup], mode: Mode) -> tuple[list[Outcome], Load]:
    """One answer on each device, all on one verifier with the first one's costs; all begin at 0."""
    sessions = [setup.session(mode) for setup in setups]
    load = serve_many([mode.run(session) for session in sessions], setups[0].cost)
    return [Outcome.of(session) for session in sessions], load
