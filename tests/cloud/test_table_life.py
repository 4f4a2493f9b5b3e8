"""What a table says when there is nothing to say, and when it stops listening."""

from __future__ import annotations

from outrider.shared.frames import Cancel, FailureReason, Ping, Pong, Progress
from tests.cloud.table_bench import PROMPT, Bench, draft, opening


def opened(bench: Bench) -> Bench:
    """A session whose prompt is in the KV."""
    bench.open(opening())
    bench.sent.clear()
    return bench


def test_signs_of_life() -> None:
    """Progress while the target is waited for, an unasked Pong in a silent open turn, and Pong for Ping."""
    bench = opened(Bench())
    bench.up(Ping(77))
    assert bench.one(Pong).nonce == 77
    bench.wait(1.05)
    assert bench.one(Pong).nonce == 0
    bench.hold = True
    bench.up(draft(1, PROMPT))
    bench.wait(2.0)
    assert len(bench.take(Progress)) >= 5
    bench.release()
    bench.up(Cancel(1))
    bench.sent.clear()
    bench.wait(100)
    assert bench.sent == {}


def test_a_silent_device_is_detached_and_its_session_kept() -> None:
    """Nothing heard for minutes: IDLE, and resuming is free as long as the KV lives."""
    bench = opened(Bench())
    bench.wait(181)
    assert bench.failure().reason is FailureReason.IDLE
    assert len(bench.table.sessions) == 1
