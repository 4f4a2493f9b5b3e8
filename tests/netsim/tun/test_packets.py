"""Laws of the link for packets, in virtual time."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import Blackhole, Outage, Schedule
from outrider.netsim.link import Link
from outrider.netsim.settings import LaneSettings, LinkSettings
from outrider.netsim.tun.packets import PacketLink
from outrider.netsim.virtual.wire import VirtualLink

LINK = LinkSettings.of(rtt_ms=80, jitter_ms=30, up_mbit=4, down_mbit=20)


def test_without_loss_it_is_the_virtual_link() -> None:
    """The same delays, rates and outages as every other driver, from the same seed."""
    schedule = Schedule().at(1.0, Outage("up"), for_s=2)
    packets, wire = PacketLink(LINK, schedule, 7), VirtualLink(Link(LINK, 7), schedule, 7)
    rng, now = random.Random(1), 0.0
    for _ in range(500):
        now += rng.expovariate(30)
        for direction in ("up", "down"):
            size = rng.randint(40, 1500)
            assert packets.arrival(direction, size, now) == wire.send(direction, size, now)
    assert packets.counts["up"].passed == 500


def test_losses_are_dropped_in_bursts_of_the_asked_share() -> None:
    """In a dense stream the dropped share is the loss, the mean run the burst; what passes is never late for it."""
    packets = PacketLink(LinkSettings.of(rtt_ms=80, loss=0.05, burst=6), seed=3)
    arrivals = [packets.arrival("down", 100, i / 1000) for i in range(100_000)]
    runs = "".join("x" if a is None else " " for a in arrivals).split()
    assert packets.counts["down"].lost / len(arrivals) == pytest.approx(0.05, rel=0.15)
    assert statistics.mean(map(len, runs)) == pytest.approx(6, rel=0.15)
    late = [a - i / 1000 for i, a in enumerate(arrivals) if a is not None]
    assert max(late) == pytest.approx(0.04) == min(late)


def test_a_full_queue_drops_the_newest() -> None:
    """What does not fit is refused, and there is room again as the rate drains it."""
    lane = LaneSettings(rate_mbit=8, queue_bytes=3000)
    packets = PacketLink(LinkSettings(up=lane))
    assert [packets.arrival("up", 1000, 0.0) for _ in range(4)] == [
        pytest.approx(0.001),
        pytest.approx(0.002),
        pytest.approx(0.003),
        None,
    ]
    assert packets.arrival("up", 1000, 0.001) == pytest.approx(0.004)
    assert (packets.counts["up"].passed, packets.counts["up"].refused) == (4, 1)


def test_an_outage_holds_packets_and_fills_the_queue() -> None:
    """Held ones come out afterwards, those that find the queue full do not; a cut for good is never."""
    lane = LaneSettings(rate_mbit=8, queue_bytes=3000)
    held = PacketLink(LinkSettings(up=lane), Schedule().at(1.0, Outage(), for_s=5))
    arrivals = [held.arrival("up", 1000, 2.0 + i / 10) for i in range(5)]
    assert arrivals == [pytest.approx(6.001), pytest.approx(6.002), pytest.approx(6.003), None, None]
    cut = PacketLink(LinkSettings(up=lane), Schedule().at(1.0, Outage()))
    assert cut.arrival("up", 100, 1.5) == math.inf
    with pytest.raises(BadConfig, match="proxy"):
        PacketLink(LINK, Schedule().at(1, Blackhole()))


def test_the_same_seed_drops_the_same_packets() -> None:
    """Another seed others."""

    def run(seed: int) -> list[float | None]:
        packets = PacketLink(LinkSettings.of(rtt_ms=80, jitter_ms=30, loss=0.1), seed=seed)
        return [packets.arrival("up", 100, i / 50) for i in range(300)]

    assert run(7) == run(7) != run(8)
