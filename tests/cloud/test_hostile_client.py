"""Whatever a device sends, it ends its own stream with the field's name, and nobody else notices.

Every case runs beside a bystander in the middle of its turn, and afterwards the session that was abused goes on too.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from outrider.shared.anchor import EMPTY, extend
from outrider.shared.draft import Draft
from outrider.shared.frames import (
    UNLIMITED,
    Context,
    DraftFrame,
    FailureReason,
    Open,
    Opened,
    Turn,
    Window,
)
from outrider.shared.sampling import Sampling
from outrider.shared.wire import up_to_wire
from outrider.v1 import verifier_pb2 as pb
from tests.harness import Handle, running_verifier
from tests.raw_device import ALL_FEATURES, Held, channel_to, connected, streamed
from tests.toy_verifier import toy_loaded

PROMPT = (3, 1, 4, 1, 5)
LENGTH = 12
SEEN = extend(EMPTY, PROMPT)

BAD = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def ids(*values: int) -> bytes:
    """Token ids as the wire has them."""
    return struct.pack(f"<{len(values)}I", *values)


def parents(*values: int) -> bytes:
    """Parents as the wire has them."""
    return struct.pack(f"<{len(values)}H", *values)


@dataclass(frozen=True)
class Case:
    """What is done to a good message, and the answer it must get."""

    name: str
    spoil: Callable[[pb.DecodeRequest], object]
    field: str = ""
    status: grpc.StatusCode = BAD
    reason: FailureReason = FailureReason.INVALID


def good_open(session: bytes) -> pb.DecodeRequest:
    """An Open that would be served."""
    turn = Turn(1, EMPTY, PROMPT, len(PROMPT), len(PROMPT) + LENGTH)
    return up_to_wire(Open(session, 1, EMPTY, turn, Window(EMPTY, 0), features=ALL_FEATURES))


def good_draft(_session: bytes) -> pb.DecodeRequest:
    """A first draft that would be judged."""
    return up_to_wire(DraftFrame(1, 1, Window(SEEN, 0), Draft((7, 8, 9), (0, 0, 1))))


def set_window(message: pb.DecodeRequest, **fields: int) -> None:
    """Change fields of the draft's window.seen."""
    for name, value in fields.items():
        setattr(message.draft.window.seen, name, value)


def chain(message: pb.DecodeRequest, count: int) -> None:
    """Make the draft a chain of ``count``."""
    message.draft.ids, message.draft.parents = ids(*[1] * count), b""


def many_features(message: pb.DecodeRequest) -> None:
    """More features than there can be."""
    message.open.features.extend([pb.FEATURE_TREES] * 300)


def add_feature(message: pb.DecodeRequest, value: Any) -> None:
    """A feature by number, known or not."""
    message.open.features.append(value)


def newer_protocol(message: pb.DecodeRequest) -> None:
    """A device that speaks later versions only."""
    message.open.protocol_min, message.open.protocol_max = 7, 9


def wide_tree(message: pb.DecodeRequest) -> None:
    """65 nodes."""
    message.draft.ids, message.draft.parents = ids(*([1] * 65)), parents(*range(65))


def deep_tree(message: pb.DecodeRequest) -> None:
    """A tree of depth 17."""
    message.draft.ids, message.draft.parents = ids(*range(18)), parents(*range(17), 0)


def replace_by(frame: pb.DecodeRequest) -> Callable[[pb.DecodeRequest], object]:
    """Send something else altogether."""
    return lambda message: message.CopyFrom(frame)


