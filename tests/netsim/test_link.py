"""Laws of the link model, in virtual time."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from outrider.netsim.errors import BadConfig
from outrider.netsim.link import Lane, LaneClock, Link
from outrider.netsim.settings import MSS_BYTES, LaneSettings, LinkSettings, Spike


def lane(settings: LaneSettings, *, rtt_s: float = 0.1, seed: str = "s") -> Lane:
    return Lane(settings, rtt_s=rtt_s, redraw_s=(0.1, 1.0), seed=seed)


def traffic(seed: int, count: int) -> list[tuple[float, int]]:
    rng = random.Random(seed)
    time = 0.0
    out = []
    for _ in range(count):
        time += rng.expovariate(50)
        out.append((time, rng.randint(1, 4000)))
    return out


def releases(link: Link, seed: int = 3) -> list[float]:
    flow = link.lanes()["up"].flow()
    return [flow.admit(time, nbytes) for time, nbytes in traffic(seed, 500)]


LOSSY = LinkSettings.of(rtt_ms=80, jitter_ms=30, up_mbit=4, down_mbit=20, loss=0.05, burst=4)


def test_a_seed_fixes_every_release() -> None:
    """The same seed gives the same times, another seed others, and up differs from down."""
    assert releases(Link(LOSSY, 7)) == releases(Link(LOSSY, 7))
    assert releases(Link(LOSSY, 7)) != releases(Link(LOSSY, 8))
    lanes = Link(LinkSettings.of(rtt_ms=80, jitter_ms=30), 7).lanes()
    assert lanes["up"].admit(1.0, 1) != lanes["down"].admit(1.0, 1)


def test_known_releases_of_seed_seven() -> None:
    """A golden value, so that a change of the random streams is noticed."""
    assert [round(t, 9) for t in releases(Link(LOSSY, 7))[:3]] == [0.091292115, 0.098796115, 0.113275861]


def test_order_is_kept_within_a_connection() -> None:
    """Whatever jitter and losses do, no byte overtakes an earlier one of its connection."""
    times = releases(Link(LOSSY, 1))
    assert times == sorted(times)


def test_delay_alone_is_exact() -> None:
    """Without jitter and rate every byte takes exactly the delay."""
    flow = lane(LaneSettings(delay_ms=25)).flow()
    assert [flow.admit(t, n) - t for t, n in [(0.0, 1), (0.5, 10**6), (1.0, 0)]] == pytest.approx([0.025] * 3)


def test_rate_is_exact() -> None:
    """A queue that never empties drains at exactly the rate, and an idle lane starts afresh."""
    model = lane(LaneSettings(rate_mbit=8, queue_bytes=10**7))  # 1e6 bytes per second
    flow = model.flow()
    assert [flow.admit(0.0, 1000) for _ in range(5)] == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.005])
    assert model.backlog_bytes(0.0) == pytest.approx(5000)
    assert model.backlog_bytes(0.002) == pytest.approx(3000)
    assert flow.admit(1.0, 1000) == pytest.approx(1.001)


def test_connections_share_the_rate_but_not_the_order() -> None:
    """Two connections queue behind each other for the rate; a loss of one does not hold up the other."""
    model = lane(LaneSettings(rate_mbit=8))
    first, second = model.flow(), model.flow()
    assert first.admit(0.0, 1000) == pytest.approx(0.001)
    assert second.admit(0.0, 1000) == pytest.approx(0.002)
    first._last = 9.0  # as after a long repair
    assert first.admit(0.5, 1000) == 9.0
    assert second.admit(0.5, 1000) < 1.0


def test_the_queue_is_bounded() -> None:
    """The room shrinks by what is admitted and comes back with the rate, at the time `room_at` names."""
    model = lane(LaneSettings(rate_mbit=8, queue_bytes=10_000))
    assert model.room_bytes(0.0) == 10_000
    model.admit(0.0, 10_000)
    assert model.room_bytes(0.0) == 0
    when = model.room_at(0.0, 4000)
    assert when == pytest.approx(0.004)
    assert model.room_bytes(when) == 4000
    assert model.room_at(5.0, 10_000) == 5.0


def test_jitter_is_log_normal_with_the_asked_median_and_deviation() -> None:
    """Over many redraws the delay's median and standard deviation are those asked for."""
    model = lane(LaneSettings(delay_ms=50, jitter_ms=20))
    delays = [model.admit(float(t), 1) - t for t in range(2, 20_002)]  # 2 s apart on average: fresh draws
    assert statistics.median(delays) == pytest.approx(0.050, rel=0.03)
    assert statistics.pstdev(delays) == pytest.approx(0.020, rel=0.08)
    assert min(delays) > 0


def test_jitter_is_constant_between_redraws() -> None:
    """The delay changes only every 0.1 to 1 s, and is the same function of time under any traffic."""
    dense, sparse = (
        lane(LaneSettings(delay_ms=50, jitter_ms=20)),
        lane(LaneSettings(delay_ms=50, jitter_ms=20)),
    )
    delays = [round(dense.admit(i / 1000, 1) - i / 1000, 9) for i in range(20_000)]
    changes = [i for i in range(1, 20_000) if delays[i] != delays[i - 1]]
    gaps = [b - a for a, b in zip(changes, changes[1:], strict=False)]
    assert gaps and min(gaps) >= 99 and max(gaps) <= 1001
    assert round(sparse.admit(19.5, 1) - 19.5, 9) == delays[19_500]


