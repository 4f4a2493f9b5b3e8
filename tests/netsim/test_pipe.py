"""Laws of one direction of one connection, in virtual time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.netsim.link import Lane, Link
from outrider.netsim.pipe import CutArm, CutThen, Mark, Mode, Pipe
from outrider.netsim.settings import LinkSettings

DELAY_S = 0.05


def up_lane(seed: int = 0, **figures: float) -> Lane:
    return Link(LinkSettings.of(**{"rtt_ms": 2000 * DELAY_S, **figures}), seed).lanes()["up"]  # type: ignore[arg-type]


def drain(pipe: Pipe, now: float, until: float = 1e6) -> tuple[bytes, list[tuple[float, int]]]:
    """Everything that comes out by itself, with the time and size of each piece."""
    data, pieces = b"", []
    while (at := pipe.wake_at(now)) is not None and at <= until:
        # One rounding step past the wake time, so that lane time is never a hair short of the release.
        now = max(now, at) + 1e-9
        for item in pipe.pull(now):
            if isinstance(item, bytes):
                data += item
                pieces.append((now, len(item)))
    return data, pieces


def test_bytes_come_out_after_the_delay_and_not_before() -> None:
    """Nothing is due before its time, all of it at its time, and the pipe says when."""
    pipe = Pipe(up_lane())
    pipe.push(1.0, b"abc")
    assert pipe.wake_at(1.0) == pytest.approx(1.0 + DELAY_S)
    assert pipe.pull(1.0 + DELAY_S - 1e-6) == []
    assert pipe.pull(1.0 + DELAY_S + 1e-9) == [b"abc"]
    assert (pipe.bytes_in, pipe.bytes_out, pipe.unreleased) == (3, 3, 0)


def test_a_big_write_is_spread_over_its_time() -> None:
    """At 1 Mbit/s 12,500 bytes take 100 ms and arrive in packets, not as a lump at the end."""
    pipe = Pipe(up_lane(up_mbit=1))
    pipe.push(0.0, bytes(12_500))
    data, pieces = drain(pipe, 0.0)
    assert len(data) == 12_500
    assert pieces[-1][0] == pytest.approx(DELAY_S + 0.1, abs=1e-6)
    assert len(pieces) >= 8


def test_held_bytes_resume_intact_with_their_old_spacing() -> None:
    """An outage shifts everything that was queued, in flight or written meanwhile; nothing is lost or reordered."""
    lane = up_lane()
    pipe = Pipe(lane)
    pipe.push(0.00, b"one")
    pipe.push(0.02, b"two")
    lane.clock.stall(0.03)
    pipe.push(0.04, b"three")
    assert pipe.wake_at(1.0) is None
    assert pipe.pull(1.0) == []
    lane.clock.resume(3.03)
    _, pieces = drain(pipe, 3.03)
    assert [(round(t, 6), n) for t, n in pieces] == [(3.05, 3), (3.07, 3), (3.08, 5)]


def test_the_queue_pushes_back_during_an_outage() -> None:
    """A stalled lane fills up and then offers no room, with a rate and without one."""
    for lane in (up_lane(up_mbit=2.0), up_lane()):
        pipe = Pipe(lane)
        lane.clock.stall(0.0)
        taken = 0
        while (room := pipe.room(1.0)) > 0:
            pipe.push(1.0, bytes(room))
            taken += room
        assert taken <= lane.window_bytes
        assert pipe.wake_at(1.0, want_room=True) is None
        lane.clock.resume(2.0)
        assert pipe.wake_at(2.0, want_room=True) is not None


def test_room_comes_back_when_the_pipe_says() -> None:
    """A full queue names the time at which a packet fits again, and it does."""
    pipe = Pipe(up_lane(up_mbit=2))
    while pipe.room(0.0) > 0:
        pipe.push(0.0, bytes(pipe.room(0.0)))
    at = pipe.wake_at(0.0, can_write=False, want_room=True)
    assert at is not None and at > 0
    assert pipe.room(at) >= 1448


def test_swallowed_bytes_are_never_followed() -> None:
    """A blackhole drops what is in flight and all that comes, closes too, and stays one whatever follows."""
    pipe = Pipe(up_lane())
    pipe.push(0.0, b"before")
    assert pipe.pull(1.0) == [b"before"]
    pipe.push(1.0, b"in flight")
    pipe.swallow()
    pipe.push(1.1, b"after")
    pipe.push_mark(1.2, Mark.END)
    pipe.hold()
    assert pipe.mode is Mode.SWALLOW
    assert pipe.pull(100.0) == []
    assert pipe.wake_at(100.0) is None
    assert (pipe.bytes_out, pipe.swallowed, pipe.unreleased) == (6, 14, 0)


def test_a_held_pipe_keeps_its_bytes() -> None:
    """Half-open: nothing comes out, nothing is counted as lost."""
    pipe = Pipe(up_lane())
    pipe.push(0.0, b"abc")
    pipe.hold()
    pipe.push_mark(0.1, Mark.END)
    assert (pipe.pull(100.0), pipe.wake_at(100.0), pipe.unreleased) == ([], None, 3)


@pytest.mark.parametrize("then", ["hold", "reset"])
def test_a_cut_passes_exactly_its_bytes_at_every_offset(then: CutThen) -> None:
    """For every n, n bytes pass and no more, whatever the pieces; a reset is announced right behind them."""
    message = bytes(range(40))
    for nbytes in range(len(message) + 1):
        arm = CutArm(nbytes, then)
        pipe = Pipe(up_lane(), connection=5, cuts=[arm])
        for start in range(0, 40, 7):
            pipe.push(start / 100, message[start : start + 7])
        pipe.push_mark(1.0, Mark.END)
        out = [item for now in (0.1, 0.2, 0.3, 9.0) for item in pipe.pull(now)]
        assert b"".join(i for i in out if isinstance(i, bytes)) == message[:nbytes]
        assert [i for i in out if isinstance(i, Mark)] == ([Mark.CUT] if then == "reset" else [])
        assert (arm.connection, arm.remaining) == (5, 0)


def test_a_cut_counts_over_connections_and_strikes_once() -> None:
    """Two pipes share a count; the one that reaches it is cut, the other goes on."""
    lane, cuts = up_lane(), [CutArm(5, "hold")]
    first, second = Pipe(lane, connection=1, cuts=cuts), Pipe(lane, connection=2, cuts=cuts)
    first.push(0.0, b"abc")
    assert first.pull(1.0) == [b"abc"]
    second.push(1.0, b"defg")
    assert second.pull(2.0) == [b"de"]
    first.push(2.0, b"hij")
    assert (first.pull(3.0), second.pull(9.0), cuts) == ([b"hij"], [], [])


def test_marks_keep_their_place() -> None:
    """A close comes out behind the bytes that were sent before it, never earlier."""
    pipe = Pipe(up_lane(jitter_ms=30, up_mbit=1))
    pipe.push(0.0, bytes(5000))
    pipe.push_mark(0.0, Mark.END)
    out = pipe.pull(10.0)
    assert out == [bytes(5000), Mark.END]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 60))
def test_what_comes_out_is_a_prefix_of_what_went_in(seed: int, steps: int) -> None:
    """Under any mix of writes, stalls and a final blackhole the output is a prefix; without one it is everything."""
    rng = random.Random(seed)
    lane = up_lane(seed, jitter_ms=40, up_mbit=3, loss=0.1, burst=3)
    pipe, sent, got, now = Pipe(lane), b"", b"", 0.0
    swallowed = False
    for _ in range(steps):
        now += rng.expovariate(20)
        action = rng.random()
        if action < 0.6:
            data = rng.randbytes(rng.randint(1, 5000))
            sent += data
            pipe.push(now, data)
        elif action < 0.8:
            (lane.clock.resume if lane.clock.stalled else lane.clock.stall)(now)
        elif action < 0.82:
            pipe.swallow()
            swallowed = True
        got += b"".join(i for i in pipe.pull(now) if isinstance(i, bytes))
        assert sent.startswith(got)
    if lane.clock.stalled:
        lane.clock.resume(now)
    got += drain(pipe, now)[0]
    assert sent.startswith(got)
    assert pipe.bytes_in == len(sent) == len(got) + pipe.swallowed
    assert swallowed or got == sent
