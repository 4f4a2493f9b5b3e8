"""A device reduced to its wire: sends frames, keeps what is committed, decides nothing.

For tests of the verifier, so that they do not depend on the device package. Frames go through the project's own codecs
except for `send_raw`, which sends whatever message it is given.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from outrider.shared.anchor import EMPTY, extend
from outrider.shared.draft import Draft
from outrider.shared.frames import (
    UNLIMITED,
    Anchor,
    Commit,
    Context,
    DownFrame,
    DraftFrame,
    Failure,
    Feature,
    Fingerprints,
    Open,
    Opened,
    Rows,
    RowsWanted,
    Rule,
    Steer,
    TokenKind,
    Turn,
    TurnEnd,
    UpFrame,
    Verdict,
    Window,
)
from outrider.shared.sampling import Sampling
from outrider.shared.wire import DownChecks, down_from_wire, up_to_wire
from outrider.v1 import verifier_pb2 as pb
from outrider.v1 import verifier_pb2_grpc

Frame = TypeVar("Frame", bound=DownFrame)
PATIENCE_S = 60.0
ALL_FEATURES = (Feature.TREES, Feature.RUN_AHEAD, Feature.PIPELINE, Feature.STATE_ROWS)
KINDS_OF_EDGE = {TokenKind.ACCEPTED, TokenKind.RECOVERED, TokenKind.BONUS}
"""Of tokens that only come when a draft is judged."""


@dataclass
class Held:
    """What a device would keep: the committed ids and how each got there."""

    ids: list[int] = field(default_factory=list)
    kinds: list[TokenKind] = field(default_factory=list)

    @property
    def anchor(self) -> Anchor:
        """Anchor of all of it."""
        return extend(EMPTY, self.ids)

    def apply(self, commit: Commit) -> None:
        """Append what is new; equal repeats are ignored, anything else is a fault of the server."""
        for offset, (token_id, kind) in enumerate(zip(commit.ids, commit.kinds, strict=True)):
            position = commit.start + offset
            if position < len(self.ids):
                assert self.ids[position] == token_id, f"position {position} was decided twice"
                continue
            assert position == len(self.ids), f"a gap before position {position}"
            self.ids.append(token_id)
            self.kinds.append(kind)


class RawDevice:
    """One Decode stream. Create with `attached` or `connected`."""

    def __init__(self, call: Any, session_id: bytes, held: Held) -> None:
        self.call = call
        self.session_id = session_id
        self.held = held
        self.turn = 0
        self.round = 0
        self.frames: list[DownFrame] = []
        self.rows: list[Rows] = []
        self.opened: Opened | None = None
        self.end: TurnEnd | None = None
        self.failure: Failure | None = None

    async def send(self, frame: UpFrame) -> None:
        """Send a frame."""
        await self.send_raw(up_to_wire(frame))

    async def send_raw(self, message: pb.DecodeRequest) -> None:
        """Send any message; what is sent to a stream that has just ended is lost, as on any wire."""
        try:
            await asyncio.wait_for(self.call.write(message), PATIENCE_S)
        except grpc.aio.AioRpcError:
            if not self.call.done():
                raise

    async def half_close(self) -> None:
        """Nothing more will be sent."""
        await self.call.done_writing()

    async def receive(self) -> DownFrame | None:
        """The next frame, applied to what is held; None when the stream has ended."""
        message = await asyncio.wait_for(self.call.read(), PATIENCE_S)
        if message is grpc.aio.EOF:
            return None
        planes = {p.plane: p for p in self.opened.planes} if self.opened else None
        frame = down_from_wire(message, DownChecks(planes=planes))
        self.frames.append(frame)
        match frame:
            case Opened():
                self.opened = frame
            case Verdict(commit=Commit() as commit):
                self.held.apply(commit)
            case Commit():
                self.held.apply(frame)
            case Rows():
                self.rows.append(frame)
            case TurnEnd():
                self.end = frame
            case Failure():
                self.failure = frame
        return frame

    async def until(self, kind: type[Frame], when: Callable[[Frame], bool] = lambda _: True) -> Frame:
        """Receive until a frame of ``kind`` fulfils ``when``."""
        while True:
            frame = await self.receive()
            assert frame is not None, f"the stream ended before {kind.__name__}"
            if isinstance(frame, kind) and when(frame):
                return frame

    async def drained(self) -> tuple[grpc.StatusCode, str]:
        """Receive to the end of the stream; its status and details."""
        try:
            while await self.receive() is not None:
                pass
        except grpc.aio.AioRpcError:
            pass
        return await self.call.code(), await self.call.details()

    async def open(
        self,
        prompt: Sequence[int],
        max_new: int,
        *,
        epoch: int = 1,
        run_ahead_until: int = 0,
        sampling: Sampling | None = None,
        draft: Draft | None = None,
        stop_ids: tuple[int, ...] = (),
        rows: RowsWanted | None = None,
        features: tuple[Feature, ...] = ALL_FEATURES,
        fingerprints: Fingerprints | None = None,
    ) -> Opened:
        """Open turn 1 with ``prompt``; the session starts empty."""
        self.turn = 1
        self.held.ids[:] = prompt
        self.held.kinds.clear()
        sampling = sampling or Sampling()
        rule = Rule("coupled" if sampling.temperature else "greedy")
        turn = Turn(1, EMPTY, tuple(prompt), len(prompt), len(prompt) + max_new, stop_ids, sampling, rule)
        window = Window(EMPTY, run_ahead_until)
        first = None
        if draft is not None:
            self.round = 1
            base = extend(EMPTY, prompt)
            first = DraftFrame(1, 1, window, draft, base)
        await self.send(
            Open(
                self.session_id, epoch, EMPTY, turn, window, features=features, draft=first, rows=rows,
                fingerprints=fingerprints or Fingerprints(),
            )
        )  # fmt: skip
        return await self.until(Opened)

    async def resume(self, prompt: Sequence[int], max_new: int, epoch: int, context: bool) -> Opened:
        """Open turn 1 again on a new stream with what is held, run-ahead without limit; ``context`` sends the ids."""
        self.turn = 1
        turn = Turn(1, EMPTY, tuple(prompt), len(prompt), len(prompt) + max_new)
        given = Context(0, tuple(self.held.ids)) if context else None
        window = Window(self.held.anchor, UNLIMITED)
        await self.send(
            Open(
                self.session_id, epoch, self.held.anchor, turn, window, context=given, features=ALL_FEATURES,
            )
        )  # fmt: skip
        return await self.until(Opened)

    async def propose(self, ids: Sequence[int], parents: Sequence[int] | None = None) -> Verdict:
        """One round from what is held: send a draft, wait for its verdict."""
        self.round += 1
        drafted = Draft.chain(tuple(ids)) if parents is None else Draft(tuple(ids), tuple(parents))
        await self.send(DraftFrame(self.round, self.turn, Window(self.held.anchor), drafted))
        number = self.round
        return await self.until(Verdict, lambda verdict: verdict.round == number)

    async def stream(self) -> list[int]:
        """Let the server decode alone until the turn ends, acknowledging as it goes; all ids held then."""
        acknowledged = len(self.held.ids)
        while not isinstance(frame := await self.receive(), TurnEnd):
            assert frame is not None, "the stream ended before the turn"
            if len(self.held.ids) >= acknowledged + 16:
                acknowledged = len(self.held.ids)
                await self.send(Steer(self.turn, Window(self.held.anchor, UNLIMITED)))
        return self.held.ids


@asynccontextmanager
async def channel_to(address: str) -> AsyncIterator[grpc.aio.Channel]:
    """A plaintext connection of its own."""
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield channel


@asynccontextmanager
async def connected(
    address: str, session_id: bytes | None = None, held: Held | None = None, token: str = ""
) -> AsyncIterator[RawDevice]:
    """A stream that has said nothing yet, on a connection of its own."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    async with channel_to(address) as channel:
        call = verifier_pb2_grpc.VerifierStub(channel).Decode(metadata=metadata)
        try:
            yield RawDevice(call, session_id or os.urandom(16), held if held is not None else Held())
        finally:
            call.cancel()
            await asyncio.wait_for(call.code(), PATIENCE_S)  # nothing of the call may outlive its event loop


async def streamed(
    address: str, prompt: Sequence[int], max_new: int, sampling: Sampling | None = None
) -> list[int]:
    """Plain remote streaming: the new ids, with an empty draft and run-ahead without limit."""
    async with connected(address) as device:
        await device.open(
            prompt, max_new, sampling=sampling, run_ahead_until=UNLIMITED, draft=Draft.chain(())
        )
        return (await device.stream())[len(prompt) :]