OPEN_CASES = [
    Case("no frame", replace_by(pb.DecodeRequest()), "frame"),
    Case("draft first", replace_by(good_draft(b"")), "frame"),
    Case("ping first", replace_by(pb.DecodeRequest(ping=pb.Ping(nonce=1))), "frame"),
    Case("short session id", lambda m: setattr(m.open, "session_id", b"x" * 15), "open.session_id"),
    Case("long session id", lambda m: setattr(m.open, "session_id", b"x" * 60_000), "open.session_id"),
    Case("epoch 0", lambda m: setattr(m.open, "epoch", 0), "open.epoch"),
    Case("no turn", lambda m: m.open.ClearField("turn"), "open.turn"),
    Case("turn 0", lambda m: setattr(m.open.turn, "turn", 0), "open.turn.turn"),
    Case("no window", lambda m: m.open.ClearField("window"), "open.window"),
    Case("window is not have", lambda m: setattr(m.open.window.seen, "length", 3), "open.window.seen"),
    Case("empty prompt", lambda m: setattr(m.open.turn, "append_ids", b""), "open.turn.append_ids"),
    Case("cut id", lambda m: setattr(m.open.turn, "append_ids", ids(1) + b"\x01"), "open.turn.append_ids"),
    Case("id out of range", lambda m: setattr(m.open.turn, "append_ids", ids(1, 64)), "open.turn.append_ids"),
    Case("largest id", lambda m: setattr(m.open.turn, "append_ids", ids(2**32 - 1)), "open.turn.append_ids"),
    Case(
        "prompt over the limit",
        lambda m: setattr(m.open.turn, "append_ids", ids(*[1] * 3000)),
        status=grpc.StatusCode.OUT_OF_RANGE,
        reason=FailureReason.OUT_OF_RANGE,
    ),
    Case(
        "field over 64 KiB",
        lambda m: setattr(m.open.turn, "append_ids", ids(*[1] * 20_000)),
        "open.turn.append_ids",
    ),
    Case(
        "generated beyond the end",
        lambda m: setattr(m.open.turn, "generated_from", 99),
        "open.turn.generated_from",
    ),
    Case("stop id out of range", lambda m: setattr(m.open.turn, "stop_ids", ids(999)), "open.turn.stop_ids"),
    Case(
        "too many stop ids",
        lambda m: setattr(m.open.turn, "stop_ids", ids(*[1] * 1000)),
        "open.turn.stop_ids",
    ),
    Case("keep beyond the limit", lambda m: setattr(m.open.turn.keep, "length", 10**6), "open.turn.keep"),
    *(
        Case(
            f"temperature {value}",
            lambda m, value=value: setattr(m.open.turn.sampling, "temperature", value),  # type: ignore[misc]
            "open.turn.sampling.temperature",
        )
        for value in (math.nan, math.inf, -math.inf, -0.5)
    ),
    *(
        Case(
            f"top_p {value}",
            lambda m, value=value: setattr(m.open.turn.sampling, "top_p", value),  # type: ignore[misc]
            "open.turn.sampling.top_p",
        )
        for value in (math.nan, 1.5, -0.1)
    ),
    Case("unknown rule", lambda m: setattr(m.open.turn.rule, "name", "no-such-rule"), "open.turn.rule.name"),
    Case("no rule name", lambda m: setattr(m.open.turn.rule, "name", ""), "open.turn.rule.name"),
    Case(
        "unknown rule parameter",
        lambda m: m.open.turn.rule.parameters.update(eps=0.1),
        "open.turn.rule.parameters",
    ),
    Case(
        "rule parameter NaN",
        lambda m: m.open.turn.rule.parameters.update(eps=math.nan),
        "open.turn.rule.parameters",
    ),
    Case("unknown feature", lambda m: add_feature(m, 99), "open.features"),
    Case("unspecified feature", lambda m: add_feature(m, 0), "open.features"),
    Case("300 features", many_features, "open.features"),
    Case("short law", lambda m: setattr(m.open.fingerprints, "law", b"x" * 31), "open.fingerprints.law"),
    Case(
        "other law",
        lambda m: setattr(m.open.fingerprints, "law", b"x" * 32),
        "law",
        PRECONDITION,
        FailureReason.FINGERPRINT,
    ),
    Case(
        "other tokenizer",
        lambda m: setattr(m.open.fingerprints, "tokenizer", b"x" * 32),
        "tokenizer",
        PRECONDITION,
        FailureReason.FINGERPRINT,
    ),
    Case(
        "newer protocol only",
        newer_protocol,
        "",
        PRECONDITION,
        FailureReason.PROTOCOL,
    ),
    Case("protocol upside down", lambda m: setattr(m.open, "protocol_min", 9), "open.protocol_min"),
    Case(
        "context of nothing",
        lambda m: m.open.context.MergeFrom(pb.Context(start=5, ids=ids(1))),
        "open.context",
    ),
    Case("unknown row encoding", lambda m: setattr(m.open.rows, "encoding", 77), "open.rows.encoding"),
    Case(
        "held upside down",
        lambda m: m.open.rows.MergeFrom(
            pb.RowsWanted(encoding=pb.ROW_ENCODING_INT8, held_from=9, held_until=3)
        ),
        "open.rows.held_from",
    ),
    Case(
        "draft numbered 2",
        lambda m: m.open.draft.MergeFrom(pb.Draft(round=2, turn=1, window=pb.Window())),
        "open.draft",
    ),
]

