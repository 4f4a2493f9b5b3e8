"""Whatever a device sends, it ends its own stream with the field's name, and nobody else notices.

Every case runs beside a bystander in the middle of its turn, and afterwards the session that was abused goes on too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from outrider.shared.draft import Draft
from outrider.shared.frames import (
    UNLIMITED,
    DraftFrame,
    FailureReason,
    Opened,
    Window,
)
from outrider.shared.sampling import Sampling
from outrider.v1 import verifier_pb2 as pb
from tests.harness import Handle, running_verifier
from tests.hostile_cases import FRAME_CASES, LENGTH, OPEN_CASES, PROMPT, SEEN, Case, good_draft, good_open
from tests.raw_device import Held, channel_to, connected, streamed
from tests.toy_verifier import toy_loaded


@pytest.fixture(scope="module")
def verifier() -> Iterator[Handle]:
    """One server for all cases: what one of them broke, the next would see."""
    with running_verifier() as running:
        yield running
        assert running.metrics.value("internal_errors_total", where="decode") == 0
        assert running.metrics.value("internal_errors_total", where="table") == 0


async def abuse(verifier: Handle, case: Case, opened: bool) -> None:
    """Send the spoiled message beside a bystander; then let both sessions finish."""
    session = os.urandom(16)
    async with connected(verifier.address) as bystander:
        await bystander.open((9, *PROMPT), LENGTH)
        await bystander.propose([1, 2])
        await refused(verifier.address, session, case, opened)
        truth = verifier.engine.generate((9, *PROMPT), LENGTH)
        while len(bystander.held.ids) < len(PROMPT) + 1 + LENGTH:
            await bystander.propose([1])
        assert bystander.held.ids[len(PROMPT) + 1 :] == truth
    async with connected(verifier.address, session) as again:
        await again.open(PROMPT, LENGTH, epoch=2, run_ahead_until=UNLIMITED, draft=Draft.chain(()))
        assert (await again.stream())[len(PROMPT) :] == verifier.engine.generate(PROMPT, LENGTH)


async def refused(address: str, session: bytes, case: Case, opened: bool) -> None:
    """The spoiled message must end its stream with this case's frame and status."""
    async with connected(address, session) as device:
        message = good_draft(session) if opened else good_open(session)
        if opened:
            await device.send_raw(good_open(session))
            await device.until(Opened)
        case.spoil(message)
        await device.send_raw(message)
        code, details = await device.drained()
        failure = device.failure
        assert failure is not None and (code, failure.reason) == (case.status, case.reason)
        assert failure.field.startswith(case.field), failure
        assert failure.reason.name in details and failure.field in details
        assert device.frames[-1] is failure
        assert failure.detail and failure.remedy


@pytest.mark.parametrize("case", OPEN_CASES, ids=lambda case: case.name)
def test_bad_opens(verifier: Handle, case: Case) -> None:
    """A bad Open gets its field and status; the session id can be used afterwards, the bystander is untouched."""
    asyncio.run(abuse(verifier, case, opened=False))


@pytest.mark.parametrize("case", FRAME_CASES, ids=lambda case: case.name)
def test_bad_frames(verifier: Handle, case: Case) -> None:
    """A bad frame within a session ends the stream only: the session is resumed, the bystander is untouched."""
    asyncio.run(abuse(verifier, case, opened=True))


def test_a_message_over_1_mib_is_refused_by_size(verifier: Handle) -> None:
    """Size comes before everything else, and costs nobody anything."""

    async def run() -> tuple[grpc.StatusCode, list[int]]:
        async with connected(verifier.address) as device:
            await device.open(PROMPT, LENGTH)
            await device.send_raw(pb.DecodeRequest(padding=bytes(1 << 21)))
            code, _ = await device.drained()
            return code, await streamed(verifier.address, PROMPT, LENGTH)

    code, text = asyncio.run(run())
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and text == verifier.engine.generate(PROMPT, LENGTH)


@pytest.mark.parametrize("garbage", [b"\xff" * 50, b"\x0a\xff\xff\xff\xff\x0f", bytes(range(256))])
def test_bytes_that_are_no_message(verifier: Handle, garbage: bytes) -> None:
    """What does not parse ends the call with a status, on streams and on unary calls; the server serves on."""

    async def run() -> list[grpc.StatusCode]:
        codes = []
        async with channel_to(verifier.address) as channel:
            stream: Any = channel.stream_stream("/outrider.v1.Verifier/Decode")()
            await stream.write(garbage)
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await asyncio.wait_for(stream.read(), 30) is not grpc.aio.EOF:
                    pass
            codes.append(await stream.code())
            for method in ("Describe", "FetchBundle"):
                unary: Any = channel.unary_stream(f"/outrider.v1.Verifier/{method}")
                call = unary(garbage, timeout=30)
                codes.append(await call.code())
        return codes

    codes = asyncio.run(run())
    assert not {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED} & set(codes)
    assert asyncio.run(streamed(verifier.address, PROMPT, 5)) == verifier.engine.generate(PROMPT, 5)


