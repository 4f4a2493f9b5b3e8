"""The proxy in real time and the link in virtual time make the same of the same scenario.

Messages go both ways through a real proxy; when each was sent and when it had arrived is read off the loop's clock, and
the virtual link is asked when it would have. Stated bounds, wide enough for a machine with other work: half of all
messages, and of each direction's, within `BOUND_S`; and of the pairs of messages that should be `APART_S` apart, in
whichever directions, `OVERTAKEN` at most are in the other order (a message that a busy machine reads a moment late may
miss the begin of a gap). Every scenario is also compared with wrong ones, which must not agree.
"""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass, replace

import pytest

from outrider.netsim.faults import Outage, Schedule, Scheduled
from outrider.netsim.link import Link
from outrider.netsim.proxy import Proxy
from outrider.netsim.settings import Direction, LaneSettings, LinkSettings
from outrider.netsim.traces import Capacity, Steps
from outrider.netsim.virtual.wire import VirtualLink
from tests.netsim.rig import PATIENCE_S

BOUND_S = 0.04
APART_S = 0.1
OVERTAKEN = 0.05
SETTLE_S = 0.4
"""Time for the handshake, which travels through the link as well."""
SEED = 5


@dataclass(frozen=True, slots=True)
class Scenario:
    """A link, its faults, and messages of fixed sizes at regular times in both directions."""

    link: LinkSettings
    schedule: Schedule = Schedule()
    up_bytes: int = 300
    down_bytes: int = 300
    every_s: float = 0.06
    count: int = 40
    seed: int = SEED


@dataclass(frozen=True, slots=True)
class Message:
    """What happened to one message; times in seconds since the proxy's start."""

    direction: Direction
    nbytes: int
    sent: float
    arrived: float


def measured(scenario: Scenario) -> list[Message]:
    """The scenario through real sockets."""

    async def run() -> list[Message]:
        accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await accepted.put((reader, writer))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        async with asyncio.timeout(PATIENCE_S), server:
            upstream = server.sockets[0].getsockname()[:2]
            async with Proxy(
                upstream, link=scenario.link, faults=scenario.schedule, seed=scenario.seed
            ) as proxy:
                device = await asyncio.open_connection(*proxy.host_port)
                cloud = await accepted.get()
                await asyncio.sleep(max(0.0, SETTLE_S - proxy.now()))
                ways: list[tuple[Direction, int, asyncio.StreamWriter, asyncio.StreamReader]] = [
                    ("up", scenario.up_bytes, device[1], cloud[0]),
                    ("down", scenario.down_bytes, cloud[1], device[0]),
                ]
                found = await asyncio.gather(*(one_way(proxy, scenario, *way) for way in ways))
                device[1].close()
                cloud[1].close()
        return [message for messages in found for message in messages]

    return asyncio.run(run())


async def one_way(
    proxy: Proxy,
    scenario: Scenario,
    direction: Direction,
    nbytes: int,
    writer: asyncio.StreamWriter,
    reader: asyncio.StreamReader,
) -> list[Message]:
    sent: list[float] = []

    async def send() -> None:
        for number in range(scenario.count):
            await asyncio.sleep(SETTLE_S + number * scenario.every_s - proxy.now())
            sent.append(proxy.now())
            writer.write(bytes(nbytes))

    task = asyncio.create_task(send())
    arrived = []
    for _ in range(scenario.count):
        await reader.readexactly(nbytes)
        arrived.append(proxy.now())
    await task
    return [Message(direction, nbytes, *times) for times in zip(sent, arrived, strict=True)]


def predicted(scenario: Scenario, messages: list[Message]) -> list[float]:
    """When the virtual link says that these messages arrive."""
    wire = VirtualLink(Link(scenario.link, scenario.seed), scenario.schedule, scenario.seed)
    return [wire.send(m.direction, m.nbytes, m.sent) for m in messages]


