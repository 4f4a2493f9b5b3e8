"""Where a round goes: the parts add up to the time between verdicts, counted by hand and in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.client.cost import StepCost
from outrider.client.events import Label
from outrider.netsim.events.schema import RoundLine, TokensLine
from outrider.netsim.report.parts import parts
from outrider.netsim.settings import LinkSettings
from outrider.netsim.virtual.acceptance import by_alpha
from outrider.netsim.virtual.modes import MODES
from outrider.netsim.virtual.planner import Device
from outrider.netsim.virtual.run import Setup, logged
from outrider.netsim.virtual.server import VerifierCost
from tests.netsim.small_log import LINES


def test_parts_are_counted_by_hand() -> None:
    """Of the small log one draft follows a verdict: sent 1.6 s after it, 60 ms at the verifier, 1.04 s on the way."""
    found = parts(LINES)
    assert found is not None and found.rounds == 1
    told = (found.device_s, found.link_s, found.queue_s, found.compute_s)
    assert told == pytest.approx((1.6, 1.04, 0.0, 0.06)) and found.round_s == pytest.approx(2.7)


def test_nothing_is_said_without_a_draft_that_follows_a_verdict() -> None:
    """First rounds, plain steps, repeated and unjudged drafts have no parts."""
    second = next(line for line in LINES if isinstance(line, RoundLine) and line.round == 2)
    at = LINES.index(second)
    for other in (replace(second, nodes=0), replace(second, replayed=True), replace(second, outcome="busy")):
        assert parts((*LINES[:at], other, *LINES[at + 1 :])) is None


def test_run_ahead_is_not_the_devices_time() -> None:
    """The device's part begins at the last token that the verifier decoded by itself; its own do not matter."""
    second = next(line for line in LINES if isinstance(line, RoundLine) and line.round == 2)
    at = LINES.index(second)
    told = {}
    for label in (Label.RUN_AHEAD, Label.PROVISIONAL):
        shown = TokensLine(at_s=1.9, start=13, labels=(label,))
        found = parts((*LINES[:at], shown, *LINES[at:]))
        assert found is not None
        told[label] = found.device_s
    assert told == {Label.RUN_AHEAD: pytest.approx(0.1), Label.PROVISIONAL: pytest.approx(1.6)}


def test_parts_of_virtual_rounds_are_what_was_asked_for() -> None:
    """Chains on a link of 40 ms round trip: 30 ms of pass, the link's 40 ms and little more, 2 ms a drafted token."""
    setup = Setup(
        device=Device(kind="chain", step=StepCost(0.0, 0.002), acceptance=by_alpha(0.6)),
        cost=VerifierCost.constant(0.03),
        link=LinkSettings.of(rtt_ms=40),
    )
    found = parts(logged(setup, MODES["chain"]))
    assert found is not None and found.rounds > 20
    assert found.compute_s == pytest.approx(0.03) and found.queue_s == 0.0
    assert found.link_s == pytest.approx(0.04, abs=1e-9) and 0.0 < found.device_s < 0.02