FRAME_CASES = [
    Case("no frame", replace_by(pb.DecodeRequest()), "frame"),
    Case("open again", replace_by(good_open(b"x" * 16)), "frame"),
    Case("round 0", lambda m: setattr(m.draft, "round", 0), "draft.round"),
    Case(
        "a gap in rounds", lambda m: setattr(m.draft, "round", 5), "", PRECONDITION, FailureReason.ROUND_GAP
    ),
    Case("turn 0", lambda m: setattr(m.draft, "turn", 0), "draft.turn"),
    Case("a turn to come", lambda m: setattr(m.draft, "turn", 9), "draft.turn"),
    Case("no window", lambda m: m.draft.ClearField("window"), "draft.window"),
    Case(
        "seen with another hash",
        lambda m: set_window(m, hash=1),
        "",
        PRECONDITION,
        FailureReason.DIVERGED,
    ),
    Case(
        "seen more than there is",
        lambda m: set_window(m, length=50),
        "",
        PRECONDITION,
        FailureReason.DIVERGED,
    ),
    Case("id out of range", lambda m: setattr(m.draft, "ids", ids(7, 8, 64)), "draft.ids"),
    Case("cut id", lambda m: setattr(m.draft, "ids", ids(7, 8, 9)[:-1]), "draft.ids"),
    Case("cut parent", lambda m: setattr(m.draft, "parents", parents(0, 0, 1)[:-1]), "draft.parents"),
    Case(
        "more parents than ids", lambda m: setattr(m.draft, "parents", parents(0, 0, 1, 1)), "draft.parents"
    ),
    Case("fewer parents than ids", lambda m: setattr(m.draft, "parents", parents(0, 0)), "draft.parents"),
    Case("forward parent", lambda m: setattr(m.draft, "parents", parents(0, 3, 1)), "draft.parents"),
    Case("own parent", lambda m: setattr(m.draft, "parents", parents(0, 2, 1)), "draft.parents"),
    Case("parent of the first", lambda m: setattr(m.draft, "parents", parents(1, 0, 0)), "draft.parents"),
    Case("parent far away", lambda m: setattr(m.draft, "parents", parents(0, 65_535, 0)), "draft.parents"),
    Case("twin siblings", lambda m: setattr(m.draft, "ids", ids(7, 7, 9)), "draft.ids"),
    Case("65 nodes", wide_tree, "draft.ids"),
    Case("depth 17", deep_tree, "draft.parents"),
    Case("chain of 513", lambda m: chain(m, 513), "draft.ids"),
    Case("chain of 64 KiB", lambda m: chain(m, 16_385), "draft.ids"),
    Case("laws not granted", lambda m: m.draft.laws.MergeFrom(pb.SparseLaws(bits=4)), "draft.laws"),
    Case("context unasked", replace_by(up_to_wire(Context(0, (1, 2)))), "context"),
    Case("an old turn", replace_by(up_to_wire(Turn(1, SEEN, (1,), 1, 99))), "turn.turn"),
    Case(
        "a turn that keeps what is not there",
        replace_by(up_to_wire(Turn(2, extend(SEEN, (9, 9)), (1,), 1, 99))),
        "",
        PRECONDITION,
        FailureReason.DIVERGED,
    ),
    Case("cancel turn 0", replace_by(pb.DecodeRequest(cancel=pb.Cancel())), "cancel.turn"),
    Case("steer without window", replace_by(pb.DecodeRequest(steer=pb.Steer(turn=1))), "steer.window"),
    Case("padding over 64 KiB", lambda m: setattr(m, "padding", bytes(70_000)), "padding"),
]


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
            try:
                for number in range(1, 7):
                    await device.send(DraftFrame(number, 1, Window(SEEN), Draft.chain((1,))))
                await device.drained()
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
