"""A lane that follows a trace: the same laws as with a constant rate, and gaps."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.netsim.errors import BadConfig
from outrider.netsim.link import Lane, Link
from outrider.netsim.pipe import Mark, Pipe
from outrider.netsim.profiles import profile
from outrider.netsim.settings import MSS_BYTES, LaneSettings, LinkSettings
from outrider.netsim.traces import Capacity, Steps, Trace

GAPPY = Capacity.steps([(1, 8), (2, 0), (1, 4)])
JOINT = Trace(
    source="t",
    format="joint",
    down=Capacity.steps([(10, 20), (10, 2)]),
    up=Capacity.steps([(10, 8), (10, 1)]),
    rtt_ms=Steps((0.0, 10.0), (40.0, 200.0), 20.0),
    joint=True,
)
ONE_WAY = Trace(source="t", format="seconds", down=GAPPY, up=GAPPY)


def lane(settings: LaneSettings, seed: str = "s") -> Lane:
    return Lane(settings, rtt_s=0.1, redraw_s=(0.1, 1.0), seed=seed)


@given(st.floats(0.5, 100), st.integers(0, 2**32))
def test_a_constant_trace_is_a_constant_rate(mbit: float, seed: int) -> None:
    """Releases, backlog and room are those of the rate, to 1e-9 s and a byte, whatever the traffic."""
    rng, now = random.Random(seed), 0.0
    traced = lane(LaneSettings(trace=Capacity.steps([(0.3, mbit)] * 3), delay_ms=20, jitter_ms=5))
    rated = lane(LaneSettings(rate_mbit=mbit, delay_ms=20, jitter_ms=5))
    assert traced.settings.queue == pytest.approx(rated.settings.queue, abs=1)
    for _ in range(60):
        now += rng.expovariate(20)
        size = rng.choice((0, 1, 700, 40_000))
        assert traced.admit(now, size) == pytest.approx(rated.admit(now, size), abs=1e-9)
        assert traced.backlog_bytes(now) == pytest.approx(rated.backlog_bytes(now), abs=1e-2)
        assert traced.room_bytes(now) == pytest.approx(rated.room_bytes(now), abs=2)
        assert traced.room_at(now, 5000) == pytest.approx(rated.room_at(now, 5000), abs=1e-7)


def test_golden_releases_across_a_gap() -> None:
    """Bytes that do not pass before the gap pass after it; those behind them queue; the delay comes on top."""
    model = lane(LaneSettings(trace=GAPPY, delay_ms=25))
    sends = [(0.999, 1000), (0.999, 1000), (1.5, 5000), (4.0, 10)]
    assert [model.admit(*send) for send in sends] == pytest.approx([1.025, 3.027, 3.037, 4.02501])
    assert model.backlog_bytes(4.0) == pytest.approx(10)


def test_the_backlog_counts_bytes_not_seconds() -> None:
    """Through a gap the backlog stands still, and the room comes when bytes have left, not before."""
    model = lane(LaneSettings(trace=GAPPY, queue_bytes=10_000))
    model.admit(0.998, 10_000)
    assert [model.backlog_bytes(t) for t in (0.998, 1.0, 2.5, 3.0, 3.008)] == pytest.approx(
        [10_000, 8000, 8000, 8000, 4000]
    )
    assert model.room_bytes(2.5) == 2000
    assert model.room_at(0.998, 2000) == pytest.approx(1.0)  # the gap's begin, not its end
    assert model.room_at(1.5, 2001) == pytest.approx(3.000002)


@given(st.integers(0, 2**32))
def test_the_room_is_there_when_it_is_promised(seed: int) -> None:
    """At the time `room_at` names, the queue takes the bytes: a pump never wakes in vain."""
    rng, now = random.Random(seed), 0.0
    steps = [(rng.uniform(0.001, 2), rng.choice((0.0, rng.uniform(0.1, 50)))) for _ in range(5)]
    model = lane(LaneSettings(trace=Capacity.steps([*steps, (0.5, 3)]), queue_bytes=6000))
    for _ in range(100):
        now = model.room_at(now, MSS_BYTES)
        assert model.room_bytes(now) >= MSS_BYTES
        model.admit(now, rng.randint(1, model.room_bytes(now)))


def test_nothing_passes_in_a_gap() -> None:
    """Neither bytes nor the handshake, and a pipe wakes when the capacity is back."""
    pipe = Pipe(lane(LaneSettings(trace=GAPPY)))
    pipe.push_mark(1.5, Mark.OPEN)
    pipe.push(1.5, bytes(500))
    assert pipe.pull(2.9) == []
    assert pipe.wake_at(1.5) == pytest.approx(3.0)
    assert pipe.pull(3.0) == [Mark.OPEN]
    assert pipe.pull(3.1) == [bytes(500)]


def test_a_full_window_covers_the_best_second() -> None:
    """One connection can use the trace's best second: its window is sized by it, the queue by the mean."""
    model = lane(LaneSettings(trace=GAPPY))
    assert model.settings.queue == int(1.5e6 / 4 * 0.25)
    assert model.window_bytes == model.settings.queue + int(1e6 * 0.3)


