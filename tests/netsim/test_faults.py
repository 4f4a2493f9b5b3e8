"""When faults strike and what they ask of a network: schedules, the injector, the text form."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import (
    Blackhole,
    Cut,
    Fault,
    HalfOpen,
    Injector,
    Outage,
    OutageProcess,
    Refuse,
    Relink,
    Reset,
    Schedule,
    Scheduled,
    parse_fault,
    parse_scheduled,
)
from outrider.netsim.pipe import CutArm, CutThen
from outrider.netsim.settings import Direction, LinkSettings

SLOW = LinkSettings.of(rtt_ms=900)


class FakeNetwork:
    """Controls that write down what they are asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def stall(self, direction: Direction) -> None:
        self.calls.append(("stall", direction))

    def unstall(self, direction: Direction) -> None:
        self.calls.append(("unstall", direction))

    def swallow(self, direction: Direction) -> None:
        self.calls.append(("swallow", direction))

    def unswallow(self, direction: Direction) -> None:
        self.calls.append(("unswallow", direction))

    def hold(self, directions: tuple[Direction, ...]) -> tuple[int, ...]:
        self.calls.append(("hold", *directions))
        return (1, 2)

    def reset(self, connections: tuple[int, ...] | None = None) -> None:
        self.calls.append(("reset", connections))

    def refuse(self) -> None:
        self.calls.append(("refuse",))

    def accept(self) -> None:
        self.calls.append(("accept",))

    def arm_cut(self, direction: Direction, nbytes: int, then: CutThen) -> CutArm:
        self.calls.append(("arm", direction, nbytes, then))
        return CutArm(nbytes, then)

    def relink(self, link: LinkSettings, name: str) -> None:
        self.calls.append(("relink", link, name))

    def disarm_cut(self, arm: CutArm) -> None:
        self.calls.append(("disarm", arm.remaining))


@pytest.mark.parametrize(
    ("fault", "begin", "end"),
    [
        (Outage("up"), [("stall", "up")], [("unstall", "up")]),
        (Outage(), [("stall", "up"), ("stall", "down")], [("unstall", "up"), ("unstall", "down")]),
        (Blackhole("down"), [("swallow", "down")], [("unswallow", "down")]),
        (HalfOpen(), [("hold", "up", "down")], [("reset", (1, 2))]),
        (Refuse(), [("refuse",)], [("accept",)]),
        (Reset(), [("reset", None)], []),
        (Relink("tunnel", SLOW, "1"), [("relink", SLOW, "tunnel/1")], []),
        (Cut("up", 9, "hold"), [("arm", "up", 9, "hold")], [("disarm", 9)]),
    ],
)
def test_each_kind_asks_for_its_effect_and_undoes_it(
    fault: Fault, begin: list[tuple[Any, ...]], end: list[tuple[Any, ...]]
) -> None:
    """What a fault does at its beginning and at its end, in full."""
    network = FakeNetwork()
    injector = Injector(Schedule(), network)
    key = injector.trigger(fault, 0.0)
    assert network.calls == begin
    injector.end(key)
    injector.end(key)  # over already: nothing more
    assert network.calls == begin + end


def test_faults_begin_and_end_at_their_times_after_the_start() -> None:
    """Times count from the start, and `wake_at` names the next one."""
    network = FakeNetwork()
    injector = Injector(Schedule().at(2, Outage("up"), 3), network)
    assert injector.wake_at() is None
    injector.advance(100.0)
    assert network.calls == []
    injector.start(100.0)
    assert injector.wake_at() == 102.0
    injector.advance(101.9)
    assert network.calls == []
    injector.advance(102.0)
    assert network.calls == [("stall", "up")]
    assert injector.wake_at() == 105.0
    assert [f["fault"] for f in injector.open_faults] == ["outage"]
    injector.advance(105.0)
    assert network.calls == [("stall", "up"), ("unstall", "up")]
    assert (injector.wake_at(), injector.open_faults) == (None, ())


def test_an_entry_at_zero_needs_no_start() -> None:
    """A refusal at 0 s is on before the first connection."""
    network = FakeNetwork()
    injector = Injector(Schedule().at(0, Refuse()), network)
    assert injector.wake_at() == 0.0
    injector.advance(0.0)
    assert network.calls == [("refuse",)]


def test_late_calls_lose_nothing_and_keep_the_order() -> None:
    """One late call carries out everything that was due, ends before beginnings of the same moment."""
    network = FakeNetwork()
    schedule = Schedule().at(1, Outage("up"), 1).at(2, Outage("down"), 1).at(2.5, Reset())
    injector = Injector(schedule, network)
    injector.start(0.0)
    injector.advance(60.0)
    expected = [("stall", "up"), ("unstall", "up"), ("stall", "down"), ("reset", None), ("unstall", "down")]
    assert network.calls == expected


def test_a_token_begins_what_waits_for_it_once() -> None:
    """Faults wait for their token, a skipped number counts as seen, and none strikes twice."""
    network = FakeNetwork()
    schedule = Schedule().at_token(20, Outage("up"), 3).at_token(5, Reset())
    assert schedule.needs_tokens
    injector = Injector(schedule, network)
    injector.start(0.0)
    injector.on_token(4, 1.0)
    assert network.calls == []
    injector.on_token(7, 2.0)
    assert network.calls == [("reset", None)]
    injector.on_token(20, 3.0)
    injector.on_token(21, 3.5)
    assert network.calls == [("reset", None), ("stall", "up")]
    assert injector.wake_at() == 6.0