def test_a_spike_comes_every_period() -> None:
    """A satellite's handover adds its delay at the beginning of each cycle and nothing in between."""
    model = lane(LaneSettings(delay_ms=10, spike=Spike(period_s=15, width_s=0.2, extra_ms=50)))
    extra = [round(model.admit(t, 1) - t - 0.010, 9) for t in (0.1, 0.3, 14.9, 15.1, 15.3, 30.0)]
    assert extra == [0.05, 0.0, 0.0, 0.05, 0.0, 0.05]


def test_a_lost_tail_costs_a_time_out() -> None:
    """A lone packet's loss costs the round trip and 200 ms, as Linux waits; doubling if repeated."""
    for rtt_s, least in ((0.0, 0.2), (0.05, 0.25), (0.3, 0.5)):
        model = lane(LaneSettings(loss=0.2), rtt_s=rtt_s)
        extra = [model.admit(float(t), 100) - t for t in range(20_000)]
        late = [round(e, 6) for e in extra if e > 0]
        assert len(late) / len(extra) == pytest.approx(0.2, abs=0.01)
        assert set(late) <= {round(least * (2**k - 1), 6) for k in range(1, 40)} | {e for e in late if e > 60}
        assert late.count(round(least, 6)) / len(late) == pytest.approx(0.8, abs=0.03)


def test_a_loss_with_packets_behind_it_costs_one_round_trip() -> None:
    """With enough bytes behind it in the same write, or a backlog, a loss is repaired by a fast retransmit."""
    model = lane(LaneSettings(loss=0.1), rtt_s=0.08)
    extra = [model.admit(float(t), 100, behind=10 * MSS_BYTES) - t for t in range(5000)]
    late = sorted(e for e in extra if e > 0)
    assert late[0] == pytest.approx(0.08)
    assert statistics.median(late) == pytest.approx(0.08)
    rated = lane(LaneSettings(rate_mbit=1, loss=0.1), rtt_s=0.08)
    flow = [rated.admit(0.0, MSS_BYTES) for _ in range(2000)][4:]
    steps = [b - a for a, b in zip(flow, flow[1:], strict=False)]
    assert max(steps) > 0.05


def test_a_loss_holds_up_its_connection_and_no_other() -> None:
    """Whatever a connection sends behind a lost packet comes with its repair; another connection's bytes pass."""
    model = lane(LaneSettings(loss=0.3), rtt_s=0.1)
    hit, other = model.flow(), model.flow()
    time, repaired = 0.0, 0.0
    while repaired < time + 0.19:
        time += 1.0
        repaired = hit.admit(time, 100)
    behind = [hit.admit(time + i / 1000, 100) for i in range(1, 50)]
    assert min(behind) >= repaired
    assert behind == sorted(behind)
    assert min(other.admit(time + i / 1000, 100) - i / 1000 for i in range(50, 99)) == pytest.approx(time)


def test_losses_come_in_bursts_of_the_asked_share() -> None:
    """In a dense stream the share of hit packets is the loss and the mean run of hits the burst."""
    model = lane(LaneSettings(loss=0.05, burst=6))
    hit = [model.admit(i / 1000, 100) - i / 1000 > 1e-9 for i in range(200_000)]
    runs = "".join("x" if h else " " for h in hit).split()
    assert sum(hit) / len(hit) == pytest.approx(0.05, rel=0.15)
    assert statistics.mean(map(len, runs)) == pytest.approx(6, rel=0.15)


def test_lane_time_stands_still_in_an_outage() -> None:
    """A stall shifts everything behind it by exactly its length; stalls nest."""
    clock = LaneClock()
    assert clock.lane_time(2.0) == 2.0
    clock.stall(2.0)
    clock.stall(2.5)
    assert (clock.lane_time(4.0), clock.real_time(3.0)) == (2.0, None)
    clock.resume(4.0)
    assert clock.stalled
    clock.resume(5.0)
    assert (clock.lane_time(6.0), clock.real_time(3.0)) == (3.0, 6.0)
    with pytest.raises(RuntimeError):
        clock.resume(7.0)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"delay_ms": -1}, "delay_ms"),
        ({"delay_ms": math.nan}, "delay_ms"),
        ({"jitter_ms": 5}, "jitter_ms"),
        ({"rate_mbit": 0}, "rate_mbit"),
        ({"queue_bytes": 100}, "queue_bytes"),
        ({"loss": 0.5}, "loss"),
        ({"burst": 0.5}, "burst"),
    ],
)
def test_impossible_settings_are_refused_by_field(settings: dict[str, float], field: str) -> None:
    """A number that cannot be a lane is refused with the field's name."""
    with pytest.raises(BadConfig) as caught:
        LaneSettings(**settings)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_overrides_replace_only_what_is_given() -> None:
    """An override keeps the rest; a round trip of 0 drops the jitter with it."""
    changed = LOSSY.override(rtt_ms=200, up_mbit=1)
    assert (changed.rtt_s, changed.up.rate_mbit, changed.down.rate_mbit) == (0.2, 1, 20)
    assert changed.up.jitter_ms == LOSSY.up.jitter_ms
    assert LOSSY.override(rtt_ms=0).up.jitter_ms == 0
