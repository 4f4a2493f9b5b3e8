"""Laws of the link in virtual time: the same lanes as the proxy's, outages known ahead."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import Cut, Outage, OutageProcess, Refuse, Schedule
from outrider.netsim.link import LaneClock, Link
from outrider.netsim.pipe import Pipe
from outrider.netsim.profiles import profile
from outrider.netsim.settings import LinkSettings
from outrider.netsim.virtual.stalls import Stalls
from outrider.netsim.virtual.wire import VirtualLink

CONSTANT = LinkSettings.of(rtt_ms=80, up_mbit=4, down_mbit=20)


def test_constant_link_is_the_closed_form() -> None:
    """Half the round trip and the bytes over the rate, to 1e-9."""
    wire = VirtualLink(Link(CONSTANT, 3))
    for number in range(50):
        now = number * 0.3
        assert wire.send("up", 700, now) == pytest.approx(now + 700 * 8 / 4e6 + 0.04, abs=1e-9)
        assert wire.send("down", 9000, now) == pytest.approx(now + 9000 * 8 / 20e6 + 0.04, abs=1e-9)


def test_the_same_traffic_through_the_proxys_pipe() -> None:
    """A pipe, which the proxy pumps, releases every message when the virtual link says."""
    link = Link(profile("4g-bad").link, 5)
    wire, pipe = VirtualLink(link), Pipe(link.lanes()["up"])
    rng, now = random.Random(1), 0.0
    for _ in range(400):
        now += rng.expovariate(10)
        size = rng.choice((30, 700, 20_000))
        arrival = wire.send("up", size, now)
        pipe.push(now, bytes(size))
        out = sum(len(part) for part in pipe.pull(arrival - 1e-9) if isinstance(part, bytes))
        out += sum(len(part) for part in pipe.pull(arrival) if isinstance(part, bytes))
        assert pipe.unreleased == 0
        assert out <= size
        now = max(now, arrival)


def test_bytes_wait_for_an_outage_and_keep_their_spacing() -> None:
    """What an outage holds comes out after it, as far apart as it would have been."""
    plain = VirtualLink(Link(CONSTANT))
    held = VirtualLink(Link(CONSTANT), Schedule().at(1.0, Outage(), for_s=3))
    times = [0.90, 0.97, 0.99]
    before = [plain.send("up", 100, t) for t in times]
    after = [held.send("up", 100, t) for t in times]
    assert after[0] == before[0]
    assert [b - a for a, b in zip(before[1:], after[1:], strict=True)] == pytest.approx([3, 3])


def test_cut_for_good_means_never() -> None:
    """Without an end nothing arrives any more, and no connection comes about."""
    wire = VirtualLink(Link(CONSTANT), Schedule().at(2.0, Outage()))
    assert wire.send("up", 10, 1.0) < 2
    assert wire.send("up", 10, 1.99) == math.inf
    assert wire.connect(5.0) == math.inf


def test_a_cut_for_good_ends_an_endless_process() -> None:
    """Scripted or by token, beside random outages: never is told at once."""
    process = OutageProcess(10, 1, 5)
    script = Schedule(random_outages=process).at(2.0, Outage())
    assert VirtualLink(Link(CONSTANT), script).send("up", 1, 3.0) == math.inf
    wire = VirtualLink(Link(CONSTANT), Schedule(random_outages=process).at_token(3, Outage()))
    wire.on_token(3, 1.0)
    assert wire.send("down", 1, 1.5) == math.inf


def test_an_outage_by_token_holds_what_is_in_flight() -> None:
    """The release stays, the arrival moves; what had arrived is untouched."""
    wire = VirtualLink(Link(CONSTANT), Schedule().at_token(20, Outage(), for_s=5))
    release = wire.release("down", 50, 1.0)
    early = wire.arrival("down", release)
    assert wire.next_token == 20
    assert not wire.on_token(19, 1.01)
    assert wire.on_token(21, 1.02)
    assert wire.arrival("down", release) == pytest.approx(early + 5)
    assert wire.next_token is None


def test_one_direction_only() -> None:
    """An outage of the way up leaves the way down alone."""
    wire = VirtualLink(Link(CONSTANT), Schedule().at(0.0, Outage("up"), for_s=1))
    assert wire.send("up", 0, 0.5) > 1
    assert wire.send("down", 0, 0.5) == pytest.approx(0.54)


def test_a_handshake_is_one_round_trip() -> None:
    """SYN up, answer down."""
    assert VirtualLink(Link(CONSTANT)).connect(1.0) == pytest.approx(1.08)


def test_other_faults_are_refused() -> None:
    """A cut counts bytes of sockets, and only a proxy can refuse a connection."""
    for fault in (Cut("up", 100), Refuse()):
        with pytest.raises(BadConfig, match="proxy"):
            VirtualLink(Link(CONSTANT), Schedule().at(1, fault))


def test_random_outages_are_those_of_the_schedule() -> None:
    """The stalls are the process's own for the seed, scripted ones among them."""
    process = OutageProcess(10, 1, 5)
    schedule = Schedule(random_outages=process)
    wire = VirtualLink(Link(CONSTANT), schedule, seed=4)
    source = process.outages(4)
    expected = []
    for entry in source:
        if (entry.at_s or 0) >= 300:
            break
        expected.append((entry.at_s, (entry.at_s or 0) + (entry.for_s or 0)))
    assert wire.up.stalls.within(300) == tuple(expected)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0.01, 5)), max_size=6),
    st.lists(st.floats(0, 80), min_size=1, max_size=10),
)
def test_lane_time_is_the_lane_clocks(pairs: list[tuple[float, float]], times: list[float]) -> None:
    """Known ahead or met on the way, stalls give the same lane time; and real time is its inverse."""
    intervals = sorted((begin, begin + length) for begin, length in pairs)
    stalls = Stalls(iter(intervals))
    clock = LaneClock()
    moves = sorted([(b, 0) for b, _ in intervals] + [(e, 1) for _, e in intervals] + [(t, 2) for t in times])
    for time, what in moves:
        if what == 0:
            clock.stall(time)
        elif what == 1:
            clock.resume(time)
        else:
            lane = stalls.lane_time(time)
            assert lane == pytest.approx(clock.lane_time(time), abs=1e-9)
            real = stalls.real_time(lane)
            assert real <= time + 1e-9 or stalls.stalled(time)
            assert stalls.lane_time(real) == pytest.approx(lane, abs=1e-9)
