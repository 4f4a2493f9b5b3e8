"""Laws of simulated answers, whatever the link does."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.client.cost import StepCost
from outrider.client.events import Label
from outrider.netsim.errors import BadConfig
from outrider.netsim.events.order import Order
from outrider.netsim.events.schema import Line, TokensLine
from outrider.netsim.faults import Outage, OutageProcess, Schedule
from outrider.netsim.profiles import profile
from outrider.netsim.virtual.modes import MODES, mode
from outrider.netsim.virtual.outcome import Outcome, together
from outrider.netsim.virtual.run import Setup, simulate, simulate_many
from outrider.netsim.virtual.server import Passes, VerifierCost, serve_many
from outrider.netsim.virtual.session import Answer
from tests.netsim.virtual.rig import COST, constant, device, play, verdicts

LINKS = ("loopback", "5g-sa", "4g-bad", "leo", "subway", "train")
ROUGH = Schedule(random_outages=OutageProcess(4, 1, 12))


def display(lines: list[Line]) -> list[Label]:
    """What is on display at the end. Fails where a decided token was taken back."""
    shown: list[Label] = []
    for line in lines:
        if isinstance(line, TokensLine):
            place = line.start - 64
            if line.taken_back:
                assert set(shown[place:]) == {Label.PROVISIONAL}
                assert len(shown) - place == line.taken_back
                del shown[place:]
            assert place <= len(shown)
            shown[place : place + len(line.labels)] = line.labels
    return shown


@pytest.mark.parametrize("name", list(MODES))
@pytest.mark.parametrize("link", LINKS)
def test_tokens_are_conserved(name: str, link: str) -> None:
    """Every token asked for is decided once, and what was shown before is kept or taken back."""
    chosen = profile(link)
    for seed in range(6):
        session, lines = play(MODES[name], chosen.link, schedule=chosen.schedule(), seed=seed)
        outcome = Outcome.of(session)
        assert outcome.verified == outcome.tokens == 96
        assert outcome.provisional == outcome.kept + outcome.revised
        assert len(display(lines)) == 96


@pytest.mark.parametrize("name", list(MODES))
def test_an_outage_never_loses_what_was_decided(name: str) -> None:
    """Through outages of seconds, some longer than the device's patience, no decided token leaves the display."""
    reconnects = 0
    for seed in range(12):
        session, lines = play(MODES[name], profile("4g-bad").link, schedule=ROUGH, seed=seed)
        shown = display(lines)
        assert len(shown) == 96
        assert Label.PROVISIONAL not in shown
        reconnects += session.counts.reconnects
    assert reconnects > 0


@pytest.mark.parametrize("name", list(MODES))
def test_simulated_logs_are_proper_logs(name: str) -> None:
    """The lines are in the order that readers of event logs insist on."""
    order = Order()
    _, lines = play(MODES[name], profile("train").link, schedule=ROUGH, seed=3)
    for line in lines:
        order.check(line)
    if name in ("chain", "tree"):
        assert sum(len(line.kinds) for line in verdicts(lines)) <= 96


def test_cut_for_good_the_device_writes_to_the_end_and_streaming_does_not() -> None:
    """After token 20 nothing comes: a drafter finishes the answer alone, labelled; without one it ends there."""
    cut = Schedule().at_token(20, Outage())
    for name in ("chain", "tree", "auto"):
        outcome = Outcome.of(play(MODES[name], constant(50), schedule=cut)[0])
        assert outcome.tokens == 96
        assert 20 <= outcome.verified < 40
        assert outcome.provisional >= 96 - outcome.verified
        assert math.isfinite(outcome.seconds)
    for name in ("stream", "unary"):
        outcome = Outcome.of(play(MODES[name], constant(50), schedule=cut)[0])
        assert outcome.tokens == outcome.verified < 40


