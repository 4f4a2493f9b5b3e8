"""What waits to be written to one device: most urgent first, in order within a priority, bounded.

One Decode call has one `OutStream` and one writer task; gRPC allows one write at a time. Bytes that gRPC has taken
cannot be overtaken any more, so frames are handed over one by one and everything else waits here, where a verdict
still overtakes prompt rows.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from outrider.cloud.events import Priority
from outrider.shared.errors import status_details
from outrider.shared.frames import DownFrame, Failure, FailureReason, Feature, Opened
from outrider.shared.wire import down_to_wire
from outrider.v1 import verifier_pb2 as pb

QUEUE_LIMIT_BYTES = 256 * 1024
"""Above this the table is told to pause run-ahead and bulk rows, and nothing more is read from the device."""

HARD_LIMIT_BYTES = 4 * QUEUE_LIMIT_BYTES
"""A device that lets this much pile up does not read; its stream is ended."""

_SMALLEST_BUCKET = 64


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How a stream ends: None is a clean end, else the failure and the text beside its status."""

    reason: FailureReason | None = None
    detail: str = ""


class OutStream:
    """The outgoing side of one Decode call. Used from the event loop only.

    ``on_queued(bytes)`` is called when the queue passes the limit upwards, and again when it is down to half of it.
    """

    def __init__(self, number: int, on_queued: Callable[[int], None]) -> None:
        self.number = number
        self.granted: tuple[Feature, ...] | None = None
        self.end: StreamEnd | None = None
        self.failure: Failure | None = None
        self._on_queued = on_queued
        self._on_end: Callable[[], None] | None = None
        self._waiting: dict[Priority, deque[pb.DecodeResponse]] = {p: deque() for p in Priority}
        self._last: pb.DecodeResponse | None = None
        self._queued = 0
        self._full = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    @property
    def queued_bytes(self) -> int:
        """Bytes that gRPC has not taken yet."""
        return self._queued

    @property
    def status_text(self) -> str:
        """What stands beside the gRPC status: the failure in short."""
        if self.end is None or self.end.reason is None:
            return ""
        return status_details(self.failure or Failure(self.end.reason, self.end.detail))

    def put(self, frame: DownFrame, priority: Priority) -> None:
        """Queue a frame. A Failure waits for everything else; after the end nothing is taken any more."""
        if self.end is not None:
            return
        if isinstance(frame, Opened):
            self.granted = frame.features
            priority = Priority.URGENT  # nothing may overtake it, a Drain neither
        message = self._encode(frame)
        if isinstance(frame, Failure):
            self.failure, self._last = frame, message
            return
        self._waiting[priority].append(message)
        self._queued += message.ByteSize()
        self._changed.set()
        if self._queued > HARD_LIMIT_BYTES:
            self.finish(StreamEnd(FailureReason.OVERLOADED, "the device does not read what it is sent"))
        elif self._queued > QUEUE_LIMIT_BYTES and not self._full:
            self._full = True
            self._room.clear()
            self._on_queued(self._queued)

    def finish(self, end: StreamEnd) -> None:
        """End the stream after what is queued; signs of life and bulk rows are dropped. The first call counts."""
        if self.end is not None:
            return
        self.end = end
        for priority in (Priority.SIGN, Priority.BULK):
            self._waiting[priority].clear()
        self._changed.set()
        self._room.set()
        if self._on_end is not None:
            self._on_end()

    def when_ended(self, act: Callable[[], None] | None) -> None:
        """Call ``act`` once the stream is ended, at once if it is already; None calls nobody."""
        self._on_end = act
        if act is not None and self.end is not None:
            act()

    async def next(self) -> pb.DecodeResponse | None:
        """The next frame to write, waiting for one; None at the end."""
        while True:
            for queue in self._waiting.values():
                if queue:
                    return self._taken(queue.popleft())
            if self.end is not None:
                last, self._last = self._last, None
                return last
            self._changed.clear()
            await self._changed.wait()

    async def room(self) -> None:
        """Wait until the queue is short enough for the device to be heard again."""
        await self._room.wait()

    def _taken(self, message: pb.DecodeResponse) -> pb.DecodeResponse:
        self._queued -= message.ByteSize()
        if self._full and self._queued <= QUEUE_LIMIT_BYTES // 2:
            self._full = False
            self._room.set()
            self._on_queued(self._queued)
        return message

    def _encode(self, frame: DownFrame) -> pb.DecodeResponse:
        message = down_to_wire(frame)
        if self.granted is not None and Feature.PADDING in self.granted:
            message.padding = padding_for(message.ByteSize())
        return message


def padding_for(size: int) -> bytes:
    """Random bytes that bring a message of ``size`` bytes to a power of two, at least 64.

    The field's own tag and length take two bytes and more; a message that cannot be met exactly goes one bucket up.
    """
    bucket = _SMALLEST_BUCKET
    while True:
        for header in (2, 3, 4):
            room = bucket - size - header
            if room >= 1 and header == 1 + _varint_bytes(room):
                return os.urandom(room)
        bucket *= 2


def _varint_bytes(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))
