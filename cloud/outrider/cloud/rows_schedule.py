"""Which state rows to make and send next on one stream.

Rows of newly verified tokens ascend without gaps. Rows of the prompt (bulk) come newest first, in frames of at most
16 KiB, with no more unacknowledged bytes under way than the device's window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from outrider.cloud.events import MakeRows
from outrider.shared.codec import row_bytes
from outrider.shared.frames import RowEncoding, RowPlane, Rows, RowsWanted

MAX_FRAME_BYTES = 16_384
"""Rows.data of one frame, at most."""
DEFAULT_WINDOW_BYTES = 32_768
_MODULUS = 2**32


@dataclass(slots=True)
class RowsSchedule:
    """What one stream still needs, as half-open ranges of positions."""

    planes: tuple[RowPlane, ...]
    wanted: RowsWanted
    bundle: bytes = b""
    """SHA-256 of the bundle that reads the rows."""
    fresh: int = 0
    """Position of the next row that ascends."""
    bulk: list[tuple[int, int]] = field(default_factory=list)
    """Ranges still to send, the newest last."""
    sent_bytes: int = 0
    acked_bytes: int = 0
    job: MakeRows | None = None
    stale: bool = False
    """The job under way was asked for a sequence that has been rewritten since."""

    @property
    def encoding(self) -> RowEncoding:
        """How all planes of this stream travel."""
        return self.planes[0].encoding

    def attach(self, length: int) -> None:
        """Start a stream at a log of ``length``: what the device lacks below its last row is bulk."""
        self.fresh = max(length - 1, 0)
        low = self.wanted.first
        held = (min(self.wanted.held_from, self.fresh), min(self.wanted.held_until, self.fresh))
        ranges = [(low, self.fresh)] if held[0] >= held[1] else [(low, held[0]), (held[1], self.fresh)]
        self.bulk = [(start, stop) for start, stop in ranges if start < stop]

    def rewrite(self, keep: int, length: int) -> None:
        """The device rewrote the sequence from ``keep`` on; it is ``length`` tokens long now."""
        self.stale = self.job is not None
        self.bulk = [(start, min(stop, keep)) for start, stop in self.bulk if start < keep]
        start = max(min(self.fresh, keep), self.wanted.first)
        self.fresh = max(length - 1, 0)
        if start < self.fresh:
            self.bulk.append((start, self.fresh))

    def acknowledge(self, acked_bytes: int) -> None:
        """The device has received this many bulk bytes on this stream, modulo 2^32; nonsense is ignored."""
        unacked = (self.sent_bytes - acked_bytes) % _MODULUS
        if unacked <= self.sent_bytes - self.acked_bytes:
            self.acked_bytes = self.sent_bytes - unacked

    def next_job(self, key: int, turn: int, consumed: int, serial: int) -> MakeRows | None:
        """The next rows to make, of positions below ``consumed``; None while one is under way or nothing is due."""
        if self.job is not None:
            return None
        self.stale = False
        job = self._fresh_job(key, turn, consumed) or self._bulk_job(key, turn, consumed)
        self.job = replace(job, serial=serial, bundle=self.bundle) if job is not None else None
        return self.job

    def done(self, data: Sequence[bytes]) -> list[Rows]:
        """The frames for the rows of the job under way; none when they were made for what is gone."""
        job, self.job = self.job, None
        if job is None or self.stale:
            return []
        frames = [
            Rows(job.turn, plane.plane, job.start, job.stop - job.start, rows, job.bulk)
            for plane, rows in zip(self.planes, data, strict=True)
        ]
        if job.bulk:
            self._take_bulk(job.start, job.stop)
            self.sent_bytes += sum(len(frame.data) for frame in frames)
        else:
            self.fresh = job.stop
        return frames

    def _fresh_job(self, key: int, turn: int, consumed: int) -> MakeRows | None:
        start = max(self.fresh, self.wanted.first)
        stop = min(consumed, start + self._frame_rows())
        return MakeRows(key, turn, start, stop, False, self.encoding) if start < stop else None

    def _bulk_job(self, key: int, turn: int, consumed: int) -> MakeRows | None:
        # A range is made once all of it is consumed: newest first means that the end of a prompt comes first.
        ready = [(start, stop) for start, stop in self.bulk if stop <= consumed]
        window = self.wanted.bulk_window_bytes or DEFAULT_WINDOW_BYTES
        unacked = self.sent_bytes - self.acked_bytes
        if not ready:
            return None
        start, stop = ready[-1]
        room = (window - unacked) // sum(row_bytes(plane) for plane in self.planes)
        count = min(self._frame_rows(), max(room, 0))
        if count < min(self._frame_rows(), stop - start) and unacked:
            return None  # wait for acknowledgements rather than send crumbs
        first = max(start, stop - max(count, 1))
        return MakeRows(key, turn, first, stop, True, self.encoding)

    def _take_bulk(self, start: int, stop: int) -> None:
        left: list[tuple[int, int]] = []
        for low, high in self.bulk:
            left += [(a, b) for a, b in ((low, min(high, start)), (max(low, stop), high)) if a < b]
        self.bulk = left

    def _frame_rows(self) -> int:
        return max(1, MAX_FRAME_BYTES // max(row_bytes(plane) for plane in self.planes))
