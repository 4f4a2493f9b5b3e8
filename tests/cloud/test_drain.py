"""A verifier leaves in good order, and a broken one does not pretend to live."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.cloud.drain import Leaving
from outrider.cloud.events import StepDone, TableAction, TableEvent
from outrider.cloud.hub import Table
from outrider.cloud.serve import SERVICE
from outrider.shared.draft import Draft
from outrider.shared.frames import UNLIMITED, Drain, FailureReason
from tests.harness import Handle, running_verifier
from tests.raw_device import channel_to, connected, streamed
from tests.server_process import server_process
from tests.toy_engine import ToyEngine
from tests.toy_verifier import toy_loaded

PROMPT = (3, 1, 4, 1, 5)
TRUTH = ToyEngine().generate(PROMPT, 12)


async def health_of(address: str) -> int:
    """What health says about the service."""
    async with channel_to(address) as channel:
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        return (await health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)).status


async def refused_newcomer(address: str) -> tuple[grpc.StatusCode, FailureReason | None, int]:
    """A new session's fate."""
    async with connected(address) as newcomer:
        with pytest.raises(grpc.aio.AioRpcError):
            await newcomer.open(PROMPT, 5)
        failure = newcomer.failure
        return (
            await newcomer.call.code(),
            failure.reason if failure else None,
            failure.retry_after_ms if failure else 0,
        )


def test_a_drain_lets_rounds_finish_and_takes_nobody_new() -> None:
    """Open streams hear of it and finish their turn; newcomers get DRAINING; health says NOT_SERVING."""
    with running_verifier() as verifier:

        async def run() -> None:
            async with connected(verifier.address) as device:
                await device.open(PROMPT, 12)
                await device.propose(TRUTH[:2])
                assert await health_of(verifier.address) == health_pb2.HealthCheckResponse.SERVING
                draining = asyncio.create_task(asyncio.to_thread(drain, verifier))
                notice = await device.until(Drain)
                assert 0 < notice.deadline_ms <= 30_000 and notice.reconnect_after_ms > 0
                assert await health_of(verifier.address) == health_pb2.HealthCheckResponse.NOT_SERVING
                code, reason, retry = await refused_newcomer(verifier.address)
                assert code is grpc.StatusCode.UNAVAILABLE and reason is FailureReason.DRAINING and retry > 0
                while len(device.held.ids) < len(PROMPT) + 12:
                    await device.propose(TRUTH[len(device.held.ids) - len(PROMPT) :][:3])
                assert device.held.ids[len(PROMPT) :] == TRUTH
                await device.half_close()
                assert (await device.drained())[0] is grpc.StatusCode.OK
                await draining

        asyncio.run(run())


def drain(verifier: Handle) -> None:
    """Drain with half a minute of patience."""
    verifier.run(lambda inside: inside.drain(30.0))


def test_a_stream_that_stays_is_cut_at_the_deadline() -> None:
    """The deadline holds: the stream ends with DRAINING / UNAVAILABLE, and the drain is over."""
    with running_verifier() as verifier:

        async def run() -> grpc.StatusCode:
            async with connected(verifier.address) as device:
                await device.open(PROMPT, 12)
                draining = asyncio.create_task(asyncio.to_thread(verifier.run, lambda v: v.drain(0.2)))
                code, _ = await device.drained()
                await draining
                assert device.failure and device.failure.reason is FailureReason.DRAINING
                return code

        assert asyncio.run(run()) is grpc.StatusCode.UNAVAILABLE


def test_sigterm_drains_and_exits_0() -> None:
    """With a device attached: it hears of the drain, finishes, and the process ends with 0."""
    with server_process() as process:

        async def run() -> None:
            async with connected(process.address) as device:
                await device.open(PROMPT, 12)
                process.signal(signal.SIGTERM)
                await device.until(Drain)
                await device.propose(TRUTH[:3])
                await device.half_close()
                await device.drained()

        asyncio.run(run())
        assert process.wait() == 0
        assert '"event": "draining"' in process.errors()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_leaves_at_once(number: signal.Signals) -> None:
    """A device that stays does not hold an operator who insists."""
    with server_process() as process:

        async def run() -> int:
            async with connected(process.address) as device:
                await device.open(PROMPT, 12)
                process.signal(number)
                await device.until(Drain)
                process.signal(number)
                return await asyncio.to_thread(process.wait)

        assert asyncio.run(run()) == 128 + number


def test_an_idle_verifier_leaves_at_once_on_ctrl_c() -> None:
    """With nobody attached there is nothing to wait for."""
    with server_process() as process:
        assert asyncio.run(streamed(process.address, PROMPT, 12)) == TRUTH
        process.signal(signal.SIGINT)
        assert process.wait() == 0


def test_signals_are_told_apart() -> None:
    """The first one asks, the second one leaves with the signal's exit code."""

    async def run() -> list[int]:
        left: list[int] = []
        leaving = Leaving(left.append)
        leaving.ask(signal.SIGTERM)
        assert leaving.asked.is_set() and not left
        leaving.ask(signal.SIGINT)
        return left

    assert asyncio.run(run()) == [130]


class StuckTable:
    """A session table that falls over the result of a pass."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def handle(self, event: TableEvent, now: float) -> Sequence[TableAction]:
        """Raise where no stream is to blame."""
        if isinstance(event, StepDone):
            raise RuntimeError("a bug")
        return self._table.handle(event, now)

    def wake_at(self) -> float | None:
        """As the table says."""
        return self._table.wake_at()


def test_a_broken_table_asks_to_be_replaced() -> None:
    """Where passes could never start again, the verifier says so instead of looking alive."""
    loaded = toy_loaded()
    make = loaded.table
    with running_verifier(loaded=replace(loaded, table=lambda: StuckTable(make()))) as verifier:

        async def run() -> None:
            async with connected(verifier.address) as device:
                await device.open(PROMPT, 12, run_ahead_until=UNLIMITED, draft=Draft.chain(()))
                await asyncio.to_thread(
                    verifier.run, lambda inside: asyncio.wait_for(inside.hub.broken.wait(), 60)
                )

        asyncio.run(run())
