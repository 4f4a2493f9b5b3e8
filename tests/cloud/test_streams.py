"""The queue towards one device: order, bounds, ending, padding."""

from __future__ import annotations

import asyncio

import pytest

from outrider.cloud.events import Priority
from outrider.cloud.streams import HARD_LIMIT_BYTES, QUEUE_LIMIT_BYTES, OutStream, StreamEnd, padding_for
from outrider.shared.frames import (
    Anchor,
    Attach,
    Commit,
    Drain,
    Failure,
    FailureReason,
    Feature,
    Opened,
    Pong,
    Rows,
    TokenKind,
)
from outrider.v1 import verifier_pb2 as pb

BULK = Rows(1, 0, 0, 1, bytes(16_000), bulk=True)
COMMIT = Commit(1, 0, (5,), (TokenKind.BONUS,))


def stream(queued: list[int] | None = None) -> OutStream:
    """A stream that notes what it reports about its queue."""
    return OutStream(1, (queued if queued is not None else []).append)


async def kinds(out: OutStream, number: int) -> list[str | None]:
    """Kinds of the next frames; None is the end."""
    messages = [await asyncio.wait_for(out.next(), 20) for _ in range(number)]
    return [None if message is None else message.WhichOneof("frame") for message in messages]


def test_urgent_frames_overtake_what_waits() -> None:
    """Drain, then commits, then signs of life, then prompt rows, whatever the order of arrival."""

    async def run() -> list[str | None]:
        out = stream()
        for frame, priority in (
            (BULK, Priority.BULK),
            (Pong(1), Priority.SIGN),
            (COMMIT, Priority.COMMIT),
            (Drain(1, 1), Priority.URGENT),
        ):
            out.put(frame, priority)
        return await kinds(out, 4)

    assert asyncio.run(run()) == ["drain", "commit", "pong", "rows"]


def test_an_ended_stream_hands_over_commits_and_then_its_failure() -> None:
    """Commits made before the end still arrive, rows and signs of life do not, and Failure is the last frame."""

    async def run() -> list[str | None]:
        out = stream()
        out.put(BULK, Priority.BULK)
        out.put(Failure(FailureReason.FENCED), Priority.URGENT)
        out.put(COMMIT, Priority.COMMIT)
        out.finish(StreamEnd(FailureReason.FENCED))
        out.put(COMMIT, Priority.COMMIT)
        out.finish(StreamEnd())
        assert out.end == StreamEnd(FailureReason.FENCED)
        return await kinds(out, 3)

    assert asyncio.run(run()) == ["commit", "failure", None]


def test_passing_the_limit_is_reported_once_each_way() -> None:
    """The table hears when the queue is too long and when it is half empty again; the reader waits in between."""
    queued: list[int] = []

    async def run() -> None:
        out = stream(queued)
        while not queued:
            out.put(BULK, Priority.BULK)
        waiting = asyncio.create_task(out.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        while len(queued) == 1:
            await out.next()
        await asyncio.wait_for(waiting, 20)

    asyncio.run(run())
    assert queued[0] > QUEUE_LIMIT_BYTES and queued[1] <= QUEUE_LIMIT_BYTES // 2


def test_a_device_that_does_not_read_is_cut_off() -> None:
    """Frames cannot pile up without bound: the stream ends as overloaded and drops what was bulk."""

    async def run() -> OutStream:
        out = stream()
        for _ in range(HARD_LIMIT_BYTES // 16_000 + 2):
            out.put(BULK, Priority.BULK)
        return out

    out = asyncio.run(run())
    assert out.end is not None and out.end.reason is FailureReason.OVERLOADED


@pytest.mark.parametrize(
    "size", [1, 17, 50, 61, 62, 63, 64, 65, 100, 125, 126, 189, 190, 500, 1000, 8000, 16_500]
)
def test_padded_messages_have_the_size_of_a_bucket(size: int) -> None:
    """Whatever the frame, the message has a power of two of bytes, at least 64."""
    message = pb.DecodeResponse(rows=pb.Rows(data=bytes(size)))
    message.padding = padding_for(message.ByteSize())
    padded = message.ByteSize()
    assert padded >= 64 and padded & (padded - 1) == 0


def test_padding_starts_when_it_is_granted() -> None:
    """Before Opened grants it, and without the grant, nothing is padded."""

    async def run(features: tuple[Feature, ...]) -> list[int]:
        out = stream()
        out.put(Pong(1), Priority.SIGN)
        first = await out.next()
        out.put(Opened(1, Attach.NEW, Anchor(0, 0), features=features), Priority.SIGN)
        out.put(Pong(1), Priority.SIGN)
        messages = [first, await out.next(), await out.next()]
        return [0 if message is None else message.ByteSize() for message in messages]

    plain, padded = asyncio.run(run(())), asyncio.run(run((Feature.PADDING,)))
    assert plain[0] == plain[2] == padded[0] < 64 and padded[2] == 64
