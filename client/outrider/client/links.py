"""The device's streams: one task reads, one writes, each on a connection of its own."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc

from outrider.client.channel import Channel, ChannelSettings, open_channel
from outrider.client.events import Closed, Connected, Dial, MachineEvent, Received
from outrider.shared.errors import InvalidField, LinkDown, OutriderError, ProtocolViolation, from_status
from outrider.shared.frames import DownFrame, Opened, RowPlane, UpFrame
from outrider.shared.transport import error_of
from outrider.shared.wire import DownChecks, down_from_wire, up_to_wire
from outrider.v1 import verifier_pb2 as pb

if TYPE_CHECKING:
    Call = grpc.aio.StreamStreamCall[pb.DecodeRequest, pb.DecodeResponse]

CONNECT_S = 5.0
"""TCP and TLS must be done by then; the session's own deadlines act sooner."""
_CLOSE_S = 1.0


def route_of(session_id: bytes) -> str:
    """The key that balancers may hash: the id itself is a secret where nobody authenticates."""
    return hashlib.sha256(session_id).digest()[:8].hex()


class Link:
    """One attempt to attach: a connection, a Decode stream, and what goes over it."""

    def __init__(
        self,
        dial: Dial,
        settings: ChannelSettings,
        route: str,
        feed: Callable[[MachineEvent], None],
        count: Callable[[int, int], None],
    ) -> None:
        self.number = dial.conn
        self._settings = settings
        self._route = route
        self._feed = feed
        self._count = count
        self._out: asyncio.Queue[UpFrame | None] = asyncio.Queue()
        self._planes: dict[int, RowPlane] | None = None
        self._task = asyncio.create_task(self._run(), name=f"outrider-link-{dial.conn}")

    def send(self, frame: UpFrame) -> None:
        """Queue a frame."""
        self._out.put_nowait(frame)

    def hang_up(self, cancel: bool) -> None:
        """Leave: at once, or after what is queued (the verifier keeps the session either way)."""
        if cancel:
            self._task.cancel()
        else:
            self._out.put_nowait(None)

    async def ended(self) -> None:
        """Wait until nothing of this link is left."""
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        error: OutriderError | None = None
        try:
            async with open_channel(self._settings) as channel:
                await channel.ready(CONNECT_S)
                error = await self._talk(channel)
        except asyncio.CancelledError:
            error = None
        except Exception as raised:
            error = _known(raised)
        self._feed(Closed(self.number, error))

    async def _talk(self, channel: Channel) -> OutriderError | None:
        metadata = (*channel.metadata, ("outrider-route", self._route))
        call = channel.verifier.Decode(metadata=metadata)
        writer = asyncio.create_task(self._write(call))
        try:
            self._feed(Connected(self.number))
            while isinstance(message := await call.read(), pb.DecodeResponse):
                self._count(0, message.ByteSize() - len(message.padding))
                self._feed(Received(self.number, self._checked(message)))
            code = await call.code()
            return None if code is grpc.StatusCode.OK else from_status(code.name, await call.details() or "")
        finally:
            writer.cancel()
            call.cancel()

    def _checked(self, message: pb.DecodeResponse) -> DownFrame:
        frame = down_from_wire(message, DownChecks(planes=self._planes))
        if isinstance(frame, Opened):
            self._planes = {plane.plane: plane for plane in frame.planes}
        return frame

    async def _write(self, call: Call) -> None:
        """Frames in order; a stream that broke is the reader's to report."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            while (frame := await self._out.get()) is not None:
                message = up_to_wire(frame)
                self._count(message.ByteSize(), 0)
                await call.write(message)
            await call.done_writing()


def _known(raised: Exception) -> OutriderError:
    """What a link's end means to the session."""
    if isinstance(raised, InvalidField):
        # What came from the other side is theirs to answer for; ours is never refused by our own checks.
        return ProtocolViolation(f"the verifier sent {raised.field}: {raised.why}")
    if isinstance(raised, OSError):
        return LinkDown(str(raised))
    return error_of(raised)
