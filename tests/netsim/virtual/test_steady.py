"""The short cuts for constant links give what the general moves give."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outrider.client.cost import StepCost
from outrider.client.drafter import Law
from outrider.netsim.faults import Outage, Schedule
from outrider.netsim.profiles import profile
from outrider.netsim.settings import LinkSettings
from outrider.netsim.virtual.acceptance import Acceptance, Runs, by_alpha, luck, shape_of
from outrider.netsim.virtual.journal import Journal
from outrider.netsim.virtual.modes import MODES
from outrider.netsim.virtual.outcome import Outcome
from outrider.netsim.virtual.run import Setup, simulate
from outrider.netsim.virtual.server import Load, VerifierCost, serve_alone
from outrider.netsim.virtual.session import Answer, Session
from outrider.netsim.virtual.steady import Steady, steady_of
from tests.netsim.virtual.rig import COST, CURVE, constant, device, play, verdicts

BROKEN_US = VerifierCost(curve=CURVE, excess_s=0.0010005, rows_s=0.002)
"""No pass is a whole number of microseconds, which is what a device is told: cut, it could be either of two."""


def at_length(setup: Setup, name: str) -> Outcome:
    """The same answer by the general moves."""
    session = setup.session(MODES[name])
    serve_alone(MODES[name].run(session), setup.cost)
    return Outcome.of(session)


def ended(setup: Setup, name: str, *, solo: bool) -> tuple[Session, Load]:
    """The session at its end, with short cuts or without, and what the verifier was asked for."""
    session, load = setup.session(MODES[name]), Load()
    session.solo = solo
    serve_alone(MODES[name].run(session), setup.cost, load)
    return session, load


def differences(setup: Setup, name: str) -> list[str]:
    """What differs by more than a nanosecond between both ways: figures, gaps, rounds, and what the session holds."""
    (quick, _), (general, _) = ended(setup, name, solo=True), ended(setup, name, solo=False)
    pairs = {
        field: (asdict(Outcome.of(quick))[field], value)
        for field, value in asdict(Outcome.of(general)).items()
    }
    held = ("now", "committed", "left", "tail", "shown", "offset", "drafter_free", "progress_at", "excess_s")
    pairs |= {name: (getattr(quick, name), getattr(general, name)) for name in (*held, "judged", "right")}
    return [
        field for field, (one, other) in pairs.items() if one != pytest.approx(other, abs=1e-9, rel=1e-12)
    ]


@pytest.mark.parametrize("name", list(MODES))
@pytest.mark.parametrize("rtt_ms", [0, 7, 40, 85, 300])
@pytest.mark.parametrize("mbit", [None, 10, 1])
def test_short_cuts_change_nothing(name: str, rtt_ms: float, mbit: float | None) -> None:
    """Every figure, every gap and every round to a nanosecond, with and without state rows."""
    for alpha, row_bytes in ((0.2, 0), (0.7, 1960), (0.95, 500)):
        of = device(by_alpha(alpha), row_bytes=row_bytes)
        setup = Setup(device=of, cost=COST, link=constant(rtt_ms, mbit), answer=Answer(tokens=160, seed=3))
        quick, general = asdict(simulate(setup, MODES[name])), asdict(at_length(setup, name))
        for field, value in general.items():
            assert quick[field] == pytest.approx(value, abs=1e-9, rel=1e-12), field


LAWS: tuple[Law, ...] = (
    ((0.6, 0.2, 0.1), (0.95, 0.02), (0.9, 0.05), (0.3, 0.2, 0.1)),
    ((0.9, 0.05), (0.2, 0.2), (0.99, 0.005)),
    ((1.0,), (0.7, 0.2), (0.0,)),
)
"""By depth as drafters have them, and as none has."""
DEVICES = (
    replace(device(by_alpha(0.95), row_bytes=1960), step=StepCost(0.0002, 0.0001)),
    replace(device(by_alpha(0.8)), step=StepCost(0.02, 0.004)),
    replace(device(Acceptance(LAWS[0]), row_bytes=1960), step=StepCost(0.016, 0.004)),
    device(Acceptance(LAWS[1]), row_bytes=500, expected=()),
    device(Acceptance(LAWS[2]), expected=by_alpha(0.9).law),
    device(by_alpha(0.0), expected=by_alpha(0.8).law),
)
"""Quick and slow ones, with state rows or without, told the truth about themselves or not."""
rtts_ms = st.one_of(st.sampled_from([0.0, 1.0, 1200.0, 1500.0, 4000.0]), st.floats(0, 400))
rates_mbit = st.one_of(st.none(), st.floats(0.02, 1), st.floats(1, 50))


SLOW_DOWN = LinkSettings.of(rtt_ms=86, down_mbit=0.25)
"""Rows are in the way now and then, so that rounds of both kinds alternate."""


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """One of the devices, and a constant link of any speed."""
    rtt_ms, up, down = draw(rtts_ms), draw(rates_mbit), draw(rates_mbit)
    answer = Answer(
        prompt=draw(st.integers(1, 200)), tokens=draw(st.integers(1, 200)), seed=draw(st.integers(0, 10**6))
    )
    link = LinkSettings.of(rtt_ms=rtt_ms, up_mbit=up, down_mbit=down)
    return Setup(device=draw(st.sampled_from(DEVICES)), cost=BROKEN_US, link=link, answer=answer)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(setups(), st.sampled_from(["chain", "tree", "auto"]))
@example(
    Setup(device=DEVICES[2], cost=BROKEN_US, link=SLOW_DOWN, answer=Answer(prompt=1, tokens=51, seed=1)),
    "tree",
)
def test_rounds_of_any_kind_are_the_general_ones(setup: Setup, name: str) -> None:
    """Fresh drafts, drafts made ahead, extended ones, late ones, ends: the same rounds, counts and state afterwards."""
    assert differences(setup, name) == []


AHEAD = Setup(
    device=replace(device(by_alpha(0.8), row_bytes=1960), step=StepCost(0.02, 0.004)),
    cost=BROKEN_US,
    link=constant(30),
    answer=Answer(tokens=200),
)


@pytest.mark.parametrize("name", ["chain", "tree"])
def test_rounds_drafted_ahead_are_taken_there_too(name: str) -> None:
    """A third of these rounds leaves sooner than it could be drafted; none is left to the general moves."""
    _, lines = play(MODES[name], AHEAD.link, of=AHEAD.device, cost=AHEAD.cost, tokens=200)
    found = list(verdicts(lines))
    level_s = AHEAD.device.step.level_s(1)
    sooner = [
        after.sent_s - before.got_s < after.depth * level_s - 1e-9
        for before, after in zip(found, found[1:], strict=False)
    ]
    assert sum(sooner) > len(found) / 3
    session, load = ended(AHEAD, name, solo=True)
    assert session.counts.rounds == len(found)
    assert load.passes <= 4  # the prompt's, the first token's, and rounds behind the prompt's state rows


def known(setup: Setup, name: str, *, solo: bool) -> dict[int, tuple[float, ...]]:
    """By tokens decided, at every request to the verifier: what the device knows of the link by then."""
    session, free = setup.session(MODES[name]), 0.0
    session.solo = solo
    passes, found = MODES[name].run(session), {}
    request = next(passes, None)
    while request is not None:
        found[session.committed] = tuple(asdict(session.deadlines).values())
        begin, one = max(request[0], free), setup.cost.seconds(request[1])
        ends = [begin + number * one for number in range(request[2] + 1)]
        free = ends[-1]
        try:
            request = passes.send(ends)
        except StopIteration:
            request = None
    return found


@pytest.mark.parametrize("name", ["chain", "tree"])
def test_kinds_of_rounds_may_alternate(name: str) -> None:
    """Where every fourth kind of round is not worked out, the rest fits between them, deadlines included."""
    other = replace(AHEAD, link=constant(31))
    assert differences(other, name) == []
    planner = other.session(MODES[name]).planner
    assert planner is not None
    (steady,) = (found for at, found in planner.steady.items() if at[0] == 15.5)
    assert isinstance(steady, Steady)
    for by_path in (*steady.chains.values(), *steady.trees.values()):
        by_path[::4] = [None] * len(by_path[::4])
    assert differences(other, name) == []
    short, long = known(other, name, solo=True), known(other, name, solo=False)
    assert 5 < len(short) < len(long) - 5
    for tokens, values in short.items():
        assert values == pytest.approx(long[tokens], abs=1e-9)


def test_a_wrong_short_cut_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: runs that end one guess early change what the property looks at."""
    assert differences(AHEAD, "chain") == []
    true = Runs.count
    monkeypatch.setattr(Runs, "count", lambda self, position: max(true(self, position) - 1, 0))
    other = replace(AHEAD, answer=replace(AHEAD.answer, seed=1))
    assert {"seconds", "gaps_s", "right"} <= set(differences(other, "chain"))


