"""The event loop's end of the session table: events in, actions out, one timer.

The table is a pure object; this is the only place that calls it. Everything here runs on the event loop's thread,
results of the engine's thread come in through `post`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from outrider.cloud.events import (
    Count,
    EndStream,
    EvictKv,
    FrameReceived,
    Priority,
    RunRows,
    RunStep,
    SendFrame,
    StreamLost,
    StreamOpened,
    StreamWritable,
    TableAction,
    TableEvent,
    Tick,
    TruncateKv,
)
from outrider.cloud.logs import report
from outrider.cloud.metrics import Metrics
from outrider.cloud.runner import Engine, EngineEvent, RowMaker, Runner
from outrider.cloud.streams import OutStream, StreamEnd
from outrider.shared.frames import DownFrame, Failure, FailureReason

_log = logging.getLogger(__name__)


REMEDIES: dict[FailureReason, str] = {
    FailureReason.FENCED: "attach with an epoch greater than last_epoch",
    FailureReason.FINGERPRINT: "use the target and tokenizer that this verifier serves, or another verifier",
    FailureReason.PROTOCOL: "use the same release on both sides",
    FailureReason.DIVERGED: "attach again: what the device holds counts",
    FailureReason.ROUND_CONFLICT: "attach again; a round keeps its content",
    FailureReason.ROUND_GAP: "attach again; rounds are numbered 1, 2, 3 ... within a stream",
    FailureReason.INVALID: "correct the field and attach again; the session is kept",
    FailureReason.OUT_OF_RANGE: "shorten the text",
    FailureReason.OVERLOADED: "wait retry_after_ms and attach again",
    FailureReason.DRAINING: "attach to another verifier",
    FailureReason.ENGINE: "attach again: the session is rebuilt from its ids",
    FailureReason.IDLE: "attach again when there is something to say",
}
"""What a device or its user can do about each failure, where its author did not say."""


class Table(Protocol):
    """The session table as the hub uses it (`outrider.cloud.table.SessionTable`)."""

    def handle(self, event: TableEvent, now: float) -> Sequence[TableAction]:
        """What to do about ``event`` at ``now`` (monotonic seconds)."""

    def wake_at(self) -> float | None:
        """When a Tick is due, or None."""


class Hub:
    """Owns the table, the open streams and the engine's thread of one verifier.

    ``broken`` is set when the table itself failed outside any stream's business; the process should then be replaced.
    ``idle`` is set while no stream is open.
    """

    def __init__(self, table: Table, engine: Engine, rows: RowMaker | None, metrics: Metrics) -> None:
        self.table = table
        self.metrics = metrics
        self.broken = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self._runner = Runner(engine, rows, self.post, metrics)
        self._streams: dict[int, OutStream] = {}
        self._numbers = 0
        self._events: deque[TableEvent] = deque()
        self._handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Start the engine's thread."""
        self._runner.start()

    def stop(self) -> bool:
        """End the timer and the engine's thread; False if a pass did not end in time."""
        if self._timer is not None:
            self._timer.cancel()
        return self._runner.stop()

    @property
    def open_streams(self) -> int:
        """Streams whose calls have not ended yet."""
        return len(self._streams)

    def open_stream(self) -> OutStream:
        """A new outgoing stream with a number of its own."""
        self._numbers += 1
        number = self._numbers
        stream = OutStream(number, lambda queued: self.handle(StreamWritable(number, queued)))
        self._streams[number] = stream
        self.idle.clear()
        return stream

    def close_stream(self, stream: OutStream) -> None:
        """The call is over, however it ended."""
        if self._streams.pop(stream.number, None) is not None:
            self.handle(StreamLost(stream.number))
        if not self._streams:
            self.idle.set()

    def post(self, event: EngineEvent) -> None:
        """Hand in an event from another thread."""
        try:
            self._loop.call_soon_threadsafe(self.handle, event)
        except RuntimeError:
            # The loop has closed: the process is ending, and nobody waits for this result.
            return

    def handle(self, event: TableEvent) -> None:
        """Let the table handle ``event`` and do what it says."""
        self._events.append(event)
        if self._handling:
            return  # an action of the event being handled caused this one; it comes next
        self._handling = True
        try:
            while self._events:
                self._one(self._events.popleft())
        finally:
            self._handling = False
        self._arm()

    def _one(self, event: TableEvent) -> None:
        try:
            actions = self.table.handle(event, time.monotonic())
        except Exception as error:
            self._table_failed(event, error)
            return
        for action in actions:
            self._apply(action)

    def _apply(self, action: TableAction) -> None:
        match action:
            case SendFrame():
                self._send(action.stream, action.frame, action.priority)
            case EndStream():
                stream = self._streams.get(action.stream)
                if stream is not None:
                    stream.finish(StreamEnd(action.reason, action.detail))
            case RunStep() | RunRows() | TruncateKv() | EvictKv():
                self._runner.submit(action)
            case Count():
                self.metrics.count(action.metric, action.value, **{k: v.lower() for k, v in action.labels})

    def _send(self, number: int, frame: DownFrame, priority: Priority) -> None:
        if isinstance(frame, Failure) and not frame.remedy:
            frame = replace(frame, remedy=REMEDIES[frame.reason])
        self.metrics.observe_frame(frame)
        stream = self._streams.get(number)
        if stream is not None:
            stream.put(frame, priority)

    def _table_failed(self, event: TableEvent, error: Exception) -> None:
        incident = report(_log, "session table failure", error, phase=type(event).__name__)
        self.metrics.count("internal_errors_total", where="table")
        if not isinstance(event, StreamOpened | FrameReceived | StreamLost | StreamWritable):
            self.broken.set()  # no stream to blame: passes may never be started again
            return
        stream = self._streams.get(event.stream)
        if stream is not None and not isinstance(event, StreamLost):
            detail = f"internal error {incident}"
            self.fail(stream, Failure(FailureReason.ENGINE, detail))

    def fail(self, stream: OutStream, failure: Failure) -> None:
        """End one stream with a failure found outside the table."""
        self._send(stream.number, failure, Priority.URGENT)
        stream.finish(StreamEnd(failure.reason, failure.detail))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake = self.table.wake_at()
        if wake is not None:
            self._timer = self._loop.call_later(max(0.0, wake - time.monotonic()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.handle(Tick())
