"""A server that lies: it stands before an honest verifier, passes everything on, and changes what it wants to.

A lie (see `tests/hostile_lies.py`) is shown the honest frames of a stream in order and says what is sent instead;
streams after the first few are passed on untouched, so that it also plays the honest server that comes afterwards.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import grpc

from outrider.v1 import verifier_pb2 as pb
from outrider.v1 import verifier_pb2_grpc

Frame = pb.DecodeResponse
PACE_S = 0.005
"""Between two frames of an endless kind."""


class Ending(StrEnum):
    """What must become of the turn once the lies are over."""

    SAME = "the target's own text, verified to the end"
    ERROR = "an error that says what is wrong"
    EITHER = "any end, with nothing false in it"
    WAITS = "the wait that the server asked for, until the caller has enough"


@dataclass(frozen=True, slots=True)
class Over:
    """The stream ends here, with this status."""

    status: grpc.StatusCode = grpc.StatusCode.OK
    details: str = "because"


class Silence:
    """Nothing more is sent, and the stream stays open."""


@dataclass(frozen=True, slots=True)
class Endless:
    """The same frame for ever."""

    frame: Frame


Out = Frame | bytes | Over | Silence | Endless


@dataclass(slots=True)
class Scene:
    """One stream as a lie sees it."""

    rng: random.Random
    skip: int
    """Frames of the lie's kind that pass before it strikes."""
    stop_id: int
    fired: bool = False


Mutation = Callable[[Frame, Scene], Iterable[Out] | None]
"""Changes the frame in place, or gives what is sent in its place."""


@dataclass(frozen=True, slots=True)
class Lie:
    """One behaviour."""

    name: str
    kind: str
    """The frame it strikes at: a name of the oneof, or "any"."""
    mutate: Mutation
    ending: Ending = Ending.SAME
    streaming: bool = False
    """Whether the device streams, so that there are Commit frames."""
    when: Callable[[Frame], bool] = lambda frame: True

    def tell(self, frame: Frame, scene: Scene) -> Iterator[Out]:
        """What is sent in place of an honest frame."""
        kind = frame.WhichOneof("frame")
        if scene.fired or self.kind not in (kind, "any") or not self.when(frame):
            yield frame
        elif scene.skip:
            scene.skip -= 1
            yield frame
        else:
            scene.fired = True
            changed = Frame()
            changed.CopyFrom(frame)
            instead = self.mutate(changed, scene)
            yield from [changed] if instead is None else instead


@dataclass(slots=True)
class HostileServer:
    """The server; see the module."""

    upstream: str
    lie: Lie
    lies: int
    """Streams that are lied to; once so many lies are told, all is honest."""
    seed: int
    stop_id: int
    streams: int = 0
    fired: int = 0
    """Lies told."""
    address: str = ""
    sent: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def decode(self, requests: AsyncIterator[pb.DecodeRequest], context: Any) -> None:
        """One stream."""
        self.streams += 1
        rng = random.Random(self.seed * 1_000 + self.streams)
        scene = Scene(rng, 0 if self.lie.kind in ("opened", "turn_end") else rng.randrange(2), self.stop_id)
        async with grpc.aio.insecure_channel(self.upstream) as channel:
            call = verifier_pb2_grpc.VerifierStub(channel).Decode()
            up = asyncio.create_task(self._pass_up(requests, call))
            try:
                while isinstance(frame := await call.read(), Frame):
                    for out in self._told(frame, scene):
                        if not await self._send(out, context):
                            return
                context.set_code(await call.code())
                context.set_details(await call.details() or "")
            finally:
                up.cancel()
                call.cancel()

    def _told(self, frame: Frame, scene: Scene) -> list[Out]:
        """What is sent in place of an honest frame."""
        if self.fired >= self.lies and not scene.fired:
            return [frame]
        before = scene.fired
        told = list(self.lie.tell(frame, scene))
        self.fired += scene.fired and not before
        return told

    async def _pass_up(self, requests: AsyncIterator[pb.DecodeRequest], call: Any) -> None:
        with suppress(grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            async for request in requests:
                await call.write(request)
            await call.done_writing()

    async def _send(self, out: Out, context: Any) -> bool:
        """Send one thing; False = the stream is over."""
        match out:
            case Over():
                context.set_code(out.status)
                context.set_details(out.details)
                return False
            case Silence():
                await asyncio.Event().wait()
            case Endless():
                while True:
                    await self._write(out.frame.SerializeToString(), context)
                    await asyncio.sleep(PACE_S)
            case bytes():
                await self._write(out, context)
            case _:
                await self._write(out.SerializeToString(), context)
        return True

    async def _write(self, data: bytes, context: Any) -> None:
        self.sent += len(data)
        await context.write(data)


@asynccontextmanager
async def hostile_server(
    upstream: str, lie: Lie, lies: int, seed: int, stop_id: int
) -> AsyncIterator[HostileServer]:
    """A lying server on a free loopback port, in the running event loop."""
    liar = HostileServer(upstream, lie, lies, seed, stop_id)
    server = grpc.aio.server(options=(("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)))
    handler = grpc.stream_stream_rpc_method_handler(
        liar.decode, request_deserializer=pb.DecodeRequest.FromString, response_serializer=bytes
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("outrider.v1.Verifier", {"Decode": handler}),)
    )
    liar.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield liar
    finally:
        await server.stop(None)