def disagreement(scenario: Scenario, messages: list[Message]) -> str:
    """What is out of bounds, in words; empty if nothing is."""
    expected = predicted(scenario, messages)
    errors = [abs(m.arrived - time) for m, time in zip(messages, expected, strict=True)]
    half = len(messages) // 2
    for name, some in (("all", errors), ("up", errors[:half]), ("down", errors[half:])):
        median = statistics.median(some)
        if median > BOUND_S:
            return f"median error of {name} messages {median * 1000:.1f} ms"
    both = list(zip(messages, expected, strict=True))
    pairs = [(one, other) for one, first in both for other, second in both if second > first + APART_S]
    share = sum(other.arrived < one.arrived for one, other in pairs) / len(pairs)
    return f"{share:.1%} of the pairs in the other order" if share > OVERTAKEN else ""


def agrees(scenario: Scenario, wrong: dict[str, Scenario]) -> None:
    """Both drivers agree on the scenario, and none of the wrong ones passes for it."""
    messages = measured(scenario)
    assert disagreement(scenario, messages) == ""
    passed = [name for name, other in wrong.items() if disagreement(other, messages) == ""]
    assert passed == []


def test_delay_jitter_and_rate() -> None:
    """A rated, jittering link; told apart from 80 ms more, half or four times the rate, and another seed's jitter."""
    link = LinkSettings.of(rtt_ms=160, jitter_ms=150, up_mbit=0.27, down_mbit=0.8)
    true = Scenario(link, up_bytes=3000, down_bytes=9000, every_s=0.1, count=25)
    agrees(
        true,
        {
            "slower": replace(true, link=link.override(rtt_ms=320)),
            "half the rate": replace(true, link=link.override(up_mbit=0.135, down_mbit=0.4)),
            "more rate": replace(true, link=link.override(up_mbit=1.08, down_mbit=3.2)),
            "another seed": replace(true, seed=SEED + 1),
        },
    )


def test_outages() -> None:
    """Scripted outages hold both drivers' bytes; told apart from none, shorter ones, and those of one direction."""
    link = LinkSettings.of(rtt_ms=60)

    def outages(for_s: float, direction: Direction | None = None) -> Schedule:
        # Several, since a busy machine may be late for one.
        return Schedule(
            tuple(Scheduled(Outage(direction), at_s=0.5 + 0.7 * i, for_s=for_s) for i in range(5))
        )

    true = Scenario(link, outages(0.55), count=58)
    agrees(
        true,
        {
            "none": replace(true, schedule=Schedule()),
            "shorter": replace(true, schedule=outages(0.3)),
            "one way": replace(true, schedule=outages(0.55, "up")),
        },
    )


def test_traces() -> None:
    """Capacity with gaps and a delay over time; told apart from the mean rate, a later begin, and a constant delay."""
    down = Capacity.steps([(0.5, 1.6), (0.5, 0), (0.7, 0.6)])
    delays = Steps((0.0, 0.8, 1.6), (20.0, 90.0, 50.0), 2.4)
    lane = LaneSettings(delay_ms=50, delays_ms=delays, trace=down)
    link = LinkSettings(up=replace(lane, trace=Capacity.steps([(0.6, 1), (0.6, 0)])), down=lane)
    true = Scenario(link, up_bytes=1000, down_bytes=3000)

    def changed(**fields: object) -> Scenario:
        lanes = {name: replace(link.lane(name), **fields) for name in ("up", "down")}  # type: ignore[arg-type]
        return replace(true, link=LinkSettings(**lanes))  # type: ignore[arg-type]

    agrees(
        true,
        {
            "mean": changed(trace=Capacity.constant(down.mean_mbit)),
            "later": changed(trace=down.shifted(0.6)),
            "constant delay": changed(delays_ms=None, delay_ms=150),
        },
    )


@pytest.mark.parametrize("seed", [3])
def test_losses(seed: int) -> None:
    """Lone packets that get lost come a time-out later in both drivers; told apart from no loss and another seed."""
    link = LinkSettings.of(rtt_ms=100, loss=0.35, burst=1)
    true = Scenario(link, every_s=0.15, count=24, seed=seed)
    agrees(true, {"another seed": replace(true, seed=seed + 4)})
    wire = predicted(true, [Message("up", 300, 1.0 * i, 0.0) for i in range(24)])
    late = sum(time - i > 0.2 for i, time in enumerate(wire))
    assert 4 <= late <= 16