def test_every_change_is_recorded() -> None:
    """Beginnings carry the fault's numbers, ends its id."""
    records: list[tuple[str, dict[str, Any]]] = []
    record: Callable[[str, dict[str, Any]], None] = lambda event, fields: records.append((event, fields))  # noqa: E731
    injector = Injector(Schedule(), FakeNetwork(), record=record)
    injector.trigger(Cut("up", 9), 1.0, 2.0)
    injector.advance(3.0)
    assert records == [
        (
            "fault-begin",
            {"id": 1, "fault": "cut", "direction": "up", "nbytes": 9, "then": "reset", "for_s": 2.0},
        ),
        ("fault-end", {"id": 1, "fault": "cut"}),
    ]


def test_random_outages_follow_their_law() -> None:
    """Mean gap, median and 99th percentile of the durations are those asked for; a seed fixes the sequence."""
    process = OutageProcess(gap_s=30, median_s=2, tail_s=60)
    drawn = list(itertools.islice(process.outages(7), 20_000))
    again = list(itertools.islice(process.outages(7), 50))
    assert drawn[:50] == again != list(itertools.islice(process.outages(8), 50))
    starts = [e.at_s or 0.0 for e in drawn]
    lengths = [e.for_s or 0.0 for e in drawn]
    gaps = [b - a - n for a, b, n in zip(starts, starts[1:], lengths, strict=False)]
    assert min(gaps) > 0
    assert statistics.mean(gaps) == pytest.approx(30, rel=0.03)
    assert statistics.median(lengths) == pytest.approx(2, rel=0.05)
    assert statistics.quantiles(lengths, n=100)[98] == pytest.approx(60, rel=0.15)


def test_random_outages_join_the_script() -> None:
    """The injector plays both, in the order of time, always with the end of one before the next."""
    network = FakeNetwork()
    schedule = Schedule(random_outages=OutageProcess(gap_s=5, median_s=1, tail_s=4)).at(50, Reset())
    injector = Injector(schedule, network, seed=3)
    injector.start(0.0)
    injector.advance(100.0)
    kinds = [call[0] for call in network.calls if call[0] == "reset" or call[1] == "up"]
    assert kinds.count("reset") == 1
    outages = [kind for kind in kinds if kind != "reset"]
    assert len(outages) > 10
    assert all(kind == ("stall", "unstall")[i % 2] for i, kind in enumerate(outages))


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("outage", "at=2s,for=3s", Scheduled(Outage(), at_s=2, for_s=3)),
        ("outage", "token=20, for=300ms, dir=up", Scheduled(Outage("up"), token=20, for_s=0.3)),
        ("blackhole", "at=1.5m,dir=down", Scheduled(Blackhole("down"), at_s=90)),
        ("halfopen", "at=0s,dir=both", Scheduled(HalfOpen(), at_s=0)),
        ("refuse", "at=1h,for=.5s", Scheduled(Refuse(), at_s=3600, for_s=0.5)),
        ("reset", "at=2s", Scheduled(Reset(), at_s=2)),
        ("cut", "at=0s,dir=up,bytes=120,then=hold", Scheduled(Cut("up", 120, "hold"), at_s=0)),
    ],
)
def test_text_becomes_the_fault_it_says(kind: str, text: str, expected: Scheduled) -> None:
    """The command line's form of every kind."""
    assert parse_scheduled(kind, text) == expected


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("outage", "at=2,for=3s", ["at", "'2'", "unit"]),
        ("outage", "at=2s,for=0s", ["for", "above 0"]),
        ("outage", "at=-2s", ["at", "duration"]),
        ("outage", "for=3s", ["at=<time>", "token="]),
        ("outage", "at=1s,token=3", ["either"]),
        ("outage", "at=1s,at=2s", ["at", "twice"]),
        ("outage", "at=1s,length=2s", ["does not know length"]),
        ("outage", "2s", ["name=value"]),
        ("outage", "at=1s,dir=left", ["dir", "up, down or both", "left"]),
        ("outage", "token=x", ["token", "whole number"]),
        ("reset", "at=1s,for=2s", ["for", "no duration"]),
        ("cut", "at=1s,bytes=3", ["dir=up or dir=down"]),
        ("cut", "at=1s,dir=up", ["bytes="]),
        ("cut", "at=1s,dir=up,bytes=1,then=melt", ["hold or reset", "melt"]),
        ("fire", "at=1s", ["outage", "fire"]),
    ],
)
def test_bad_text_is_refused_with_its_reason(kind: str, text: str, words: list[str]) -> None:
    """Each refusal names the field, what came and what was expected."""
    with pytest.raises(BadConfig) as caught:
        parse_scheduled(kind, text)
    for word in words:
        assert word in str(caught.value)


def test_a_fault_for_now_takes_no_moment() -> None:
    """The control form has a duration only."""
    assert parse_fault("outage", "for=3s") == (Outage(), 3)
    with pytest.raises(BadConfig):
        parse_fault("outage", "at=1s")
