"""Deadlines follow the link, late verdicts included; waits between attempts are bounded and jittered."""

from __future__ import annotations

import random

import pytest

from outrider.client.timers import Backoff, Deadlines


def test_before_any_sample_the_first_deadline_holds() -> None:
    """Nothing was measured: the settings say how long."""
    assert Deadlines(first_s=0.7).soft() == 0.7
    assert Deadlines().probe() == 2.0
    assert Deadlines().dead() == 3.0


def test_soft_deadline_of_a_steady_link() -> None:
    """RTT 250 ms and little jitter give about RTT + 40 ms + service, as the protocol's table has it."""
    deadlines = Deadlines()
    for _ in range(50):
        deadlines.sample(0.250 + 0.030, queue_us=0, compute_us=30_000)
    assert deadlines.srtt_s == pytest.approx(0.250, abs=1e-3)
    assert 0.30 < deadlines.soft(0.030) < 0.40
    assert deadlines.probe() == 1.0
    assert deadlines.dead() == 3.0


def test_soft_deadline_is_clamped() -> None:
    """Never below 250 ms, never above 2 s."""
    quick, slow = Deadlines(), Deadlines()
    for _ in range(20):
        quick.sample(0.001, 0, 0)
        slow.sample(9.0, 0, 0)
    assert quick.soft() == 0.250
    assert slow.soft() == 2.0
    assert slow.dead() == pytest.approx(54.0, rel=0.01)


def test_late_verdicts_teach_the_deadline() -> None:
    """A link that has become slower is learned from the verdicts that came too late."""
    deadlines = Deadlines()
    for _ in range(20):
        deadlines.sample(0.05, 0, 0)
    before = deadlines.soft()
    for _ in range(20):
        deadlines.sample(0.9, 0, 0)
    assert before == 0.250
    assert deadlines.soft() > 0.9


def test_queueing_is_not_the_link() -> None:
    """Time in the verifier's queue and pass is taken out of the round trip and put into the service time."""
    deadlines = Deadlines()
    for _ in range(40):
        deadlines.sample(0.45, queue_us=200_000, compute_us=150_000)
    assert deadlines.srtt_s == pytest.approx(0.1, abs=1e-3)
    assert deadlines.soft() > 0.45


def test_patience_grows_with_spurious_expiry_and_decays() -> None:
    """Each late verdict waits longer, eight timely ones restore the old deadline."""
    deadlines = Deadlines()
    for _ in range(40):
        deadlines.sample(0.4, 0, 0)
    usual = deadlines.soft()
    deadlines.late()
    assert deadlines.soft() == pytest.approx(min(usual * 1.5, 2.0))
    for _ in range(8):
        deadlines.on_time()
    assert deadlines.soft() == usual


def test_a_network_change_widens_the_deadline() -> None:
    """After a change or a long silence the estimate is doubted."""
    deadlines = Deadlines()
    for _ in range(60):
        deadlines.sample(0.4, 0, 0)
    before = deadlines.soft()
    deadlines.unsettle()
    assert deadlines.soft() > before


def test_backoff_is_jittered_bounded_and_reset() -> None:
    """Waits are uniform below a bound that doubles from 0.1 s to 5 s."""
    backoff = Backoff(random.Random(4))
    bounds = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    waits = [backoff.next() for _ in bounds]
    assert all(0 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
    assert len(set(waits)) == len(waits)
    assert backoff.next(at_least_s=2.0) >= 2.0
    backoff.reset()
    assert backoff.next() <= 0.1
