"""The verifier over real gRPC when things go wrong, and what surrounds the service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from outrider.cloud.events import FrameReceived, TableAction, TableEvent
from outrider.cloud.hub import Table
from outrider.cloud.serve import SERVICE
from outrider.shared.anchor import EMPTY, extend
from outrider.shared.frames import (
    UNLIMITED,
    Attach,
    Feature,
    Opened,
    Ping,
    RowsWanted,
    Steer,
    Window,
)
from outrider.shared.wire import up_to_wire
from tests.harness import Handle, running_verifier
from tests.raw_device import Held, RawDevice, channel_to, connected, streamed
from tests.toy_engine import ToyEngine
from tests.toy_verifier import PROMPT, toy_loaded


def test_a_device_that_vanishes_disturbs_nobody() -> None:
    """Connections cut in the middle of everything: the server goes on, and no stream is left behind."""
    with running_verifier(engine=ToyEngine(pause_s=0.002)) as verifier:

        async def vanish(index: int) -> None:
            async with connected(verifier.address) as device:
                await device.open((index, *PROMPT), 200, run_ahead_until=UNLIMITED, rows=RowsWanted())
                await device.send(Steer(1, Window(extend(EMPTY, (index, *PROMPT)), UNLIMITED)))
                for _ in range(index):
                    await device.receive()

        async def run() -> list[int]:
            witness = asyncio.create_task(streamed(verifier.address, PROMPT, 60))
            await asyncio.gather(*(vanish(index) for index in range(8)))
            return await witness

        assert asyncio.run(run()) == verifier.engine.generate(PROMPT, 60)
        no_streams_left(verifier)


def no_streams_left(verifier: Handle) -> None:
    """Wait until the server has noticed that everybody is gone."""
    verifier.run(lambda inside: asyncio.wait_for(inside.hub.idle.wait(), 60))


def test_a_stream_without_open_is_ended() -> None:
    """A connection that says nothing does not hold a stream for ever."""
    with running_verifier(open_timeout_s=0.1) as verifier:

        async def run() -> tuple[grpc.StatusCode, str]:
            async with connected(verifier.address) as device:
                return await device.drained()

        code, details = asyncio.run(run())
        assert code is grpc.StatusCode.CANCELLED and "Open" in details


def test_a_device_that_does_not_read_is_not_heard_for_ever() -> None:
    """Frames that demand answers stop being read while the answers pile up; another device is served meanwhile."""
    with running_verifier() as verifier:

        async def run() -> list[int]:
            async with connected(verifier.address) as deaf:
                await deaf.open(PROMPT, 10)
                flood = asyncio.create_task(flood_with_pings(deaf))
                text = await streamed(verifier.address, PROMPT, 40)
                flood.cancel()
                await asyncio.gather(flood, return_exceptions=True)
                return text

        assert asyncio.run(run()) == verifier.engine.generate(PROMPT, 40)


async def flood_with_pings(device: RawDevice) -> None:
    """Ask for answers and never read them."""
    ping = up_to_wire(Ping(1))
    while True:
        await device.call.write(ping)


def test_padding_is_offered_only_by_profile_and_hides_sizes() -> None:
    """With the bucket profile every frame after Opened has a power of two of bytes; without it, none is offered."""
    with running_verifier(loaded=toy_loaded(padding="bucket")) as verifier:

        async def run() -> list[int]:
            async with connected(verifier.address) as device:
                await device.open(PROMPT, 30, features=(Feature.PADDING, Feature.RUN_AHEAD))
                sizes = []
                for nonce in range(5):
                    message = up_to_wire(Ping(nonce))
                    message.padding = os.urandom(100 * nonce)  # accepted and ignored
                    await device.send_raw(message)
                    sizes.append((await device.call.read()).ByteSize())
                return sizes

        assert asyncio.run(run()) == [64] * 5
    with running_verifier() as plain:
        assert Feature.PADDING not in plain.loaded.description.features


def test_health_says_serving_and_reflection_is_off_by_default() -> None:
    """Health knows the server and the service; nothing lists the API unless the operator wants it."""
    for wanted in (False, True):
        with running_verifier(reflection=wanted) as verifier:
            health, services = asyncio.run(ask_health_and_reflection(verifier.address))
            assert health == [health_pb2.HealthCheckResponse.SERVING] * 2
            assert (SERVICE in services) is wanted


async def ask_health_and_reflection(address: str) -> tuple[list[int], list[str]]:
    """Health of both names, and the services that reflection lists."""
    async with channel_to(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        health = [
            (await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=20)).status
            for name in ("", SERVICE)
        ]
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(timeout=20)
        try:
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            answer = await call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return health, []
        services = getattr(answer, "list_services_response", None)
        return health, [service.name for service in services.service] if services else []


class FragileTable:
    """A session table with a bug: it falls over a frame of one kind."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def handle(self, event: TableEvent, now: float) -> Sequence[TableAction]:
        """Raise on a Ping with the fatal nonce."""
        if isinstance(event, FrameReceived) and event.frame == Ping(666):
            raise RuntimeError("canary: the text of a user")
        return self._table.handle(event, now)

    def wake_at(self) -> float | None:
        """As the table says."""
        return self._table.wake_at()


def test_an_unexpected_exception_costs_one_stream() -> None:
    """INTERNAL with an opaque incident and no text; counted; the other device and the same session go on."""
    from dataclasses import replace

    loaded = toy_loaded()
    make = loaded.table
    loaded = replace(loaded, table=lambda: FragileTable(make()))
    with running_verifier(loaded=loaded) as verifier:

        async def run() -> tuple[grpc.StatusCode, str, list[int]]:
            async with connected(verifier.address) as device:
                witness = asyncio.create_task(streamed(verifier.address, PROMPT, 40))
                await device.open(PROMPT, 10)
                await device.send(Ping(666))
                code, details = await device.drained()
                return code, details, await witness

        code, details, text = asyncio.run(run())
        assert code is grpc.StatusCode.INTERNAL and "internal error" in details and "canary" not in details
        assert text == verifier.engine.generate(PROMPT, 40)
        assert verifier.metrics.value("internal_errors_total", where="table") == 1


def test_a_failed_pass_is_mended_by_attaching_again() -> None:
    """ENGINE costs the stream and the KV; ids are kept, and attaching again rebuilds and gives the same text."""
    with running_verifier() as verifier:
        session, held = os.urandom(16), Held()

        async def run() -> grpc.StatusCode:
            async with connected(verifier.address, session, held) as device:
                await device.open(PROMPT, 20)
                await device.propose([])
                verifier.engine.fail_next = RuntimeError("canary")
                with pytest.raises(grpc.aio.AioRpcError):
                    await device.propose([])
                return (await device.drained())[0]

        async def resume() -> Opened:
            async with connected(verifier.address, session, held) as device:
                opened = await device.resume(PROMPT, 20, 2, context=False)
                await device.stream()
                return opened

        assert asyncio.run(run()) is grpc.StatusCode.INTERNAL
        assert asyncio.run(resume()).attach is Attach.REBUILD
        assert held.ids[len(PROMPT) :] == verifier.engine.generate(PROMPT, 20)
