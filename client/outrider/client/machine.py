"""The device's session machine: pure, ``handle(event, now) -> actions`` and ``wake_at()``.

One round reads: `advance` proposes or sends, `_on_verdict` receives, `_apply` commits; when nothing timely comes,
`advance` shows what is drafted and drafts on. Times are monotonic seconds.
"""

from __future__ import annotations

from dataclasses import replace

from outrider.client.conn import Conn, Round, commit_conflict, first_guesses, turn_conflict, why_not
from outrider.client.cost import pass_s
from outrider.client.events import (
    AddRows,
    Audited,
    Begin,
    BundleReady,
    Closed,
    Connected,
    Drafted,
    HangUp,
    LinkState,
    MachineAction,
    MachineEvent,
    NetworkChanged,
    Persisted,
    PersistFailed,
    Received,
    StopAt,
)
from outrider.client.journal import UNREACHABLE
from outrider.client.opening import PREFILL_SILENCE_S
from outrider.client.rounds import RoundMachine
from outrider.client.rules import report_conflict
from outrider.shared.codec import decode_rows
from outrider.shared.errors import InvalidField, from_failure
from outrider.shared.frames import (
    Cancel,
    Commit,
    DownFrame,
    Drain,
    Failure,
    Feature,
    FinishReason,
    Opened,
    Pong,
    Progress,
    RoundOutcome,
    Rows,
    TurnEnd,
    Verdict,
)

END_REASONS = {
    FinishReason.STOP_ID: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "context",
    FinishReason.CANCELLED: "cancelled",
}
_IDLE_S = 30.0


