"""The device's session machine: pure, ``handle(event, now) -> actions`` and ``wake_at()``.

One round reads: `advance` proposes or sends, `_on_verdict` receives, `_apply` commits; when nothing timely comes,
`advance` shows what is drafted and drafts on. Times are monotonic seconds.
"""

from __future__ import annotations

from dataclasses import replace

from outrider.client.attaching import AttachMachine
from outrider.client.conn import Conn, Round, commit_conflict, on_path, why_not
from outrider.client.drafter import Budget
from outrider.client.events import (
    AddRows,
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
from outrider.client.machine_settings import Offline, Reconcile
from outrider.client.plan import Plan
from outrider.shared.anchor import extend
from outrider.shared.codec import decode_rows
from outrider.shared.draft import Draft
from outrider.shared.errors import InvalidField, from_failure
from outrider.shared.frames import (
    Cancel,
    Commit,
    CostCurve,
    DownFrame,
    DraftFrame,
    Drain,
    Failure,
    Feature,
    FinishReason,
    Opened,
    Pong,
    Progress,
    RoundOutcome,
    Rows,
    Steer,
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
_PREFILL_SILENCE_S = 1.0


class SessionMachine(AttachMachine):
    """One session of one device."""

    _fresh_tree: Draft | None = None
    _just_drafted = False
    _told_end = -1

    def handle(self, event: MachineEvent, now: float) -> list[MachineAction]:
        """What to do about ``event`` at ``now`` (monotonic seconds, never going back)."""
        if now - self.now > _IDLE_S:
            self.deadlines.unsettle()
        self.now = max(self.now, now)
        self._dispatch(event)
        self.check_deadlines()
        self.dial_if_due()
        self.advance()
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
                self._on_drafted(event)
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

    # ------------------------------------------------------------------------------------------------ the caller

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
        self.check_end()
        self._after_finish()

    def _tell_turn(self, conn: Conn) -> None:
        """Tell a live stream of a turn that it has not heard of."""
        if self.turn is None or conn.turn == self.turn_number:
            return
        conn.turn, conn.known = self.turn_number, self.turn_start
        conn.progress_at, conn.run_until, conn.busy_until = self.now, 0, 0.0
        self.send(conn, self.turn)

    def _on_stop_at(self, event: StopAt) -> None:
        was_finished = self.finished
        self.on_stop(event)
        if self.finished and not was_finished and self.active is not None:
            self.send(self.active, Cancel(self.turn_number))
        self._after_finish()

    def _after_finish(self) -> None:
        """A finished turn needs no attempt under way, and its stream only for a while."""
        if self.finished and self._linger_until is None:
            self._linger_until = self.now + self.settings.linger_s
            if self.candidate is not None:
                self.drop(self.candidate, cancel=True)

    def _on_bundle(self, event: BundleReady) -> None:
        self.drafter_ready = True
        self.prime()
        known = self.bundle == event.sha256 and self.num_planes == event.planes
        self.bundle, self.num_planes = event.sha256, event.planes
        if (
            not known
            and event.planes
            and self.active is not None
            and self.candidate is None
            and self.wants_link
        ):
            self.held = (0, 0)
            self.dial(fresh=False)  # attach again, now asking for its rows

    # ---------------------------------------------------------------------------------------------------- frames

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
                    later = self.now + max(_PREFILL_SILENCE_S, self.deadlines.soft())
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
                self.rounds_judged += 1
                self.tokens_drafted += round_.path
                self.tokens_accepted += verdict.accepted

    def _on_commit(self, conn: Conn, commit: Commit) -> None:
        if commit.turn > self.turn_number:
            self.violation(conn, f"a commit of turn {commit.turn}, which has not begun")
        elif commit.turn == self.turn_number and not self.finished:
            self._apply(conn, commit)

    def _apply(self, conn: Conn, commit: Commit) -> None:
        """Commit tokens by position: what is covered already changes nothing."""
        problem = commit_conflict(commit, self.sequence, self.turn_start, self.max_length)
        have = len(self.sequence)
        skip = have - commit.start
        fresh, kinds = commit.ids[max(skip, 0) :], commit.kinds[max(skip, 0) :]
        if problem is None and any(self.ends_at(token, have + i) for i, token in enumerate(fresh[:-1])):
            problem = "text goes on after a stop id"
        if problem is not None:
            self.violation(conn, problem)
            return
        conn.known = max(conn.known, commit.start + len(commit.ids))
        if fresh:
            conn.progress_at, conn.late = self.now, False
            self.commit(fresh, kinds)
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
        if rows.plane == min(conn.planes):
            self.held = _join(self.held, (rows.start, rows.start + rows.count))

    def _on_turn_end(self, conn: Conn, frame: TurnEnd) -> None:
        if frame.turn != self.turn_number or self.finished:
            return
        if frame.end != self.sequence.anchor:
            self.violation(conn, "the turn is said to end elsewhere")
            return
        self.finish(END_REASONS[frame.reason], verified=True)

    # ---------------------------------------------------------------------------------------------------- rounds

    def _on_drafted(self, event: Drafted) -> None:
        before = self.end
        ids = self.take_proposal(event)
        if ids is None:
            return
        whole = event.base == before and ids == event.proposal.best_ids
        self._fresh_tree = event.proposal.draft if whole else None
        self._just_drafted = True

    def advance(self) -> None:
        """Send the next round if one may go, otherwise draft on; show what is drafted when nothing timely comes."""
        tree, drafted = self._fresh_tree, self._just_drafted
        self._fresh_tree, self._just_drafted = None, False
        if self.finished or self.turn is None:
            return
        conn = self.active if self.active is not None and self.active.turn == self.turn_number else None
        plan = self.plan()
        if conn is not None:
            self._send_or_propose(conn, plan, tree, drafted)
        if self.alone and self.settings.offline is not Offline.NEVER:
            self._write_alone()
        elif conn is None or conn.late:
            self._draft_on(self.settings.offline_depth, 0)
        else:
            self._draft_on(plan.max_depth, len(conn.rounds))
        if conn is not None and self.active is conn:
            self._steer(conn, plan)

    def _send_or_propose(self, conn: Conn, plan: Plan, tree: Draft | None, drafted: bool) -> None:
        if self.now < conn.busy_until or len(conn.rounds) >= conn.in_flight_most(plan.rounds):
            return
        unsent = self.tail.ids[self.sent_to(conn) - self.tail.start :]
        depth = plan.max_depth if self.drafter_ready else 0
        if conn.rounds and not unsent:
            self._draft_on(depth, 0)  # a pipelined round needs something to say
        elif len(unsent) < depth and not drafted and (self.proposing or self.can_draft()):
            if not self.proposing:
                nodes = max(plan.max_nodes - len(unsent), 1)
                self._ask(Budget(nodes, depth - len(unsent), plan.tree and not conn.rounds, plan.floor))
        elif unsent or depth or not self._runs_ahead(conn, plan):
            self._send_round(conn, plan, tree)

    def _runs_ahead(self, conn: Conn, plan: Plan) -> bool:
        return Feature.RUN_AHEAD in conn.granted and plan.run_ahead > 0 and self.stop_at is None

    def sent_to(self, conn: Conn) -> int:
        """Position up to which the tail is under way in rounds of this stream."""
        covered = (r.base + r.path for r in conn.rounds.values() if r.cuts == self.cuts)
        return min(max(len(self.sequence), *covered, 0), self.end)

    def _send_round(self, conn: Conn, plan: Plan, tree: Draft | None) -> None:
        sent_to = self.sent_to(conn)
        # Without rounds under way the draft hangs where the verifier's log is known to be; what another stream brought
        # beyond that is drafted text to it.
        base = sent_to if conn.rounds else min(len(self.sequence), conn.known)
        path = (*self.sequence.ids[base:], *self.tail.ids[max(sent_to - self.tail.start, 0) :])
        path = path[: conn.limits.max_chain_tokens]
        draft = self._with_tree(conn, path, tree) or Draft.chain(path)
        seen = self.sequence.anchor_at(min(len(self.sequence), conn.known))
        if base <= len(self.sequence):
            anchor = self.sequence.anchor_at(base)
        else:
            anchor = extend(self.sequence.anchor, self.tail.ids[: base - self.tail.start])
        number = self.note_round(conn, draft, base, len(path))
        window = self.window(conn, plan, seen)
        frame = DraftFrame(number, self.turn_number, window, draft, None if anchor == seen else anchor)
        self.send(conn, frame)

    def _with_tree(self, conn: Conn, path: tuple[int, ...], tree: Draft | None) -> Draft | None:
        """``tree`` hung below the part of ``path`` that comes before its own best path; None if it may not be."""
        if tree is None or tree.is_chain or Feature.TREES not in conn.granted:
            return None
        before = next((n for n in range(len(path) + 1) if on_path(tree, path[n:])), None)
        if before is None or before + len(tree.ids) > conn.limits.max_tree_nodes:
            return None
        parents = (*range(before), *(parent + before for parent in tree.parents))
        draft = Draft((*path[:before], *tree.ids), parents)
        return draft if max(draft.depths) <= conn.limits.max_tree_depth else None

    def note_round(self, conn: Conn, draft: Draft, base: int, path: int) -> int:
        """Account for a draft that is sent now; its number."""
        conn.last_round += 1
        cost = conn.opened.cost if conn.opened else CostCurve()
        deadline = self.now + self.deadlines.soft(cost_s(cost, len(draft.ids) + 1))
        conn.rounds[conn.last_round] = Round(
            conn.last_round, self.turn_number, base, draft, path, self.cuts, self.now, deadline
        )
        return conn.last_round

    def _steer(self, conn: Conn, plan: Plan) -> None:
        """Send a window without a draft when the verifier needs one to go on."""
        grown = len(self.sequence) - conn.window_length
        aged = grown > 0 and self.now >= conn.window_at + self.settings.steer_s
        ahead = self._runs_ahead(conn, plan)
        expired = ahead and not conn.rounds and conn.run_until <= len(self.sequence) < self.max_length
        unacked = conn.bulk_received - conn.bulk_acked
        due = expired or (conn.run_until > 0 and (grown >= self.settings.steer_tokens or aged))
        if due or unacked * 2 >= self.settings.bulk_window_bytes:
            seen = self.sequence.anchor_at(min(len(self.sequence), conn.known))
            self.send(conn, Steer(self.turn_number, self.window(conn, plan, seen)))

    # ------------------------------------------------------------------------------------------------- drafting on

    def _ask(self, budget: Budget) -> None:
        if self.turn is not None:
            self.propose(replace(budget, sampling=self.turn.sampling))

    def _draft_on(self, depth: int, under_way: int) -> None:
        """Draft ahead of the verdicts, quietly, at most ``depth`` tokens beyond what has gone out."""
        conn = self.active
        start = self.sent_to(conn) if conn is not None else len(self.sequence)
        ahead = self.end - start
        if self.settings.reconcile is Reconcile.PAUSE and self.alone:
            return
        if depth > ahead and self.can_draft() and (under_way or conn is None or conn.rounds):
            self._ask(Budget(depth - ahead, depth - ahead))

    def _write_alone(self) -> None:
        """Nothing timely comes: what is drafted is shown as provisional, and more is drafted."""
        if self.settings.reconcile is Reconcile.PAUSE:
            return
        self.tail_on_display()
        if self.can_draft():
            depth = self.settings.offline_depth
            self._ask(Budget(depth, depth))
        elif not self.proposing and self.drafter_ready and self.stop_at is None:
            if self.given_up:
                self.finish("offline", verified=False)
                self._after_finish()
            elif self._told_end != self.end and self.tail.ids:
                self._told_end = self.end
                self.report(
                    LinkState.OFFLINE if self.active is None else LinkState.LATE, "ended, unconfirmed"
                )

    def _report_link(self) -> None:
        if self.finished:
            return
        if self.active is not None:
            self.report(LinkState.LATE if self.active.late else LinkState.ONLINE)
        else:
            self.report(LinkState.OFFLINE if self.alone else LinkState.CONNECTING)


def cost_s(cost: CostCurve, width: int) -> float:
    """Seconds of a target pass of ``width`` tokens, interpolated; 0 where nothing was measured."""
    points = list(zip(cost.widths, cost.costs_us, strict=True))
    if not points:
        return 0.0
    low = max((point for point in points if point[0] <= width), default=points[0])
    high = min((point for point in points if point[0] >= width), default=points[-1])
    if high[0] == low[0]:
        return low[1] / 1e6
    share = (width - low[0]) / (high[0] - low[0])
    return (low[1] + share * (high[1] - low[1])) / 1e6


def _join(held: tuple[int, int], new: tuple[int, int]) -> tuple[int, int]:
    """One range of rows on the device: joined where they touch, else the newer one."""
    if held[0] >= held[1]:
        return new
    if new[0] <= held[1] and held[0] <= new[1]:
        return min(held[0], new[0]), max(held[1], new[1])
    return max(held, new)
