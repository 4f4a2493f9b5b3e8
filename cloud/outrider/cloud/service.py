"""The gRPC surface: Describe, Decode, FetchBundle.

Checks happen in this order: credentials (the listener's gate), size (gRPC's limits), schema (`outrider.shared.wire`),
then meaning and admission (the session table), and only then does anything compute. Whatever a device sends, it can
end its own stream and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from outrider.cloud.bundles import BundleStore, chunk_size
from outrider.cloud.events import FrameReceived, StreamOpened
from outrider.cloud.hub import Hub
from outrider.cloud.listener import Gate
from outrider.cloud.logs import event, report
from outrider.cloud.metrics import Metrics
from outrider.cloud.streams import OutStream, StreamEnd
from outrider.shared.errors import InvalidField, OutriderError, clip, to_failure
from outrider.shared.frames import Description, Failure, FailureReason, Open
from outrider.shared.transport import status_code
from outrider.shared.wire import UpChecks, description_to_wire, up_from_wire
from outrider.v1 import verifier_pb2 as pb
from outrider.v1 import verifier_pb2_grpc

_log = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 10.0
"""A stream that has not said Open after this long is ended."""

FLUSH_TIMEOUT_S = 2.0
"""How long an ended stream may take to hand its last frames to a device that reads slowly."""

Context = grpc.aio.ServicerContext[Any, Any]


class VerifierService(verifier_pb2_grpc.VerifierServicer):
    """Serves one target. ``description`` is what Describe answers; the hub owns all sessions."""

    def __init__(
        self,
        hub: Hub,
        description: Description,
        bundles: BundleStore,
        gate: Gate,
        metrics: Metrics,
        open_timeout_s: float = OPEN_TIMEOUT_S,
    ) -> None:
        self._hub = hub
        self._description = description
        self._describe = description_to_wire(description)
        self._bundles = bundles
        self._gate = gate
        self._metrics = metrics
        self._open_timeout_s = open_timeout_s
        metrics.follow("streams_open", lambda: hub.open_streams)

    # ---------------------------------------------------------------------------------------------------- Describe

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:
        """What is served here. Any range of versions is answered: the answer holds the one to compare with."""
        self._metrics.count("requests_total", method="Describe", code="OK")
        return self._describe

    # ------------------------------------------------------------------------------------------------------ Decode

    # gRPC takes coroutines that write through the context as well as generators; the stubs know generators only.
    async def Decode(  # type: ignore[override]
        self, requests: AsyncIterator[pb.DecodeRequest], context: Context
    ) -> None:
        """One attachment of a device to one session."""
        stream = self._hub.open_stream()
        reader = asyncio.create_task(self._read(stream, requests, context))
        code = "CANCELLED"
        try:
            await self._write(stream, context)
            end = stream.end or StreamEnd()
            code = "OK" if end.reason is None else status_code(end.reason).name
        finally:
            self._metrics.count("requests_total", method="Decode", code=code)
            self._hub.close_stream(stream)
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
        if end.reason is not None:
            await context.abort(status_code(end.reason), stream.status_text)

    async def _write(self, stream: OutStream, context: Context) -> None:
        """The only writer of this call: hand over frames in order of urgency until the stream ends."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                # A write hangs while the device does not read; an ended stream must not hang with it.
                stream.when_ended(lambda: limit.reschedule(loop.time() + FLUSH_TIMEOUT_S))
                while (message := await stream.next()) is not None:
                    await context.write(message)
                    self._metrics.count("bytes_total", message.ByteSize(), direction="down")
        stream.when_ended(None)

    async def _read(
        self, stream: OutStream, requests: AsyncIterator[pb.DecodeRequest], context: Context
    ) -> None:
        """Hand frames to the table; anything that is no frame ends this stream and touches no session."""
        try:
            await self._read_frames(stream, requests, context)
        except InvalidField as error:
            self._metrics.count("invalid_input_total", method="Decode")
            event(_log, logging.INFO, "frame refused", stream=stream.number, field=error.field)
            self._hub.fail(stream, to_failure(error))
        except DecodeError:
            self._metrics.count("invalid_input_total", method="Decode")
            self._hub.fail(stream, to_failure(InvalidField("frame", "not a message of this wire")))
        except OutriderError as error:
            self._hub.fail(stream, to_failure(error))
        except (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError):
            stream.finish(StreamEnd())  # the device went away in the middle of a frame
        except Exception as error:
            incident = report(_log, "unexpected failure of a stream", error, stream=stream.number)
            self._metrics.count("internal_errors_total", where="decode")
            detail = f"internal error {incident}"
            self._hub.fail(stream, Failure(FailureReason.ENGINE, detail))

    async def _read_frames(
        self, stream: OutStream, requests: AsyncIterator[pb.DecodeRequest], context: Context
    ) -> None:
        received = aiter(requests)
        try:
            async with asyncio.timeout(self._open_timeout_s):
                first = await anext(received, None)
        except TimeoutError:
            self._hub.fail(stream, Failure(FailureReason.IDLE, "no Open arrived in time"))
            return
        if first is not None:
            opened = self._frame(first, stream)
            if not isinstance(opened, Open):
                raise InvalidField("frame", "the first frame of a stream must be open")
            self._hub.handle(StreamOpened(stream.number, self._gate.principal(context), opened))
            # A device whose answers pile up is not heard until it has read some: its own pace is the limit.
            await stream.room()
            async for request in received:
                frame = self._frame(request, stream)
                if isinstance(frame, Open):
                    raise InvalidField("frame", "open may come once, as the first frame of a stream")
                self._hub.handle(FrameReceived(stream.number, frame))
                await stream.room()
        stream.finish(StreamEnd())  # half-close: detach, the session stays

    def _frame(self, request: pb.DecodeRequest, stream: OutStream) -> Any:
        self._metrics.count("bytes_total", request.ByteSize(), direction="up")
        described = self._description
        return up_from_wire(request, UpChecks(described.limits, described.vocabulary_size, stream.granted))

    # ------------------------------------------------------------------------------------------------- FetchBundle

    async def FetchBundle(  # type: ignore[override]
        self, request: pb.FetchBundleRequest, context: Context
    ) -> None:
        """A bundle, or the tokenizer file, from a byte offset."""
        await self._guard("FetchBundle", context, lambda: self._fetch(request, context))

    async def _fetch(self, request: pb.FetchBundleRequest, context: Context) -> None:
        size = chunk_size(request.chunk_bytes)
        found = self._bundles.find(request.sha256)
        if found is None:
            self._metrics.count("requests_total", method="FetchBundle", code="NOT_FOUND")
            await context.abort(grpc.StatusCode.NOT_FOUND, "sha256: this server has no such file")
        offset = request.offset_bytes
        if offset > found.size_bytes:
            raise InvalidField("offset_bytes", f"{offset} is beyond the file's {found.size_bytes} bytes")
        while True:
            data = await asyncio.to_thread(found.read, offset, size)
            await context.write(
                pb.FetchBundleResponse(offset_bytes=offset, total_bytes=found.size_bytes, data=data)
            )
            self._metrics.count("bytes_total", len(data), direction="down")
            offset += len(data)
            if offset >= found.size_bytes:
                return

    async def _guard(self, method: str, context: Context, act: Callable[[], Awaitable[None]]) -> None:
        """Run a call's body; refusals and surprises become statuses."""
        try:
            await act()
        except InvalidField as error:
            self._metrics.count("invalid_input_total", method=method)
            await self._abort(method, context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except (asyncio.CancelledError, grpc.RpcError, grpc.aio.BaseError):
            raise
        except Exception as error:
            incident = report(_log, "unexpected failure of a call", error, method=method)
            self._metrics.count("internal_errors_total", where="call")
            await self._abort(method, context, grpc.StatusCode.INTERNAL, f"internal error {incident}")
        else:
            self._metrics.count("requests_total", method=method, code="OK")

    async def _abort(self, method: str, context: Context, code: grpc.StatusCode, text: str) -> None:
        self._metrics.count("requests_total", method=method, code=code.name)
        await context.abort(code, clip(text))