def test_a_trace_begins_when_its_settings_do() -> None:
    """After a switch the trace and its round trips are read from their begin."""
    model = lane(LaneSettings())
    delays = Steps((0.0, 2.0), (10.0, 50.0), 4.0)
    model.switch(
        5.0, LaneSettings(trace=GAPPY, delay_ms=10, delays_ms=delays), rtt_s=0.02, redraw_s=(0.1, 1), name="x"
    )
    assert model.admit(5.0, 1000) == pytest.approx(5.011)
    assert model.admit(6.5, 1000) == pytest.approx(8.002 + 0.05)
    assert model.backlog_bytes(6.5) == pytest.approx(1000)


def test_a_joint_trace_drives_the_whole_link() -> None:
    """Rates and delays of both ways change together; the jitter keeps its ratio to the delay."""
    base = LinkSettings.of(rtt_ms=80, jitter_ms=20, down_mbit=5, up_mbit=5, loss=0.01)
    link = base.following(JOINT)
    assert (link.down.trace, link.up.trace, link.up.loss) == (JOINT.down, JOINT.up, 0.01)
    assert link.rtt_s == pytest.approx(0.12)  # the median of 40 and 200 ms
    assert link.up.sigma == pytest.approx(base.up.sigma)
    quiet = replace(
        link, up=replace(link.up, jitter_ms=0, loss=0), down=replace(link.down, jitter_ms=0, loss=0)
    )
    lanes = Link(quiet).lanes()
    assert lanes["up"].admit(1.0, 1000) - 1 == pytest.approx(0.001 + 0.02)
    assert lanes["up"].admit(11.0, 1000) - 11 == pytest.approx(0.008 + 0.1)
    assert lanes["down"].admit(11.0, 1000) - 11 == pytest.approx(0.004 + 0.1)


def test_a_file_of_one_direction_leaves_the_rest_to_the_preset() -> None:
    """Without a round trip in the file it stays the preset's, and so does the other direction's rate."""
    base = profile("4g-medium").link
    link = base.following(ONE_WAY)
    assert (link.down.trace, link.down.rate_mbit, link.up, link.rtt_s) == (GAPPY, None, base.up, base.rtt_s)
    both = base.following(ONE_WAY, ONE_WAY)
    assert both.up.trace is GAPPY
    assert base.following(None, ONE_WAY).down == base.down
    assert base.following(None) == base
    with pytest.raises(BadConfig, match=r"no column for the up direction.*\?up=COLUMN"):
        base.following(ONE_WAY, replace(ONE_WAY, up=None))


def test_figures_given_later_take_the_traces_place() -> None:
    """An overridden rate or round trip is constant again."""
    link = LinkSettings.of(rtt_ms=50).following(JOINT).override(rtt_ms=30, down_mbit=9)
    assert (link.down.trace, link.down.rate_mbit, link.down.delays_ms, link.rtt_s) == (None, 9, None, 0.03)
    assert link.up.trace is JOINT.up


def test_the_same_seed_is_the_same_link() -> None:
    """Jitter and losses on a trace come from the seed alone."""
    settings = LinkSettings.of(rtt_ms=80, jitter_ms=30, loss=0.05, burst=4).following(ONE_WAY, ONE_WAY)

    def run(seed: int) -> list[float]:
        flow = Link(settings, seed).lanes()["up"].flow()
        return [flow.admit(i * 0.05, 900) for i in range(200)]

    assert run(7) == run(7) != run(8)
    assert run(7) == sorted(run(7))


@given(st.integers(0, 2**32))
def test_a_pump_over_a_trace_never_spins(seed: int) -> None:
    """Reading what there is room for, writing what is due, sleeping until told: every turn moves bytes or time."""
    rng = random.Random(seed)
    steps = [(rng.uniform(0.001, 3), rng.choice((0.0, rng.uniform(0.1, 30)))) for _ in range(6)]
    capacity = Capacity.steps([*steps, (0.5, 3)])
    pipe = Pipe(lane(LaneSettings(trace=capacity, delay_ms=30, jitter_ms=10)))
    now, unsent, total = 0.0, 300_000, 300_000
    while pipe.bytes_out < total:
        got = sum(len(part) for part in pipe.pull(now) if isinstance(part, bytes))
        room = pipe.room(now)
        if unsent and room >= MSS_BYTES:
            part = min(unsent, room)
            pipe.push(now, bytes(part))
            unsent -= part
        elif not got:
            wake = pipe.wake_at(now, want_room=room < MSS_BYTES)
            assert wake is not None and wake > now
            now = wake
    assert now >= capacity.departure(0, total)
    assert now <= capacity.departure(0, total) + 0.03 * 20
