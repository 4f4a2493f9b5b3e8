"""The verifier over real gRPC, with a toy target: sessions, rounds, rows, resumption."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from outrider.cloud.events import FrameReceived, TableAction, TableEvent
from outrider.cloud.hub import Table
from outrider.cloud.serve import SERVICE
from outrider.shared.anchor import EMPTY, extend
from outrider.shared.codec import decode_rows
from outrider.shared.draft import Draft
from outrider.shared.frames import (
    UNLIMITED,
    Attach,
    Cancel,
    Close,
    Context,
    Feature,
    Fingerprints,
    FinishReason,
    Open,
    Opened,
    Ping,
    Pong,
    RoundOutcome,
    Rows,
    RowsWanted,
    Steer,
    TokenKind,
    Turn,
    TurnEnd,
    Window,
)
from outrider.shared.sampling import Sampling
from outrider.shared.wire import description_from_wire, up_to_wire
from outrider.v1 import verifier_pb2 as pb
from outrider.v1 import verifier_pb2_grpc
from tests.harness import Handle, running_verifier
from tests.raw_device import Held, RawDevice, channel_to, connected, streamed
from tests.toy_engine import PLANE, ToyEngine, toy_row
from tests.toy_verifier import BUNDLE, LAW, toy_loaded

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
COUPLED = Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=11)
WITH_BUNDLE = Fingerprints(bundle=hashlib.sha256(BUNDLE).digest())
KINDS_OF_EDGE = {TokenKind.ACCEPTED, TokenKind.RECOVERED, TokenKind.BONUS}


@pytest.mark.parametrize("sampling", [Sampling(), COUPLED], ids=["greedy", "coupled"])
def test_streaming_equals_the_target_alone(sampling: Sampling) -> None:
    """An empty draft with unlimited run-ahead is plain remote streaming: same text, every token a run-ahead one."""
    with running_verifier() as verifier:
        text = asyncio.run(streamed(verifier.address, PROMPT, 60, sampling))
        assert text == verifier.engine.generate(PROMPT, 60, sampling)


async def edge(
    device: RawDevice, truth: Sequence[int], sampling: Sampling, wrong_at: int, tree: bool
) -> list[int]:
    """Draft from ``truth``, spoiling every ``wrong_at``-th token, until the turn ends; all ids held then."""
    start = len(PROMPT)
    await device.open(PROMPT, len(truth), sampling=sampling)
    while device.end is None:
        at = len(device.held.ids) - start
        ids = [(t + 1) % 64 if (at + i + 1) % wrong_at == 0 else t for i, t in enumerate(truth[at : at + 6])]
        if tree:
            await device.propose(*with_branches(ids, truth[at : at + 6]))
        else:
            await device.propose(ids)
        if len(device.held.ids) == start + len(truth):
            await device.until(TurnEnd)
    return device.held.ids[start:]


def with_branches(chain: Sequence[int], truth: Sequence[int]) -> tuple[list[int], list[int]]:
    """A tree whose first path is ``chain``, with the truth beside it wherever the two differ first."""
    ids, parents = list(chain), list(range(len(chain)))
    same = next((i for i, (a, b) in enumerate(zip(chain, truth, strict=True)) if a != b), len(chain))
    parent = same
    for token_id in truth[same:]:
        ids.append(token_id)
        parents.append(parent)
        parent = len(ids)
    return ids, parents


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("wrong_at", [1, 3, 100])
@pytest.mark.parametrize("sampling", [Sampling(), COUPLED], ids=["greedy", "coupled"])
def test_edge_drafts_change_nothing_but_the_number_of_passes(
    sampling: Sampling, wrong_at: int, tree: bool
) -> None:
    """Always wrong, sometimes wrong and always right drafters get the target's own text; good ones in fewer passes."""
    with running_verifier() as verifier:
        truth = verifier.engine.generate(PROMPT, 24, sampling)

        async def run() -> RawDevice:
            async with connected(verifier.address) as device:
                assert await edge(device, truth, sampling, wrong_at, tree) == truth
                return device

        device = asyncio.run(run())
        assert set(device.held.kinds) <= KINDS_OF_EDGE
        if wrong_at == 100 and not tree:
            assert TokenKind.RECOVERED not in device.held.kinds and device.round <= 4