def test_standalone_text_fills_the_gap() -> None:
    """A three-second outage is felt by streaming as a gap; with a drafter the longest gap is a fraction of it."""
    outage = Schedule().at(1.5, Outage(), for_s=2.5)
    slow = replace(device(), step=StepCost(0.02, 0.005))  # not done with the answer before the link is back
    gaps = {
        name: max(play(MODES[name], constant(50), of=slow, schedule=outage, tokens=256)[0].display.gaps_s)
        for name in ("stream", "chain", "tree", "auto")
    }
    assert gaps["stream"] > 2.4
    assert max(gaps["chain"], gaps["tree"], gaps["auto"]) < 1.0


def test_equal_seeds_are_equal_and_others_are_not() -> None:
    """A run is a function of its setup."""
    setup = Setup(device=device(), cost=COST, link=profile("train").link, schedule=ROUGH)
    for one in MODES.values():
        assert simulate(setup.seeded(5), one) == simulate(setup.seeded(5), one)
        assert simulate(setup.seeded(5), one) != simulate(setup.seeded(6), one)


def test_modes_meet_the_same_text() -> None:
    """At loopback, where nothing else differs, drafts of one token are right at the same places in any mode's text."""
    first, _ = play(MODES["chain"], constant(0, None))
    other, _ = play(MODES["tree"], constant(300, None))
    assert first.fortune == other.fortune


# ---------------------------------------------------------------------------------------------------- many devices


def _fake(requests: list[tuple[float, int, int]], got: list[tuple[float, ...]]) -> Passes:
    for request in requests:
        reply = yield request
        got.append(tuple(reply))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_first_come_first_served(seed: int) -> None:
    """No pass begins before its rows have come, passes never overlap, and who came first is never served later."""
    rng = random.Random(seed)
    arrivals = [rng.uniform(0, 0.3) for _ in range(12)]
    got: list[list[tuple[float, ...]]] = [[] for _ in arrivals]
    sessions = [_fake([(at, 9, 1)], into) for at, into in zip(arrivals, got, strict=True)]
    load = serve_many(sessions, VerifierCost(curve=COST.curve, max_step_tokens=30))
    spans = sorted({replies[0] for replies in got})
    assert len(spans) == load.passes
    assert load.rows == 9 * 12
    for (_, end), (begin, _) in zip(spans, spans[1:], strict=False):
        assert begin >= end
    order = [got[number][0][0] for number in sorted(range(12), key=lambda number: arrivals[number])]
    assert order == sorted(order)
    assert all(replies[0][0] >= at for at, replies in zip(arrivals, got, strict=True))


@pytest.mark.parametrize("name", list(MODES))
def test_one_of_many_is_one_alone(name: str) -> None:
    """A single device on the shared verifier fares as on its own."""
    setup = Setup(device=device(), cost=COST, link=profile("4g-medium").link, answer=Answer(tokens=64))
    alone = simulate(setup, MODES[name])
    (shared,), load = simulate_many([setup], MODES[name])
    assert shared.gaps_s == pytest.approx(alone.gaps_s)
    assert shared.tokens == alone.tokens
    assert load.busy_s == pytest.approx(alone.forward_s)


def test_packed_passes_share_the_verifier() -> None:
    """Sixteen devices get more tokens a second together than one, each fewer; none loses any."""
    setups = [Setup(device=device(), cost=COST, link=constant(40)).seeded(seed) for seed in range(16)]
    trees = MODES["tree"]
    alone = simulate(setups[0], trees)
    outcomes, load = simulate_many(setups, trees)
    both = together(outcomes)
    assert both.verified == 16 * 128
    assert max(one.seconds for one in outcomes) > alone.seconds
    assert both.tokens / max(one.seconds for one in outcomes) > 2 * alone.tokens / alone.seconds
    assert load.busy_s < both.forward_s


def test_modes_are_found_by_name() -> None:
    """Each mode knows its name; others are refused with the names there are."""
    assert [mode(name).name for name in MODES] == list(MODES)
    with pytest.raises(BadConfig, match="stream, unary, chain, tree, auto"):
        mode("both")
