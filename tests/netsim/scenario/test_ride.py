"""A scenario in time: phases without gaps, faults in order, the same for the same seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.netsim.faults import Injector, Outage, OutageProcess, Relink, Reset, Scheduled
from outrider.netsim.profiles import PROFILES
from outrider.netsim.scenario import Phase, Ride, Scenario, parse
from outrider.netsim.scenario.model import AFTERS
from outrider.netsim.settings import LinkSettings

DURATIONS = st.floats(0.5, 100)


@st.composite
def phases(draw: st.DrawFn) -> Phase:
    """A phase with any link, outages and script."""
    duration = draw(DURATIONS)
    process = draw(st.sampled_from([None, OutageProcess(2, 0.5, 4), OutageProcess(30, 2, 60)]))
    moments = draw(st.lists(st.floats(0, duration, exclude_max=True), max_size=3))
    return Phase(
        name=draw(st.sampled_from("abc")),
        link=PROFILES[draw(st.sampled_from(["wifi", "4g-bad", "geo"]))].link,
        link_name="",
        duration_s=duration,
        outages=process,
        faults=tuple(Scheduled(Reset(), at_s=at) for at in moments),
    )


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """A ride of one to five phases; the last may be endless."""
    found = draw(st.lists(phases(), min_size=1, max_size=5))
    after = draw(st.sampled_from(AFTERS))
    if after == "stay" and draw(st.booleans()):
        found[-1] = replace(found[-1], duration_s=None, faults=())
    return Scenario(name="any", phases=tuple(found), after=after, seed=draw(st.integers(0, 2**40)))


def some(ride: Ride, most: int = 60) -> list[Scheduled]:
    return list(itertools.islice(ride.outages(ride.scenario.seed), most))


@given(scenarios())
@settings(max_examples=150, deadline=None)
def test_phases_follow_each_other_without_gaps(scenario: Scenario) -> None:
    """From 0 on, in the order of the file, each as long as it says; the ride ends, repeats or stays."""
    ride = Ride(scenario)
    spans = list(itertools.islice(ride.spans(), 12))
    assert spans[0].start_s == 0
    for index, (span, following) in enumerate(itertools.pairwise(spans)):
        assert span.end_s == following.start_s
        assert span.phase is scenario.phases[index % len(scenario.phases)]
        assert span.end_s - span.start_s == pytest.approx(span.phase.duration_s)
    assert [span.number for span in spans] == list(range(len(spans)))
    if scenario.after == "repeat":
        assert len(spans) == 12
    else:
        assert len(spans) == len(scenario.phases)
        assert math.isinf(spans[-1].end_s) == (scenario.after == "stay")
    assert ride.end_s == (pytest.approx(spans[-1].end_s) if scenario.after == "end" else math.inf)
    for span in spans:
        middle = span.start_s + min((span.end_s - span.start_s) / 2, 1.0)
        assert ride.at(middle) == span


@given(scenarios())
@settings(max_examples=150, deadline=None)
def test_faults_come_in_order_within_their_phases(scenario: Scenario) -> None:
    """Times never go back, every change of phase is there, and no random outage outlives its phase."""
    ride = Ride(scenario)
    found = some(ride)
    times = [entry.at_s or 0.0 for entry in found]
    assert times == sorted(times)
    reach = times[-1] if len(found) == 60 else math.inf
    begun = itertools.takewhile(lambda span: span.start_s <= reach, itertools.islice(ride.spans(), 1, 70))
    changes = [(entry.at_s, entry.fault.name) for entry in found if isinstance(entry.fault, Relink)]
    assert changes == [(span.start_s, span.phase.name) for span in begun][: len(changes)]
    for entry in found:
        span = ride.at(entry.at_s or 0.0)
        if isinstance(entry.fault, Outage):
            assert entry.for_s is not None
            assert (entry.at_s or 0.0) + entry.for_s <= span.end_s * (1 + 1e-12)


@given(scenarios())
@settings(max_examples=60, deadline=None)
def test_a_seed_fixes_the_ride_and_another_changes_its_outages(scenario: Scenario) -> None:
    """The same seed, the same sequence; scripted moments and phases do not depend on it."""
    ride = Ride(scenario)
    assert some(ride) == some(ride)
    other = list(itertools.islice(ride.outages(scenario.seed + 1), 60))
    mine = [entry for entry in some(ride) if isinstance(entry.fault, Outage)]
    theirs = [entry for entry in other if isinstance(entry.fault, Outage)]
    assert not mine or mine != theirs


def test_passes_of_a_repeating_ride_have_outages_of_their_own() -> None:
    """The second lap is not a copy of the first."""
    phase = Phase(name="a", link=LinkSettings(), link_name="", duration_s=60, outages=OutageProcess(5, 1, 4))
    ride = Ride(Scenario(name="x", phases=(phase,), after="repeat"))
    laps: list[list[float]] = [[], []]
    for entry in itertools.takewhile(lambda entry: (entry.at_s or 0.0) < 120, ride.outages(3)):
        if isinstance(entry.fault, Outage):
            laps[int((entry.at_s or 0.0) // 60)].append((entry.at_s or 0.0) % 60)
    assert laps[0] and laps[1] and laps[0] != pytest.approx(laps[1])


def test_outages_of_a_phase_follow_the_process_while_it_lasts() -> None:
    """Negative control and count: 200 laps of 100 s with a mean cycle of 12 s have 200 x 100/12 outages within 10 %.

    The number's standard error is about 2 %, so a process with half or twice the gap fails.
    """

    def count(gap: float) -> int:
        process = OutageProcess(gap, 1.9, 4)
        phase = Phase(name="a", link=LinkSettings(), link_name="", duration_s=100, outages=process)
        found: Iterator[Scheduled] = Ride(Scenario(name="x", phases=(phase,))).outages(5)
        within = itertools.takewhile(lambda entry: (entry.at_s or 0.0) < 20_000, found)
        return sum(isinstance(entry.fault, Outage) for entry in within)

    assert abs(count(10) / (20_000 / 12) - 1) < 0.1
    assert abs(count(5) / (20_000 / 12) - 1) > 0.3


class Network:
    """Controls that note when lanes stand still and when the link changes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[float, str]] = []

    def stall(self, direction: str) -> None:
        self.calls.append((self.now, f"stall {direction}"))

    def unstall(self, direction: str) -> None:
        self.calls.append((self.now, f"unstall {direction}"))

    def relink(self, link: LinkSettings, name: str) -> None:
        self.calls.append((self.now, f"relink {name}"))

    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"{name} was not asked for")


def test_the_injector_rides_a_scenario() -> None:
    """What the proxy does: phases change, scripted outages begin and end, the cut at a token never ends."""
    ride = Ride(
        parse(
            'cut_at_token = 9\n[[phases]]\nname = "a"\nlink = "wifi"\nfor = "10s"\n'
            'faults = [{ kind = "outage", at = "8s", for = "4s", dir = "up" }]\n'
            '[[phases]]\nname = "b"\nlink = "geo"\nfor = "5s"\n'
        )
    )
    network = Network()
    injector = Injector(ride.schedule(), network, seed=ride.scenario.seed)  # type: ignore[arg-type]
    injector.start(0.0)
    while (at := injector.wake_at()) is not None and at <= 26:
        network.now = at
        injector.advance(at)
    assert network.calls == [
        (8, "stall up"),
        (10, "relink b/1"),
        (12, "unstall up"),
        (15, "relink a/2"),
        (23, "stall up"),
        (25, "relink b/3"),
    ]
    network.now = 26.0
    injector.on_token(9, 26.0)
    assert network.calls[-2:] == [(26, "stall up"), (26, "stall down")]
    assert [fault["fault"] for fault in injector.open_faults] == ["outage", "outage"]
