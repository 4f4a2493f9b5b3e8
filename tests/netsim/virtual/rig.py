"""Devices, verifiers and links for tests of virtual time."""

from __future__ import annotations

from collections.abc import Iterator

from outrider.client.cost import StepCost
from outrider.netsim.events.schema import Line, RoundLine
from outrider.netsim.faults import Schedule
from outrider.netsim.link import Link
from outrider.netsim.settings import LinkSettings
from outrider.netsim.virtual.acceptance import Acceptance, by_alpha
from outrider.netsim.virtual.journal import Journal
from outrider.netsim.virtual.modes import Mode
from outrider.netsim.virtual.planner import Device
from outrider.netsim.virtual.server import VerifierCost, serve_alone
from outrider.netsim.virtual.session import Answer, Session
from outrider.netsim.virtual.wire import VirtualLink
from outrider.shared.frames import CostCurve

STEP = StepCost(0.002, 0.0005)
CURVE = CostCurve((1, 8, 16, 24, 32), (20_000, 22_000, 26_000, 31_000, 36_000), 128, 900)
COST = VerifierCost(curve=CURVE)


def device(acceptance: Acceptance | None = None, **told: object) -> Device:
    """A drafter that is right in 7 of 10 first guesses, unless told otherwise."""
    return Device(kind="fake", step=STEP, acceptance=acceptance or by_alpha(0.7), **told)  # type: ignore[arg-type]


def constant(rtt_ms: float, mbit: float | None = 10) -> LinkSettings:
    """No jitter, no loss."""
    return LinkSettings.of(rtt_ms=rtt_ms, up_mbit=mbit, down_mbit=mbit)


def play(
    mode: Mode,
    link: LinkSettings,
    *,
    of: Device | None = None,
    cost: VerifierCost = COST,
    schedule: Schedule | None = None,
    tokens: int = 96,
    seed: int = 0,
) -> tuple[Session, list[Line]]:
    """One answer, and its log."""
    journal = Journal(start=64)
    wire = VirtualLink(Link(link, seed), schedule, seed)
    session = Session(of or device(), Answer(tokens=tokens, seed=seed), wire, cost, mode.pacing, journal)
    serve_alone(mode.run(session), cost)
    return session, journal.lines


def verdicts(lines: list[Line]) -> Iterator[RoundLine]:
    """The rounds of a log."""
    return (line for line in lines if isinstance(line, RoundLine))
