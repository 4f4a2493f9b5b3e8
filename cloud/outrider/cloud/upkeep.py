"""What time and the outside do to the session table: rows coming back, leaving, signs of life, leases that run out."""

from __future__ import annotations

from outrider.cloud.events import DrainRequested, Priority, RowsDone
from outrider.cloud.steps import StepTable
from outrider.cloud.table_state import Stream
from outrider.shared.frames import Drain, FailureReason, Pong, Progress


class UpkeepTable(StepTable):
    """The part of the table that minds the clock."""

    def wake_at(self) -> float | None:
        """When to send the next Tick; None while nothing is timed."""
        times = [self._sign_at(stream) for stream in self.streams.values()]
        times += [stream.heard_at + self.settings.stream_idle_s for stream in self.streams.values()]
        for session in self.sessions.values():
            if session.stream is None and not session.running:
                ttl_ms = (
                    self.served.limits.kv_idle_ttl_ms if session.kv else self.served.limits.log_idle_ttl_ms
                )
                times.append(session.used_at + ttl_ms / 1000)
        if self.drain_deadline is not None and self.streams:
            times.append(self.drain_deadline)
        return min((time for time in times if time is not None), default=None)

    def on_rows(self, event: RowsDone) -> None:
        for stream in self.streams.values():
            if stream.rows is not None and stream.rows.job == event.work:
                if len(event.planes) != len(stream.rows.planes):
                    stream.rows = None  # cannot be made: the device drafts without
                    return
                for rows in stream.rows.done(event.planes):
                    self.send(stream, rows, Priority.BULK if rows.bulk else Priority.COMMIT)
                return

    # -------------------------------------------------------------------------------------------------------- time

    def on_drain(self, event: DrainRequested) -> None:
        self.drain_deadline = self.now + event.deadline_ms / 1000
        for stream in self.streams.values():
            self.send(stream, Drain(event.deadline_ms, self.settings.drain_spread_ms), Priority.URGENT)

    def on_time(self) -> None:
        for stream in list(self.streams.values()):
            if self.drain_deadline is not None and self.now >= self.drain_deadline:
                self.fail(stream, FailureReason.DRAINING, "this verifier has left")
            elif self.now >= stream.heard_at + self.settings.stream_idle_s:
                self.fail(stream, FailureReason.IDLE, "nothing was heard from the device")
            else:
                self._sign_of_life(stream)
        for session in list(self.sessions.values()):
            if session.stream is None and not session.running:
                away_ms = (self.now - session.used_at) * 1000
                if away_ms >= self.served.limits.log_idle_ttl_ms:
                    self.forget(session)
                elif away_ms >= self.served.limits.kv_idle_ttl_ms:
                    self.evict(session)

    def _sign_of_life(self, stream: Stream) -> None:
        due = self._sign_at(stream)
        if due is None or self.now < due:
            return
        session = stream.session
        if self.waits_since(session) is None and not self.prefills(session):
            self.sign(stream, Pong(0))
            return
        left = max(session.length - 1 - len(session.kv), 0)
        prefilled = min(len(session.kv), session.length)
        self.sign(stream, Progress(session.turn_number, prefilled, min(self.prefill_us(left), 2**32 - 1)))

    def _sign_at(self, stream: Stream) -> float | None:
        """When the stream must hear something, if it has an open turn."""
        if stream.session.ended is not None or stream.session.turn is None:
            return None
        waits = self.waits_since(stream.session) is not None or self.prefills(stream.session)
        return stream.sent_at + (self.settings.progress_s if waits else self.settings.pong_s)