def test_a_compressed_message_is_refused(verifier: Handle) -> None:
    """No compression on this wire: a device that compresses is told so, or not at all served."""

    async def run() -> grpc.StatusCode:
        async with connected(verifier.address) as device:
            await device.open(PROMPT, LENGTH)
        async with grpc.aio.insecure_channel(verifier.address, compression=grpc.Compression.Gzip) as channel:
            call: Any = channel.stream_stream("/outrider.v1.Verifier/Decode")()
            bomb = pb.DecodeRequest(padding=bytes(20 << 20)).SerializeToString()
            await call.write(bomb)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await asyncio.wait_for(call.read(), 30)
            return await asyncio.wait_for(call.code(), 60)

    assert asyncio.run(run()) in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED)


def test_a_repeated_round_with_other_content_is_a_conflict(verifier: Handle) -> None:
    """The same number with another draft is refused; with the same draft it gets the same answer, marked replayed."""

    async def run() -> None:
        async with connected(verifier.address) as device:
            await device.open(PROMPT, LENGTH)
            first = await device.propose([1, 2, 3])
            device.round -= 1
            device.held.ids[:] = PROMPT
            again = await device.propose([1, 2, 3])
            assert again.replayed and again.commit == first.commit
            device.held.ids[:] = PROMPT
            await device.send(DraftFrame(1, 1, Window(SEEN), Draft.chain((1, 2, 4))))
            code, _ = await device.drained()
            assert code is grpc.StatusCode.ABORTED
            assert device.failure and device.failure.reason is FailureReason.ROUND_CONFLICT

    asyncio.run(run())


def test_more_rounds_in_flight_than_granted(verifier: Handle) -> None:
    """Four rounds may wait for the target; the fifth is refused."""

    async def run() -> FailureReason | None:
        async with connected(verifier.address) as device:
            await device.open(PROMPT, LENGTH)
            verifier.engine.gate.clear()
            # What nobody reads when a stream ends with an error is lost, and the refusal comes while we still send.
            ended = asyncio.ensure_future(device.drained())
            try:
                for number in range(1, 7):
                    await device.send(DraftFrame(number, 1, Window(SEEN), Draft.chain((1,))))
                await ended
            finally:
                verifier.engine.gate.set()
            return device.failure.reason if device.failure else None

    assert asyncio.run(run()) is FailureReason.INVALID


def test_an_old_epoch_is_fenced_and_a_newer_one_takes_over(verifier: Handle) -> None:
    """Replayed or stolen attachments lose: the newest epoch has the session, and the text is one."""

    async def run() -> None:
        session, held = os.urandom(16), Held()
        async with (
            connected(verifier.address, session, held) as old,
            connected(verifier.address, session) as new,
        ):
            await old.open(PROMPT, LENGTH, epoch=5)
            await old.propose([1])
            await new.open(PROMPT, LENGTH, epoch=6, run_ahead_until=UNLIMITED)
            assert (await old.drained())[0] is grpc.StatusCode.ABORTED
            assert old.failure and old.failure.reason is FailureReason.FENCED
            await new.stream()
            assert new.held.ids[: len(held.ids)] == held.ids
            assert new.held.ids[len(PROMPT) :] == verifier.engine.generate(PROMPT, LENGTH)
        async with connected(verifier.address, session) as replay:
            await replay.send_raw(good_open(session))
            assert (await replay.drained())[0] is grpc.StatusCode.ABORTED
            assert replay.failure and replay.failure.last_epoch == 6

    asyncio.run(run())


def test_extreme_numbers_are_harmless(verifier: Handle) -> None:
    """The largest values of every integer field are either served within the limits or refused by name."""

    async def run() -> list[int]:
        async with connected(verifier.address) as device:
            message = good_open(device.session_id)
            message.open.epoch = 2**32 - 1
            message.open.turn.max_length = 2**32 - 1
            message.open.turn.sampling.MergeFrom(
                pb.Sampling(temperature=0.7, top_k=2**32 - 1, seed=2**64 - 1)
            )
            message.open.turn.rule.name = "coupled"
            message.open.window.run_ahead_until = 2**32 - 1
            message.open.window.bulk_acked_bytes = 2**32 - 1
            message.open.rows.MergeFrom(
                pb.RowsWanted(
                    first=2**32 - 1,
                    held_until=2**32 - 1,
                    encoding=pb.ROW_ENCODING_F32,
                    bulk_window_bytes=2**32 - 1,
                )
            )
            device.held.ids[:] = PROMPT
            await device.send_raw(message)
            while len(device.held.ids) < 60:
                await device.receive()
            return device.held.ids[len(PROMPT) : 60]

    sampling = Sampling(temperature=0.7, top_k=2**32 - 1, seed=2**64 - 1)
    assert asyncio.run(run()) == verifier.engine.generate(PROMPT, 55, sampling)


def test_too_many_sessions_are_told_when_to_come_back() -> None:
    """Admission ends one stream with OVERLOADED and a time; those inside are served."""
    from outrider.cloud.table_state import TableSettings

    loaded = toy_loaded(settings=TableSettings(max_sessions=2))
    with running_verifier(loaded=loaded) as small:

        async def run() -> None:
            async with (
                connected(small.address) as first,
                connected(small.address) as second,
                connected(small.address) as third,
            ):
                await first.open(PROMPT, LENGTH)
                await second.open(PROMPT, LENGTH)
                await third.send_raw(good_open(third.session_id))
                assert (await third.drained())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert third.failure and third.failure.retry_after_ms > 0
                await first.propose([1])

        asyncio.run(run())