def test_a_pass_is_only_made_when_asked_for() -> None:
    """Without run-ahead nothing is decoded until a draft comes; an empty draft is one step."""
    with running_verifier() as verifier:

        async def run() -> None:
            async with connected(verifier.address) as device:
                await device.open(PROMPT, 10)
                await device.send(Ping(5))
                await device.until(Pong)
                assert device.held.ids == list(PROMPT)
                verdict = await device.propose([])
                assert verdict.outcome is RoundOutcome.VERIFIED and verdict.accepted == 0
                assert device.held.ids == [*PROMPT, *verifier.engine.generate(PROMPT, 1)]

        asyncio.run(run())


def test_opened_is_sent_before_the_model_does_anything() -> None:
    """A device can time the link: Opened arrives while the target is stuck, and says what the server can do."""
    with running_verifier() as verifier:

        async def run() -> Opened:
            async with connected(verifier.address) as device:
                verifier.engine.gate.clear()
                try:
                    return await device.open(PROMPT, 10, run_ahead_until=UNLIMITED)
                finally:
                    verifier.engine.gate.set()

        opened = asyncio.run(run())
        assert opened.attach is Attach.NEW and opened.committed == extend(EMPTY, PROMPT)
        assert opened.fingerprints.law == LAW and opened.planes == ()
        assert opened.cost.widths == (1, 8, 64) and len(opened.replica) == 8
        assert set(opened.features) == {
            Feature.TREES, Feature.RUN_AHEAD, Feature.PIPELINE, Feature.STATE_ROWS,
        }  # fmt: skip


def test_describe_says_what_is_served() -> None:
    """Describe agrees with what the server loaded, whatever versions the device asks for."""
    with running_verifier() as verifier:

        async def run() -> pb.DescribeResponse:
            async with channel_to(verifier.address) as channel:
                return await verifier_pb2_grpc.VerifierStub(channel).Describe(
                    pb.DescribeRequest(protocol_min=7, protocol_max=9), timeout=20
                )

        assert description_from_wire(asyncio.run(run())) == verifier.loaded.description


def rows_of(frames: Sequence[Rows], ids: Sequence[int]) -> dict[int, bool]:
    """Check every row against the prefix it must be made from; positions, and whether they came as bulk."""
    got: dict[int, bool] = {}
    for frame in frames:
        values = decode_rows(frame.data, frame.count, PLANE)
        for index in range(frame.count):
            expected = toy_row(ids[: frame.start + index + 1])
            assert np.abs(values[index] - expected).max() < np.abs(expected).max() / 100
            got[frame.start + index] = frame.bulk
    return got


def test_state_rows_follow_for_every_consumed_position() -> None:
    """With L tokens committed, rows exist for 0 … L-2: the prompt's as bulk, later ones as they are verified."""
    with running_verifier() as verifier:
        truth = verifier.engine.generate(PROMPT, 20)

        async def run() -> RawDevice:
            async with connected(verifier.address) as device:
                await device.open(PROMPT, 20, rows=RowsWanted(), fingerprints=WITH_BUNDLE)
                for at in (0, 5, 10):
                    await device.propose(truth[at : at + 4])
                while len(rows_of(device.rows, device.held.ids)) < len(device.held.ids) - 1:
                    await device.until(Rows)
                return device

        device = asyncio.run(run())
        got = rows_of(device.rows, device.held.ids)
        assert sorted(got) == list(range(len(device.held.ids) - 1))
        assert all(got[position] for position in range(len(PROMPT) - 1))
        assert not any(got[position] for position in range(len(PROMPT), len(got)))


