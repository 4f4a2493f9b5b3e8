"""What Open says, and what Opened answers: from a connection to a stream that serves this session."""

from __future__ import annotations

from dataclasses import replace

from outrider.client.conn import Conn, Round
from outrider.client.cost import pass_s
from outrider.client.dialling import DialMachine
from outrider.client.events import Connected, Fetch, HangUp
from outrider.client.journal import session_record
from outrider.client.machine_settings import Reconcile
from outrider.client.plan import PacingInputs, Plan
from outrider.shared.codec import pack_ids
from outrider.shared.draft import Draft
from outrider.shared.errors import FingerprintMismatch, ProtocolMismatch
from outrider.shared.frames import (
    UNLIMITED,
    Anchor,
    Attach,
    Context,
    CostCurve,
    DraftFrame,
    Feature,
    Fingerprints,
    Limits,
    Open,
    Opened,
    RowsWanted,
    Window,
)

CONTEXT_IDS = 8192
"""Ids in one Context frame."""
PREFILL_SILENCE_S = 1.0
"""While the verifier prefills, only silence of this length makes a round late."""


class OpenMachine(DialMachine):
    """The part of the session machine that attaches."""

    # ---------------------------------------------------------------------------------------------------------- open

    def on_connected(self, event: Connected) -> None:
        """The stream can be written to: say who this is, what is held, and what was drafted meanwhile."""
        conn = self.conn_of(event.conn)
        if conn is None or conn is not self.candidate or conn.opened_sent_at is not None or self.turn is None:
            return
        if self.settings.reconcile is Reconcile.KEEP and self.active is None:
            self.adopt()
        if self.finished:
            self.drop(conn, cancel=True)
            return
        held = len(self.sequence)
        conn.have = self.turn.keep if held == self.turn_start else self.sequence.anchor
        conn.turn, conn.asked = self.turn_number, self.features
        conn.opened_sent_at = conn.heard_at = conn.progress_at = self.now
        self.send(conn, self._open_frame(conn))

    @property
    def features(self) -> tuple[Feature, ...]:
        """What is asked of the verifier; laws only where the turn's rule compares them, for they exclude others."""
        return (*self.settings.features, *((Feature.DRAFT_LAWS,) if self.manner is not None else ()))

    def _open_frame(self, conn: Conn) -> Open:
        turn = self.turn
        if turn is None:
            raise ValueError("no turn to open")
        window = self.window(conn, self.plan(), conn.have)
        wanted = None
        if self.num_planes:
            wanted = RowsWanted(
                0,
                *self.held,
                encoding=self.settings.row_encoding,
                bulk_window_bytes=self.settings.bulk_window_bytes,
            )
        prints = self.fingerprints
        conn.bundle = self.bundle
        return Open(
            session_id=self.settings.session_id,
            epoch=conn.epoch,
            have=conn.have,
            turn=turn,
            window=window,
            protocol_min=turn.protocol,
            fingerprints=Fingerprints(prints.law, prints.tokenizer, self.bundle),
            features=conn.asked,
            context=self._inline_context(conn),
            draft=self._first_draft(conn, window),
            rows=wanted,
            rejoin=self.attached_before,
        )

    def _inline_context(self, conn: Conn) -> Context | None:
        """All ids where they are short enough: that saves a round trip if the verifier has forgotten them."""
        ids = self.sequence.slice(0, conn.have.length)
        return Context(0, ids) if ids and len(pack_ids(ids)) <= conn.limits.max_inline_context_bytes else None

    def _first_draft(self, conn: Conn, window: Window) -> DraftFrame:
        ids = tuple(self.tail.ids[: conn.limits.max_chain_tokens]) if self.manner is None else ()
        draft = Draft.chain(ids)
        self.note_round(conn, draft, len(self.sequence), len(ids))
        base = self.sequence.anchor
        return DraftFrame(1, self.turn_number, window, draft, None if base == window.seen else base)

    def note_round(self, conn: Conn, draft: Draft, base: int, path: int) -> int:
        """Account for a draft that is sent now; its number."""
        conn.last_round += 1
        cost = conn.opened.cost if conn.opened else CostCurve()
        deadline = self.now + self.deadlines.soft(pass_s(cost, len(draft.ids) + 1, unknown_s=0.0))
        conn.rounds[conn.last_round] = Round(
            conn.last_round,
            self.turn_number,
            base,
            draft,
            path,
            self.cuts,
            self.now,
            deadline,
            len(self.sequence),
        )
        return conn.last_round

    def on_opened(self, conn: Conn, frame: Opened) -> None:
        """The verifier knows the session: this stream is the one from now on."""
        problem = self._opened_problem(conn, frame)
        if problem:
            self.violation(conn, problem)
            return
        if not self._same_law(frame) or not self.understood(frame):
            return
        if conn.opened_sent_at is not None:
            self.deadlines.sample(self.now - conn.opened_sent_at, 0, 0)
        old, self.active, self.candidate = self.active, conn, None
        conn.opened = frame
        self.limits = frame.limits
        conn.known = frame.committed.length
        conn.planes = {plane.plane: plane for plane in frame.planes}
        conn.progress_at = self.now
        if old is not None:
            self.act(HangUp(old.number, cancel=True))
        self.attached_before = True
        self._alone_at = None
        for number, round_ in conn.rounds.items():
            conn.rounds[number] = replace(round_, deadline=max(round_.deadline, self.now + PREFILL_SILENCE_S))
        self.backoff.reset()
        self._ask_for_bundle(frame)
        if frame.attach is Attach.NEED_CONTEXT:
            self._send_context(conn, frame)

    def _opened_problem(self, conn: Conn, frame: Opened) -> str | None:
        if conn is not self.candidate or conn.opened_sent_at is None:
            return "Opened came unasked"
        if frame.epoch != conn.epoch:
            return f"epoch {frame.epoch} came back for {conn.epoch}"
        if not set(frame.features) <= set(conn.asked):
            return "features were granted that nobody asked for"
        if frame.attach is Attach.NEED_CONTEXT:
            return (
                "context was asked for beyond what is held" if frame.context_from > conn.have.length else None
            )
        if frame.committed.length < conn.have.length:
            return "the verifier claims to know less than it was told"
        if self.sequence.contains(frame.committed) or frame.committed.length > len(self.sequence):
            return None
        # A turn begun since Open may have shortened the text; then the anchor is of the other text.
        return "the verifier's text is another one" if conn.turn == self.turn_number else None

    def _same_law(self, frame: Opened) -> bool:
        """Whether the verifier still is the target this session began with."""
        ours, theirs = self.fingerprints, frame.fingerprints
        for which, mine, other in (
            ("law", ours.law, theirs.law),
            ("tokenizer", ours.tokenizer, theirs.tokenizer),
        ):
            if mine and other != mine:
                error = FingerprintMismatch(which, ours=mine, theirs=other)
                self.hang_up_all()
                self.finish("error", verified=False, error=error)
                return False
        if (ours.law, ours.tokenizer) != (theirs.law, theirs.tokenizer):
            self.fingerprints = Fingerprints(theirs.law, theirs.tokenizer)
            self.persist(session_record(self.settings.session_id, self.fingerprints))
        return True

    def understood(self, frame: Opened) -> bool:
        """Whether the verifier knows all that the turn asks for; one that does not would write another text."""
        if self.turn is None or frame.protocol >= self.turn.protocol:
            return True
        error = ProtocolMismatch(
            f"this turn needs minor version {self.turn.protocol}, the verifier chose {frame.protocol}",
            remedy="leave out penalties, biases, min-p, min-tokens and log-probabilities, or use a newer verifier",
        )
        self.hang_up_all()
        self.finish("error", verified=False, error=error)
        return False

    def _ask_for_bundle(self, frame: Opened) -> None:
        """Fetch a bundle once: where there is none yet, or no rows come for the present one, which reads them.

        A drafter without rows, or a verifier that makes none, shows no sign of a newer bundle: what is described says.
        """
        if not self.settings.fetch_bundle or self._asked_for_bundle:
            return
        by_rows = self.num_planes > 0 and Feature.STATE_ROWS in frame.features
        if self.bundle and by_rows and frame.planes:
            return
        self._asked_for_bundle = True
        self.act(Fetch(b"" if self.bundle and not by_rows else frame.fingerprints.bundle))

    def _send_context(self, conn: Conn, frame: Opened) -> None:
        if conn.turn != self.turn_number:
            # The text asked for is no longer held; the next Open speaks of the new turn.
            self.drop(conn, cancel=True)
            return
        for start in range(frame.context_from, conn.have.length, CONTEXT_IDS):
            stop = min(start + CONTEXT_IDS, conn.have.length)
            self.send(conn, Context(start, self.sequence.slice(start, stop)))
        conn.known = max(conn.have.length, self.turn_start)

    # -------------------------------------------------------------------------------------------------------- pacing

    def plan(self) -> Plan:
        """What pacing says about the next round."""
        conn = self.active
        opened = conn.opened if conn is not None else None
        step = self.draft_step
        granted = conn.granted if conn else frozenset()
        temperature = self.turn.sampling.temperature if self.turn is not None else 0.0
        inputs = PacingInputs(
            link=self.link,
            length=len(self.sequence),
            remaining=max(self.max_length - len(self.sequence), 0),
            drafter=self.drafter_ready,
            granted=granted if self.runs_ahead else granted - {Feature.RUN_AHEAD, Feature.PIPELINE},
            limits=opened.limits if opened else Limits(),
            cost=opened.cost if opened else CostCurve(),
            rtt_s=self.deadlines.srtt_s,
            queue_s=self.deadlines.queue_s,
            draft_node_s=None if step is None else step.node_s,
            draft_pass_s=0.0 if step is None else step.pass_s,
            excess_s=self.excess_s,
            rounds=self.rounds_judged,
            judged=self.guesses_judged,
            accepted=self.guesses_right,
            dry=self.rounds_dry,
            law=self.confidence.at(temperature),
        )
        plan = self.pacing.plan(inputs)
        if self.runs_ahead:
            return plan
        return replace(plan, run_ahead=0, rounds=1, ahead=plan.ahead if self.manner is None else 0)

    def window(self, conn: Conn, plan: Plan, seen: Anchor) -> Window:
        """What is held and how far the verifier may go on alone."""
        wanted = Feature.RUN_AHEAD in (conn.granted if conn.opened else conn.asked)
        until = 0
        if wanted and plan.run_ahead and self.stop_at is None and self.runs_ahead:
            until = min(len(self.sequence) + plan.run_ahead, UNLIMITED)
        most = min(len(self.sequence) + conn.limits.max_run_ahead_tokens, self.max_length)
        conn.run_until, conn.window_at, conn.window_length = min(until, most), self.now, len(self.sequence)
        conn.bulk_acked = conn.bulk_received
        return Window(seen, until, conn.bulk_received % 2**32)