def test_what_a_tree_reaches_is_the_path_that_is_accepted() -> None:
    """Told the run of first guesses, a tree finds the length of its path, for trees of every size."""
    law = by_alpha(0.6).law
    other = Acceptance(((0.5, 0.2), (0.7, 0.1, 0.1, 0.05), (0.4, 0.3)))
    fortune = luck(5, 400)
    for nodes in range(33):
        shape = shape_of(law, 7, nodes, tree=True)
        for position in range(400):
            run = 0
            while fortune[position + run] < other.first[run]:
                run += 1
            path = shape.accepted(fortune, position, other.cumulated)
            assert shape.reached(fortune, position, other.cumulated, run) == len(path)


def test_where_something_can_happen_there_are_none() -> None:
    """Jitter, loss, an outage to come, a log to write or company at the verifier: the general moves."""
    plain = Setup(device=device(), cost=COST, link=constant(50))
    setups = [
        Setup(device=device(), cost=COST, link=profile("wifi").link),
        Setup(device=device(), cost=COST, link=profile("loopback").link.override(loss=0.01)),
        Setup(device=device(), cost=COST, link=constant(50), schedule=Schedule().at(9, Outage(), for_s=1)),
        Setup(device=device(), cost=COST, link=constant(50), schedule=Schedule().at_token(9, Outage())),
    ]
    mode = MODES["tree"]
    for setup in setups:
        session = setup.session(mode)
        session.solo = True
        assert steady_of(session) is None
    logged, shared, alone = plain.session(mode, Journal()), plain.session(mode), plain.session(mode)
    logged.solo = alone.solo = True
    assert steady_of(logged) is None
    assert steady_of(shared) is None
    assert steady_of(alone) is not None