def test_no_rows_are_sent_unasked() -> None:
    """A device that wants no rows gets none."""
    with running_verifier() as verifier:

        async def run() -> RawDevice:
            async with connected(verifier.address) as device:
                await device.open(PROMPT, 20, run_ahead_until=UNLIMITED, draft=Draft.chain(()))
                await device.stream()
                return device

        assert asyncio.run(run()).rows == []


async def attach_again(device: RawDevice, max_new: int, epoch: int, context: bool) -> Opened:
    """Open the running turn again on a new stream."""
    held = device.held
    turn = Turn(1, EMPTY, PROMPT, len(PROMPT), len(PROMPT) + max_new)
    device.turn = 1
    window = Window(held.anchor, UNLIMITED)
    given = Context(0, tuple(held.ids)) if context else None
    await device.send(
        Open(
            device.session_id, epoch, held.anchor, turn, window, context=given, features=(Feature.RUN_AHEAD,)
        )
    )
    return await device.until(Opened)


async def half_of_it(address: str, session: bytes, held: Held) -> None:
    """Stream the first part of a turn of 40 tokens, then go."""
    async with connected(address, session, held) as device:
        await device.open(PROMPT, 40, run_ahead_until=len(PROMPT) + 15, draft=Draft.chain(()))
        while len(held.ids) < len(PROMPT) + 15:
            await device.receive()
        await device.half_close()
        assert (await device.drained())[0] is grpc.StatusCode.OK


def test_a_half_closed_stream_leaves_its_session_alive() -> None:
    """Detach, attach again: LIVE, no prefill, the same text as without the break."""
    with running_verifier() as verifier:
        session, held = os.urandom(16), Held()
        asyncio.run(half_of_it(verifier.address, session, held))
        prefilled = verifier.engine.prefilled

        async def resume() -> Opened:
            async with connected(verifier.address, session, held) as device:
                opened = await attach_again(device, 40, 2, context=False)
                await device.stream()
                return opened

        assert asyncio.run(resume()).attach is Attach.LIVE
        assert held.ids[len(PROMPT) :] == verifier.engine.generate(PROMPT, 40)
        assert verifier.engine.prefilled == prefilled
        assert verifier.metrics.value("attachments_total", attach="live") == 1


def test_another_verifier_goes_on_from_the_ids() -> None:
    """A server that never saw the session rebuilds it from the ids in Open, with the same text."""
    session, held = os.urandom(16), Held()
    with running_verifier() as first:
        asyncio.run(half_of_it(first.address, session, held))
    with running_verifier() as second:

        async def resume() -> Opened:
            async with connected(second.address, session, held) as device:
                opened = await attach_again(device, 40, 2, context=True)
                await device.stream()
                return opened

        assert asyncio.run(resume()).attach is Attach.REBUILD
        assert held.ids[len(PROMPT) :] == second.engine.generate(PROMPT, 40)


def test_cancel_ends_the_turn_and_close_ends_the_stream() -> None:
    """Cancel is answered by TurnEnd, Close by a clean end; with forget the session is gone."""
    with running_verifier() as verifier:

        async def run() -> None:
            async with connected(verifier.address) as device:
                await device.open(PROMPT, 40)
                await device.send(Cancel(1))
                assert (await device.until(TurnEnd)).reason is FinishReason.CANCELLED
                await device.send(Close(forget=True))
                assert (await device.drained())[0] is grpc.StatusCode.OK

        asyncio.run(run())
        assert verifier.engine.kv_bytes() == 0


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
                opened = await attach_again(device, 20, 2, context=False)
                await device.stream()
                return opened

        assert asyncio.run(run()) is grpc.StatusCode.INTERNAL
        assert asyncio.run(resume()).attach is Attach.REBUILD
        assert held.ids[len(PROMPT) :] == verifier.engine.generate(PROMPT, 20)