class SessionMachine(RoundMachine):
    """One session of one device."""

    def handle(self, event: MachineEvent, now: float) -> list[MachineAction]:
        """What to do about ``event`` at ``now`` (monotonic seconds, never going back)."""
        if now - self.now > _IDLE_S:
            self.deadlines.unsettle()
        self.now = max(self.now, now)
        self._dispatch(event)
        self.check_deadlines()
        self.dial_if_due()
        self._report_link()  # before what is shown because of it
        self.advance()
        self._after_finish()
        self._report_link()
        actions, self._out = self._out, []
        return actions

    def wake_at(self) -> float | None:
        """When to send the next Tick; None while nothing is timed."""
        times = self.timer_times()
        conn = self.active
        if conn is not None and not self.finished:
            if conn.busy_until > self.now:
                times.append(conn.busy_until)
            if conn.run_until and conn.window_length != len(self.sequence):
                times.append(conn.window_at + self.settings.steer_s)
        return min(times, default=None)

    def _dispatch(self, event: MachineEvent) -> None:
        match event:
            case Begin():
                self._on_begin(event)
            case StopAt():
                self._on_stop_at(event)
            case Drafted():
                self.on_drafted(event)
            case Connected():
                self.on_connected(event)
            case Received():
                conn = self.conn_of(event.conn)
                if conn is not None:
                    self._on_frame(conn, event.frame)
            case Closed():
                self.on_closed(event)
            case Persisted():
                self.on_persisted(event.seq)
            case PersistFailed():
                self.report(self.link, f"the journal cannot be written, going on without it: {event.why}")
                self.on_persisted(event.seq)
            case BundleReady():
                self._on_bundle(event)
            case NetworkChanged():
                self.on_network(event)
            case _:
                pass

    # ---------------------------------------------------------------------------------------------------- the caller

    def _on_begin(self, event: Begin) -> None:
        self.begin(event)
        self._linger_until = None
        conn = self.active
        if conn is None:
            self._alone_at = None if self.candidate is None else self.now + self.settings.first_soft_s
            self._dial_at = None
        elif conn.opened is not None:
            conn.late = False
            self._tell_turn(conn)
            self._attach_for_rows(conn)
        self.check_end()
        self.end_if_hopeless()
        self._after_finish()

    def _tell_turn(self, conn: Conn) -> None:
        """Tell a live stream of a turn that it has not heard of."""
        if self.turn is None or conn.turn == self.turn_number:
            return
        if conn.opened is not None and not self.understood(conn.opened):
            return
        if (self.manner is not None) is not (Feature.DRAFT_LAWS in conn.granted):
            if self.candidate is None:
                self.dial(fresh=False)  # what a stream may do is agreed when it opens
            return
        conn.turn, conn.known = self.turn_number, self.turn_start
        conn.progress_at, conn.run_until, conn.busy_until = self.now, 0, 0.0
        self.send(conn, self.turn)

    def _on_stop_at(self, event: StopAt) -> None:
        was_finished = self.finished
        self.on_stop(event)
        ended = self.finished and not was_finished and event.reason != UNREACHABLE  # that turn may be resumed
        if ended and self.active is not None:
            self.send(self.active, Cancel(self.turn_number))
        self._after_finish()

    def _after_finish(self) -> None:
        """A finished turn needs no attempt under way, and its stream only for a while."""
        if not self.finished:
            return
        if self.candidate is not None:
            self.drop(self.candidate, cancel=True)
        if self.active is not None and self._linger_until is None:
            self._linger_until = self.now + self.settings.linger_s

    def _on_bundle(self, event: BundleReady) -> None:
        self.drafter_ready = True
        self.prime()
        known = self.bundle == event.sha256 and self.num_planes == event.planes
        if not known:  # what the drafter before this one achieved says nothing about it
            self.rounds_judged = self.rounds_dry = self.guesses_judged = self.guesses_right = 0
            self.forget_steps()
        self.bundle, self.num_planes, self.confidence = event.sha256, event.planes, event.confidence
        self.held = (0, 0)  # a new drafter has no rows, attached or not
        if not known and self.active is not None:
            self._attach_for_rows(self.active)

    def _attach_for_rows(self, conn: Conn) -> None:
        """Attach again where the drafter reads rows that the stream was never asked for; idle, with the next turn."""
        if self.num_planes and conn.bundle != self.bundle and self.candidate is None and self.wants_link:
            self.dial(fresh=False)

    # -------------------------------------------------------------------------------------------------------- frames

    def _on_frame(self, conn: Conn, frame: DownFrame) -> None:
        conn.heard_at = self.now
        if isinstance(frame, Failure):
            self.act(HangUp(conn.number, cancel=True))
            self.lost(conn, from_failure(frame))
        elif conn.opened is None:
            if isinstance(frame, Opened):
                self.on_opened(conn, frame)
                if self.active is conn:
                    self._tell_turn(conn)
            else:
                self.violation(conn, f"{type(frame).__name__} came before Opened")
        else:
            self._on_open_frame(conn, frame)
        self._after_finish()

    def _on_open_frame(self, conn: Conn, frame: DownFrame) -> None:
        match frame:
            case Verdict():
                self._on_verdict(conn, frame)
            case Commit():
                self._on_commit(conn, frame)
            case Rows():
                self._on_rows(conn, frame)
            case TurnEnd():
                self._on_turn_end(conn, frame)
            case Progress():
                for number, round_ in conn.rounds.items():
                    later = self.now + max(PREFILL_SILENCE_S, self.deadlines.soft())
                    later = min(later, round_.sent_at + self.settings.stall_s)
                    conn.rounds[number] = replace(round_, deadline=max(round_.deadline, later))
            case Pong():
                if self._pinged is not None and self._pinged[0] == frame.nonce:
                    self.deadlines.sample(self.now - self._pinged[1], frame.hold_us, 0)
                    self._pinged = None
            case Drain():
                conn.draining = True
                conn.leave_at = self.now + self.rng.uniform(0.0, frame.reconnect_after_ms / 1000)
            case _:
                self.violation(conn, f"{type(frame).__name__} came again")

    def _on_verdict(self, conn: Conn, verdict: Verdict) -> None:
        round_ = conn.rounds.get(verdict.round)
        if round_ is None or verdict.round != min(conn.rounds):
            if not verdict.replayed:
                self.violation(conn, f"a verdict for round {verdict.round}, which is not the oldest")
            return
        del conn.rounds[verdict.round]
        self._learn(conn, round_, verdict)
        match verdict.outcome:
            case RoundOutcome.BUSY:
                conn.busy_until = self.now + verdict.retry_after_ms / 1000
            case RoundOutcome.ENDED if round_.turn == self.turn_number and not self.finished:
                self.violation(conn, "the turn is said to have ended, but no end came")
            case RoundOutcome.SUPERSEDED if round_.turn == self.turn_number and not self.finished:
                if len(self.sequence) <= round_.held:  # what supersedes a draft is committed, and told first
                    self.violation(conn, "a draft is said to be superseded, but nothing was committed since")
            case RoundOutcome.VERIFIED if verdict.commit is not None:
                if verdict.commit.turn != round_.turn:
                    self.violation(conn, "the verdict is of another turn than its round")
                elif round_.turn == self.turn_number and not self.finished:
                    problem = why_not(round_, verdict, self.sequence)
                    if problem:
                        self.violation(conn, problem)
                    else:
                        self._apply(conn, verdict.commit)

    def _learn(self, conn: Conn, round_: Round, verdict: Verdict) -> None:
        """Timings and acceptance of one answer; late ones count as well."""
        if self.now > round_.deadline:
            self.deadlines.late()
        else:
            self.deadlines.on_time()
        if verdict.outcome is RoundOutcome.BUSY:
            conn.late = conn.late or self.now - conn.progress_at > self.deadlines.soft()
            return
        conn.late = False
        if verdict.outcome is RoundOutcome.VERIFIED and not verdict.replayed:
            self.deadlines.sample(self.now - round_.sent_at, verdict.queue_us, verdict.compute_us)
            if verdict.trimmed == 0 and round_.draft.ids:
                self._learn_acceptance(conn, round_, verdict)

    def _learn_acceptance(self, conn: Conn, round_: Round, verdict: Verdict) -> None:
        """First guesses judged and right, and what the verdict took beyond a bare pass of its width."""
        right = first_guesses(round_, verdict)
        self.rounds_judged += 1
        self.guesses_right += right
        self.guesses_judged += min(right + 1, round_.path)
        if conn.opened is not None and conn.opened.cost.widths:
            excess = verdict.compute_us / 1e6 - pass_s(conn.opened.cost, len(round_.draft.ids) + 1)
            self.excess_s += 0.2 * (excess - self.excess_s)

    def _on_commit(self, conn: Conn, commit: Commit) -> None:
        if commit.turn > self.turn_number:
            self.violation(conn, f"a commit of turn {commit.turn}, which has not begun")
        elif commit.turn == self.turn_number and not self.finished:
            self._apply(conn, commit)

    def _apply(self, conn: Conn, commit: Commit) -> None:
        """Commit tokens by position: what is covered already changes nothing."""
        problem = commit_conflict(commit, self.sequence, self.turn_start, self.max_length)
        if problem is None and self.turn is not None:
            problem = turn_conflict(commit, self.turn)
        have = len(self.sequence)
        skip = have - commit.start
        fresh, kinds = commit.ids[max(skip, 0) :], commit.kinds[max(skip, 0) :]
        if problem is None and any(self.ends_at(token, have + i) for i, token in enumerate(fresh[:-1])):
            problem = "text goes on after a stop id"
        if problem is None and max(commit.ids) >= self.settings.vocabulary:
            problem = f"id {max(commit.ids)} is outside the vocabulary"
        if problem is not None:
            self.violation(conn, problem)
            return
        conn.known = max(conn.known, commit.start + len(commit.ids))
        if fresh:
            conn.progress_at, conn.late = self.now, False
            self.commit(fresh, kinds, commit.log_probs[max(skip, 0) :])
        for rows in commit.rows:
            self._on_rows(conn, rows)

    def _on_rows(self, conn: Conn, rows: Rows) -> None:
        if rows.bulk:
            conn.bulk_received += len(rows.data)
        if rows.turn != self.turn_number or (self.finished and rows.start + rows.count > len(self.sequence)):
            return
        plane = conn.planes.get(rows.plane)
        if plane is None or rows.start + rows.count > len(self.sequence):
            self.violation(conn, "rows of a plane that was not agreed or of a position that is not decided")
            return
        try:
            values = decode_rows(rows.data, rows.count, plane)
        except InvalidField as error:
            self.violation(conn, str(error))
            return
        self.act(AddRows(rows.plane, rows.start, values))
        if rows.plane == max(conn.planes):  # planes come in order: the others of these positions are here
            self.held = _join(self.held, (rows.start, rows.start + rows.count))

    def _on_turn_end(self, conn: Conn, frame: TurnEnd) -> None:
        if frame.turn != self.turn_number:
            return
        if frame.report is not None and self.turn is not None:
            problem = report_conflict(frame.report, self.turn)
            if problem is not None:
                self.violation(conn, problem)
                return
            self.act(Audited(frame.report))
        if self.finished:
            return
        if frame.end != self.sequence.anchor or not self._ends_for(conn, frame.reason):
            self.violation(
                conn, "the turn is said to end elsewhere or for another reason than the text shows"
            )
            return
        self.finish(END_REASONS[frame.reason], verified=True)

    def _ends_for(self, conn: Conn, reason: FinishReason) -> bool:
        """Whether the text can have ended for this reason, as far as the device can tell."""
        length = len(self.sequence)
        match reason:
            case FinishReason.STOP_ID if self.turn is not None and self.turn.stop_ids:
                return length > 0 and self.ends_at(self.sequence.ids[-1], length - 1)
            case FinishReason.LENGTH:
                return length >= self.max_length
            case FinishReason.CONTEXT:
                return length >= conn.limits.max_context_tokens
            case _:
                return True

    def _report_link(self) -> None:
        if self.finished:
            return
        if self.active is not None:
            self.report(LinkState.LATE if self.active.late else LinkState.ONLINE)
        else:
            self.report(LinkState.OFFLINE if self.alone else LinkState.CONNECTING)


def _join(held: tuple[int, int], new: tuple[int, int]) -> tuple[int, int]:
    """One range of rows on the device: joined where they touch, else the newer one."""
    if held[0] >= held[1]:
        return new
    if new[0] <= held[1] and held[0] <= new[1]:
        return min(held[0], new[0]), max(held[1], new[1])
    return max(held, new)
