"""The verifier over real gRPC, with a toy target: sessions, rounds, rows, resumption."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

import grpc
import numpy as np
import pytest

from outrider.shared.anchor import EMPTY, extend
from outrider.shared.codec import decode_rows
from outrider.shared.draft import Draft
from outrider.shared.frames import (
    UNLIMITED,
    Attach,
    Cancel,
    Close,
    Feature,
    FinishReason,
    Opened,
    Ping,
    Pong,
    RoundOutcome,
    Rows,
    RowsWanted,
    TokenKind,
    TurnEnd,
)
from outrider.shared.sampling import Sampling
from outrider.shared.wire import description_from_wire
from outrider.v1 import verifier_pb2 as pb
from outrider.v1 import verifier_pb2_grpc
from tests.harness import running_verifier
from tests.raw_device import KINDS_OF_EDGE, Held, RawDevice, channel_to, connected, streamed
from tests.toy_engine import PLANE, toy_row
from tests.toy_verifier import COUPLED, LAW, PROMPT, WITH_BUNDLE


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
                opened = await device.resume(PROMPT, 40, 2, context=False)
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
                opened = await device.resume(PROMPT, 40, 2, context=True)
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
        # A pass that was under way when the session went ends first; one that never does ends the test.
        while verifier.engine.kv_bytes():
            time.sleep(0.01)
