"""Whole rides in virtual time: phases, faults and questions of a scenario, with any mode."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import Blackhole, Cut, HalfOpen, Outage, Reset, Scheduled
from outrider.netsim.profiles import profile
from outrider.netsim.scenario.model import Phase, Question, Scenario
from outrider.netsim.scenario.parse import read
from outrider.netsim.scenario.shipped import shipped
from outrider.netsim.settings import LinkSettings
from outrider.netsim.virtual.modes import MODES
from outrider.netsim.virtual.outcome import Outcome
from outrider.netsim.virtual.rides import Riding, ride
from outrider.netsim.virtual.run import Setup, simulate
from outrider.netsim.virtual.session import Answer
from outrider.netsim.virtual.sizes import (
    CALL_DOWN,
    CALL_UP,
    FRAMING,
    commit_bytes,
    draft_bytes,
    verdict_bytes,
)
from tests.netsim.program import exit_code
from tests.netsim.virtual.rig import COST, constant, device

FAR, NEAR = constant(200, 1), constant(20, 8)
FREE = constant(80, None)
PASS_S = COST.seconds(1)


def riding(
    *phases: Phase, tokens: int = 96, questions: int = 1, faults: tuple[Scheduled, ...] = ()
) -> Riding:
    """A ride through these phases; the last one goes on."""
    asked = tuple(Question(f"q{number}", "?") for number in range(questions))
    scenario = Scenario(name="test", phases=phases, after="stay", questions=asked, faults=faults)
    return Riding(scenario=scenario, device=device(), cost=COST, answer=Answer(tokens=tokens))


def phase(link: LinkSettings, duration_s: float | None = None, *faults: Scheduled) -> Phase:
    """One phase."""
    return Phase(name="phase", link=link, link_name="own", duration_s=duration_s, faults=faults)


def moments(outcome: Outcome) -> list[float]:
    """When tokens appeared."""
    found = list(outcome.firsts_s)
    for gap in outcome.gaps_s:
        found.append(found[-1] + gap)
    return found


@pytest.mark.parametrize("name", list(MODES))
@pytest.mark.parametrize("link", ["constant", "wifi", "4g-bad", "train"])
def test_a_ride_of_one_phase_is_its_link(name: str, link: str) -> None:
    """Nothing changes on the way: every figure is the one that the link alone gives."""
    chosen = constant(60) if link == "constant" else profile(link).link
    for seed in range(3):
        alone = simulate(
            Setup(device=device(), cost=COST, link=chosen, answer=Answer(tokens=96, seed=seed)), MODES[name]
        )
        assert ride(riding(phase(chosen)), MODES[name], seed) == alone


@pytest.mark.parametrize("name", list(MODES))
def test_a_switch_to_the_same_link_is_none(name: str) -> None:
    """On a constant link phases leave no trace, to a nanosecond."""
    one = ride(riding(phase(FAR)), MODES[name], 0)
    many = ride(riding(phase(FAR, 0.7), phase(FAR, 0.4), phase(FAR)), MODES[name], 0)
    assert moments(many) == pytest.approx(moments(one), abs=1e-9)
    assert (many.bytes_up, many.bytes_down, many.rounds) == (one.bytes_up, one.bytes_down, one.rounds)


def leg(link: LinkSettings, nbytes: int, *, up: bool) -> float:
    """Seconds of a message."""
    lane = link.up if up else link.down
    return nbytes / lane.bytes_per_s + lane.delay_ms / 1e3


@pytest.mark.parametrize(("before", "after"), [(FAR, NEAR), (NEAR, FAR)])
def test_calls_over_a_switch_are_what_they_are_by_hand(before: LinkSettings, after: LinkSettings) -> None:
    """Each message has the link of the moment at which it is sent, so one call may have both."""
    first = ride(riding(phase(before)), MODES["unary"], 0).firsts_s[0]
    switch = first + 5.4 * (leg(before, 100, up=True) + PASS_S + leg(before, 100, up=False))
    found = moments(ride(riding(phase(before, switch), phase(after), tokens=20), MODES["unary"], 0))
    up, down = draft_bytes(0, chain=True) + FRAMING + CALL_UP, verdict_bytes(1) + FRAMING + CALL_DOWN
    now, expected = first, [first]
    for _ in range(19):
        ended = now + leg(before if now < switch else after, up, up=True) + PASS_S
        now = ended + leg(before if ended < switch else after, down, up=False)
        expected.append(now)
    assert expected[0] < switch < expected[-1]
    assert found == pytest.approx(expected, abs=1e-9)


def test_tokens_on_their_way_are_not_overtaken() -> None:
    """A stream turns ten times nearer: what left before comes when it would have, what left after waits for it."""
    first = ride(riding(phase(FAR)), MODES["stream"], 0).firsts_s[0]
    switch = first + 0.5
    found = moments(ride(riding(phase(FAR, switch), phase(NEAR), tokens=60), MODES["stream"], 0))
    size = commit_bytes(1) + FRAMING
    made = first - leg(FAR, verdict_bytes(1) + FRAMING, up=False)
    expected, last = [first], first
    for number in range(1, 60):
        ended = made + number * PASS_S
        last = max(last, ended + leg(FAR if ended < switch else NEAR, size, up=False))
        expected.append(last)
    assert sum(a == b for a, b in zip(expected, expected[1:], strict=False)) >= 3  # they come together
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_reset_costs_a_new_stream_and_what_was_on_its_way() -> None:
    """A free link: two handshake legs, Open and its answer, then the tokens made meanwhile, together."""
    reset_s = 1.0
    outcome = ride(riding(phase(FREE, None, Scheduled(Reset(), at_s=reset_s)), tokens=80), MODES["stream"], 0)
    found = moments(outcome)
    back = next(at for at in found if at > reset_s)
    assert back == pytest.approx(reset_s + 2 * FREE.rtt_s, abs=1e-9)
    assert max(at for at in found if at <= reset_s) > reset_s - PASS_S - 1e-9
    assert (outcome.verified, outcome.reconnects) == (80, 1)
    unbroken = moments(ride(riding(phase(FREE), tokens=80), MODES["stream"], 0))
    assert found[-1] == pytest.approx(unbroken[-1], abs=1e-9)  # the verifier went on


@pytest.mark.parametrize("kind", [Blackhole, HalfOpen])
def test_swallowed_bytes_never_come(kind: Callable[[], Blackhole | HalfOpen]) -> None:
    """A stream stands still until the end, or, where new connections are spared, until the device makes one."""
    struck = Scheduled(kind(), at_s=1.0, for_s=9.0)
    outcome = ride(riding(phase(FREE, None, struck), tokens=80), MODES["stream"], 0)
    back = next(at for at in moments(outcome) if at > 1.0)
    assert (outcome.verified, outcome.reconnects) == (80, 1)
    if kind is Blackhole:
        assert 10.0 < back < 10.5  # the reset at its end, a short back-off, two round trips
    else:
        assert 2.0 < back < 5.0  # the device's own patience with a silent stream


def test_the_cut_counts_tokens_of_all_answers() -> None:
    """Two answers of 50, cut at 70: the first is whole, the second is finished alone, and streaming stops there."""
    cut = (Scheduled(Outage(), token=70),)
    for name, mode in MODES.items():
        outcome = ride(riding(phase(FREE), tokens=50, questions=2, faults=cut), mode, 0)
        assert 70 <= outcome.verified < 84, name
        assert outcome.tokens == (100 if mode.pacing else outcome.verified)


@pytest.mark.parametrize("kind", [Reset, Blackhole, HalfOpen])
@pytest.mark.parametrize("name", list(MODES))
def test_faults_at_any_moment_lose_no_token(name: str, kind: type[Reset | Blackhole | HalfOpen]) -> None:
    """Struck every 50 ms from the handshake on, alone or again while reconnecting, each answer is whole in the end."""
    length = None if kind is Reset else 0.6
    for step in range(0, 40, 3):
        at = 0.05 * step
        faults = tuple(Scheduled(kind(), at_s=at + later, for_s=length) for later in (0.0, 0.9, 1.7))
        outcome = ride(riding(phase(constant(70, 6), None, *faults), tokens=60), MODES[name], step)
        assert outcome.verified == outcome.tokens == 60
        assert outcome.provisional == outcome.kept + outcome.revised


@pytest.mark.parametrize("scenario", ["commuter", "elevator", "subway"])
@pytest.mark.parametrize("name", list(MODES))
def test_shipped_rides_deliver_every_token(scenario: str, name: str) -> None:
    """Through switches, resets, blackholes and outages every token is decided once; equal seeds are equal."""
    chosen = read(shipped(scenario))
    of = Riding(scenario=chosen, device=device(), cost=COST, answer=Answer(tokens=chosen.device.max_tokens))
    asked = chosen.device.max_tokens * len(chosen.questions)
    outcomes = [ride(of, MODES[name], seed) for seed in range(6)]
    for outcome in outcomes:
        assert outcome.verified == outcome.tokens == asked
        assert outcome.provisional == outcome.kept + outcome.revised
    assert outcomes[2] == ride(of, MODES[name], 2) != outcomes[3]


def test_a_ride_that_ends_asks_nothing_more() -> None:
    """Of ten questions those are asked that fit."""
    of = riding(phase(FREE, 4.0), tokens=50, questions=10)
    ending = replace(of, scenario=replace(of.scenario, after="end"))
    assert 1 < ride(ending, MODES["stream"], 0).answers < 10 == ride(of, MODES["stream"], 0).answers


def test_faults_that_need_sockets_are_refused() -> None:
    """In a phase or of the ride, before anything is played."""
    cut = Scheduled(Cut("up", 9), at_s=1)
    with pytest.raises(BadConfig, match="proxy"):
        riding(phase(FREE, None, cut))
    with pytest.raises(BadConfig, match="proxy"):
        riding(phase(FREE), faults=(cut,))


# ------------------------------------------------------------------------------------------------- the command line


def test_equal_seeds_print_equal_bytes() -> None:
    """Two processes, a whole commuter ride each."""
    words = ["rides", "commuter", "--rides", "2", "--seed", "5", "--json"]
    program = [sys.executable, "-m", "outrider.netsim.cli", *words]
    first, second = (subprocess.run(program, capture_output=True, check=True).stdout for _ in range(2))
    assert first == second
    told = json.loads(first)
    assert told["rides"]["seed"] == 5
    for cell in told["cells"]:
        assert cell["answers"] == 4
        assert (cell["offline_share"] is None) is (cell["mode"] == "stream")


def test_the_table_has_a_line_a_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stdout and in a file of either kind."""
    page, cells = tmp_path / "rides.md", tmp_path / "rides.csv"
    for path in (page, cells):
        assert exit_code("rides", "flight", "--rides", "2", "--out", str(path), monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == 2 * page.read_text()
    rows = list(csv.DictReader(cells.read_text().splitlines()))
    assert [row["mode"] for row in rows] == ["stream", "chain", "tree", "auto"]
    assert int(rows[0]["tokens"]) < int(rows[1]["tokens"]) == 2 * 96


BAD = '[[phases]]\nname = "a"\nlink = "4g-goood"\n'
NEEDS_PROXY = '[[phases]]\nlink = "wifi"\nfaults = [{ kind = "cut", at = "1s", dir = "up", bytes = 9 }]\n'


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (BAD, [], "ride.toml:3:8: expected one of"),
        (NEEDS_PROXY, [], "cut: virtual time knows"),
        ('[[phases]]\nlink = "wifi"\n', ["--tau", "2,3"], "tau: expected one value"),
        ('[[phases]]\nlink = "wifi"\n', ["--rides", "0"], "rides: expected a number from 1"),
        ('[[phases]]\nlink = "wifi"\n', ["--mode", "both"], "mode: expected one of"),
    ],
)
def test_bad_rides_are_refused_with_their_place(
    text: str,
    options: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit code 78, and what was expected where."""
    path = tmp_path / "ride.toml"
    path.write_text(text)
    assert exit_code("rides", str(path), *options, monkeypatch=monkeypatch) == 78
    assert said in capsys.readouterr().err
