"""The verifier's session table: pure, ``handle(event, now) -> actions`` and ``wake_at()``.

It keeps one log per session, addressed by position, and feeds the engine packed passes (``steps``). It knows
no sockets, no tensors and no clocks. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outrider.cloud.attach import (
    Found,
    below,
    check_open,
    check_turn,
    check_window,
    complete,
    find,
    grant,
    turn_start,
)
from outrider.cloud.events import (
    DrainRequested,
    EndStream,
    FrameReceived,
    RowsDone,
    StepDone,
    StreamLost,
    StreamOpened,
    StreamWritable,
    TableAction,
    TableEvent,
    Tick,
)
from outrider.cloud.rounds import digest
from outrider.cloud.rows_schedule import RowsSchedule
from outrider.cloud.rules import runs_ahead
from outrider.cloud.session_log import Session
from outrider.cloud.table_state import RowSource, Served, Stream, TableSettings
from outrider.cloud.upkeep import UpkeepTable
from outrider.shared.anchor import EMPTY
from outrider.shared.draft import Draft
from outrider.shared.errors import (
    Diverged,
    Draining,
    Fenced,
    InvalidField,
    OutriderError,
    Overloaded,
    RoundConflict,
)
from outrider.shared.frames import (
    PROTOCOL,
    Attach,
    Cancel,
    Close,
    Context,
    DraftFrame,
    FailureReason,
    Feature,
    Fingerprints,
    FinishReason,
    Open,
    Opened,
    Ping,
    Pong,
    RowEncoding,
    RowPlane,
    Steer,
    Turn,
    UpFrame,
    Window,
)


class SessionTable(UpkeepTable):
    """All sessions of one verifier process."""

    def __init__(self, served: Served, settings: TableSettings | None = None) -> None:
        super().__init__(served, settings or TableSettings())

    # ------------------------------------------------------------------------------------------------------ events

    def handle(self, event: TableEvent, now: float) -> list[TableAction]:
        """What to do about ``event`` at ``now`` (monotonic seconds, never going back)."""
        self.now = max(self.now, now)
        match event:
            case StreamOpened():
                self._guarded(event.stream, lambda: self._on_open(event.stream, event.principal, event.open))
            case FrameReceived():
                stream = self.streams.get(event.stream)
                if stream is not None:
                    stream.heard_at = self.now
                    self._guarded(event.stream, lambda: self._on_frame(stream, event.frame))
            case StreamLost():
                self.detach(event.stream)
            case StreamWritable():
                if event.stream in self.streams:
                    self.streams[event.stream].queued_bytes = event.queued_bytes
            case StepDone():
                self.on_step_done(event)
            case RowsDone():
                self.on_rows(event)
            case DrainRequested():
                self.on_drain(event)
            case Tick():
                pass
        self.on_time()
        self.pump()
        actions, self._out = self._out, []
        return actions

    def _guarded(self, number: int, action: Callable[[], None]) -> None:
        """Run a handler; what it refuses ends that stream and nothing else."""
        try:
            action()
        except OutriderError as error:
            self.fail_with(number, error)

    # -------------------------------------------------------------------------------------------------------- open

    def _on_open(self, number: int, principal: str, frame: Open) -> None:
        served = self.served
        check_open(frame, served.fingerprints, served.rules, self.longest, served.features)
        session = self.sessions.get(self.keys.get((principal, frame.session_id), 0))
        if session is not None and frame.epoch <= session.epoch:
            detail = f"epoch {frame.epoch} is not greater than {session.epoch}"
            raise Fenced(detail, last_epoch=session.epoch)
        if self.drain_deadline is not None:
            retry_ms = self.settings.drain_spread_ms
            raise Draining("this verifier is leaving", retry_after_ms=retry_ms)
        found = find(session, frame)
        self._admit(session, frame, found, principal)
        if session is None:
            session = Session(self.next_key, principal, frame.session_id)
            self.next_key += 1
            self.sessions[session.key] = session
            self.keys[principal, frame.session_id] = session.key
            self.count("sessions_open", len(self.sessions))
        self._attach(session, number, frame, found)

    def _admit(self, session: Session | None, frame: Open, found: Found, principal: str) -> None:
        """Refuse what would not fit; a live session always passes. Raises Overloaded."""
        if session is None:
            self._admit_new(principal)
        kept = len(session.kv) if session is not None else 0
        tokens = max(frame.have.length, turn_start(frame.turn)) - kept
        backlog = self.prefill_backlog()
        if (
            found.attach is not Attach.LIVE
            and backlog
            and backlog + tokens > self.settings.max_prefill_backlog_tokens
        ):
            retry_ms = max(self.prefill_us(backlog) // 1000, self.settings.busy_retry_ms)
            raise Overloaded(f"{backlog} tokens wait for prefill", retry_after_ms=retry_ms)

    def _admit_new(self, principal: str) -> None:
        own = [s for s in self.sessions.values() if s.principal == principal]
        for held, limit in (
            (own, self.settings.max_sessions_per_principal),
            (list(self.sessions.values()), self.settings.max_sessions),
        ):
            if len(held) < limit:
                continue
            detached = [s for s in held if s.stream is None and not s.running]
            if not detached:
                raise Overloaded(f"{len(held)} sessions are attached, at most {limit}", retry_after_ms=1000)
            self.forget(min(detached, key=lambda s: (s.used_at, s.key)))

    def _attach(self, session: Session, number: int, frame: Open, found: Found) -> None:
        old = self.stream_of(session)
        session.epoch = frame.epoch
        if old is not None:
            self.fail(old, FailureReason.FENCED, "a newer stream of this session was opened")
        stream = Stream(number, session, grant(frame, self.served.features), self.now)
        stream.source = self._source(stream, frame)
        self.streams[number] = stream
        session.stream = number
        session.used_at = session.since = self.now
        session.run_until = 0
        self.keep_final(session, stream.source is not None and stream.source.needs_final)
        if found.attach is Attach.LIVE and (session.evict_when_idle or not session.kv):
            found = replace(found, attach=Attach.REBUILD)
        if found.attach is Attach.REBUILD:
            self.count("rebuilds_total")
        if found.diverged:
            self.count("diverged_total")
        if found.ids is None and found.attach is Attach.NEED_CONTEXT:
            stream.opening, stream.known = frame, found.known
            self._send_opened(stream, frame, found)
            return
        if found.ids is not None:
            self._rewrite(session, frame.turn, found.ids)
        self._send_opened(stream, frame, found)
        self._begin(stream, frame)

    def _send_opened(self, stream: Stream, frame: Open, found: Found) -> None:
        session = stream.session
        waiting = found.attach is Attach.NEED_CONTEXT
        backlog = self.prefill_backlog()
        prints, source = self.served.fingerprints, stream.source
        planes = () if source is None or frame.rows is None else _planes(source, frame.rows.encoding)
        opened = Opened(
            epoch=frame.epoch,
            attach=found.attach,
            protocol=min(frame.protocol_max, PROTOCOL),
            committed=EMPTY if waiting else session.log.anchor,
            context_from=len(found.known) if waiting else 0,
            fingerprints=Fingerprints(prints.law, prints.tokenizer, source.bundle if source else b""),
            features=tuple(sorted(stream.granted)),
            limits=self.served.limits,
            planes=planes,
            cost=self.served.cost,
            prefill_estimate_us=min(self.prefill_us(backlog), 2**32 - 1),
            replica=self.served.replica,
            numerics=self.served.numerics,
        )
        self.send(stream, opened)
        if source is not None and frame.rows is not None:
            stream.rows = RowsSchedule(planes, frame.rows, source.bundle)

    def _source(self, stream: Stream, frame: Open) -> RowSource | None:
        """The drafter whose rows this device asks for and can use."""
        if frame.rows is None or Feature.STATE_ROWS not in stream.granted:
            return None
        return self.served.source_of(frame.fingerprints.bundle)

    def _begin(self, stream: Stream, frame: Open) -> None:
        """The log stands: catch the device up, then take its first draft."""
        session = stream.session
        if stream.rows is not None:
            stream.rows.attach(session.length)
        self.catch_up(stream, frame.have.length)
        self._take_window(stream, frame.window, max(frame.have.length, turn_start(frame.turn)))
        self._end_if_over(session)
        if frame.draft is not None:
            try:
                self._on_draft(stream, frame.draft)
            except InvalidField as error:
                raise below("open", error) from None

    def catch_up(self, stream: Stream, start: int) -> None:
        """Send what was committed beyond ``start``, and the turn's end if it has ended."""
        for commit in stream.session.commits_from(start):
            self.send(stream, commit)
        if stream.session.ended is not None:
            self.send(stream, stream.session.end_frame())

    def _rewrite(self, session: Session, turn: Turn, ids: tuple[int, ...]) -> None:
        session.rewrite(turn, ids, self.served.rules.stated(turn.rule))
        session.since = self.now
        self.trim_kv(session)

    def _end_if_over(self, session: Session) -> None:
        """End a turn that has no room left before anything was generated."""
        stream = self.stream_of(session)
        if session.ended is None:
            session.ended = session.end_reason(self.longest, self.stop_ids(session))
            if session.ended is not None and stream is not None:
                self.send(stream, session.end_frame())

    # ------------------------------------------------------------------------------------------------------ frames

    def _on_frame(self, stream: Stream, frame: UpFrame) -> None:
        session = stream.session
        match frame:
            case DraftFrame():
                self._on_draft(stream, frame)
            case Steer():
                if frame.turn == session.turn_number and stream.opening is None:
                    self._check_seen(stream, frame.window)
                    self._check_rule(stream, frame.window, "steer.window")
                    self._take_window(stream, frame.window, frame.window.seen.length)
            case Turn():
                self._on_turn(stream, frame)
            case Context():
                self._on_context(stream, frame)
            case Cancel():
                if frame.turn == session.turn_number and session.ended is None and stream.opening is None:
                    session.ended = FinishReason.CANCELLED
                    self.send(stream, session.end_frame())
            case Close():
                self.act(EndStream(stream.number, None))
                self.detach(stream.number)
                if frame.forget:
                    self.forget(session)
            case Ping():
                self.sign(stream, Pong(frame.nonce))
            case Open():
                raise InvalidField("frame", "Open may only be the first frame of a stream")

    def _on_draft(self, stream: Stream, frame: DraftFrame) -> None:
        session, rounds = stream.session, stream.rounds
        if stream.opening is not None:
            raise InvalidField("draft", "the context asked for must come first")
        if frame.round <= rounds.last:
            self._on_repeat(stream, frame)
            return
        if frame.round > rounds.last + 1:
            self.fail(stream, FailureReason.ROUND_GAP, f"round {frame.round} came after {rounds.last}")
            return
        if frame.turn > session.turn_number:
            raise InvalidField("draft.turn", f"{frame.turn} has not begun, the turn is {session.turn_number}")
        limit = self._rounds_in_flight(stream)
        if len(rounds.waiting) >= limit:
            raise InvalidField("draft.round", f"more than {limit} rounds in flight")
        if frame.turn == session.turn_number:
            self._check_seen(stream, frame.window)
            self._check_rule(stream, frame.window, "draft.window", frame.draft)
            self._take_window(stream, frame.window, frame.window.seen.length)
        waiting = sum(len(other.rounds.waiting) for other in self.streams.values())
        rounds.accept(frame, self.now, busy=waiting >= self.settings.max_waiting_drafts)

    def _on_repeat(self, stream: Stream, frame: DraftFrame) -> None:
        """A round that came before: the answer again, from the log."""
        known = stream.rounds.digests.get(frame.round)
        if known != digest(frame):
            raise RoundConflict(f"round {frame.round} came again with other content")
        answer = stream.rounds.answers.get(frame.round)
        if answer is not None:  # otherwise its one answer is still to come
            self.send(stream, replace(answer, replayed=True))

    def _on_turn(self, stream: Stream, turn: Turn) -> None:
        session = stream.session
        if stream.opening is not None:
            raise InvalidField("turn", "the context asked for must come first")
        if turn.turn <= session.turn_number:
            raise InvalidField("turn.turn", f"{turn.turn} is not greater than {session.turn_number}")
        check_turn(turn, "turn", self.served.rules, self.longest, stream.granted)
        if not session.log.contains(turn.keep):
            raise Diverged("turn.keep is not a prefix of the log")
        ids = session.log.slice(0, turn.keep.length) + turn.append_ids
        if stream.rows is not None:
            stream.rows.rewrite(turn.keep.length, len(ids))
        self._rewrite(session, turn, ids)
        self._end_if_over(session)

    def _on_context(self, stream: Stream, piece: Context) -> None:
        frame = stream.opening
        if frame is None:
            raise InvalidField("context", "was not asked for")
        expected = len(stream.known) + len(stream.pieces)
        if piece.start != expected:
            raise InvalidField("context.start", f"{piece.start}, expected {expected}")
        if expected + len(piece.ids) > frame.have.length:
            raise InvalidField("context.ids", f"reach beyond open.have of {frame.have.length} tokens")
        stream.pieces += piece.ids
        # The prefill waits for the last piece: only then the hash tells that the ids are right.
        if expected + len(piece.ids) == frame.have.length:
            ids = complete(frame, stream.known, stream.pieces)
            stream.opening, stream.known, stream.pieces = None, (), []
            self._rewrite(stream.session, frame.turn, ids)
            self._begin(stream, frame)

    def _rounds_in_flight(self, stream: Stream) -> int:
        """One, unless the next draft can be judged whatever comes of the last."""
        turn = stream.session.turn
        alone = turn is not None and not runs_ahead(self.served.rules.named(turn.rule.name))
        pipeline = Feature.PIPELINE in stream.granted and not alone
        return self.served.limits.max_rounds_in_flight if pipeline else 1

    def _check_seen(self, stream: Stream, window: Window) -> None:
        if not stream.session.log.contains(window.seen):
            raise Diverged("window.seen is not a prefix of the log")

    def _check_rule(self, stream: Stream, window: Window, path: str, draft: Draft | None = None) -> None:
        """Refuse what the turn's rule excludes."""
        turn = stream.session.turn
        if turn is None:
            return
        rule = self.served.rules.named(turn.rule.name)
        check_window(window, path, rule)
        if draft is not None:
            rule.takes(draft)

    def _take_window(self, stream: Stream, window: Window, seen: int) -> None:
        """The latest window counts; the run-ahead it allows is clipped to the limits."""
        if stream.rows is not None:
            stream.rows.acknowledge(window.bulk_acked_bytes)
        if Feature.RUN_AHEAD in stream.granted:
            most = seen + self.served.limits.max_run_ahead_tokens
            stream.session.run_until = min(window.run_ahead_until, most)


def _planes(source: RowSource, encoding: RowEncoding) -> tuple[RowPlane, ...]:
    """A drafter's planes in the encoding a device prefers."""
    return tuple(replace(plane, encoding=encoding) for plane in source.planes)
