"""Packed passes: which works go into the next one, and what their outcomes do to the logs.

At each pass a session does one thing: its oldest draft, else one run-ahead step, else a piece of prefill. Drafts of all
sessions go first; a run-ahead step gives way to them at most once in a row; prefill fills what is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from outrider.cloud.events import (
    Outcome,
    Prefill,
    RunRows,
    RunStep,
    StepDone,
    Verified,
    Verify,
    Work,
    WorkFailed,
)
from outrider.cloud.rounds import Fitted, WaitingRound, bound, fit, path_ids, superseded
from outrider.cloud.rules import trusts_laws
from outrider.cloud.session_log import Session
from outrider.cloud.table_state import EARLY, Stream, TableState
from outrider.shared.draft import Draft
from outrider.shared.frames import FailureReason, Feature, RoundOutcome, TokenKind, Verdict
from outrider.shared.sampling import LogProbs

NOTHING = Draft.chain(())


@dataclass(frozen=True, slots=True)
class Job:
    """One work of the pass under way, and what to do with its outcome."""

    session: Session
    generation: int
    work: Work
    round: WaitingRound | None = None
    stream: int | None = None
    fitted: Fitted | None = None
    started_at: float = 0.0

    @property
    def tokens(self) -> int:
        """Rows of the pass."""
        return work_tokens(self.work)


@dataclass(frozen=True, slots=True)
class Gain:
    """What a verified draft adds to the log."""

    ids: tuple[int, ...]
    kinds: tuple[TokenKind, ...]
    accepted: int
    rest: Draft | None
    """What is left of a long chain to verify in the next pass."""
    log_probs: tuple[LogProbs, ...] = ()
    """One per id where the turn asks for them."""


class StepTable(TableState):
    """The part of the table that feeds the engine."""

    _jobs: tuple[Job, ...] = ()
    _rows_serial = 0

    # ---------------------------------------------------------------------------------------------------- packing

    def pump(self) -> None:
        """Answer what needs no target, start rows, and start the next pass when none is under way."""
        for session in list(self.sessions.values()):
            self.settle(session)
        for stream in self.streams.values():
            self._start_rows(stream)
        if not self._jobs:
            self._start_step()

    def settle(self, session: Session) -> None:
        """Answer the oldest rounds of a session as long as that needs no pass."""
        stream = self.stream_of(session)
        while stream is not None and stream.opening is None and stream.rounds.waiting:
            head = stream.rounds.waiting[0]
            if any(job.round is head for job in self._jobs):
                return
            verdict = self.verdict_without_pass(session, head)
            if verdict is None:
                return
            self.answer(stream, verdict)

    def verdict_without_pass(self, session: Session, head: WaitingRound) -> Verdict | None:
        """The verdict of a round that the target need not look at; None when it must."""
        number = head.frame.round
        if head.busy:
            return Verdict(number, RoundOutcome.BUSY, retry_after_ms=self.settings.busy_retry_ms)
        if head.frame.turn < session.turn_number:
            return superseded(number)
        if session.ended is not None:
            return Verdict(number, RoundOutcome.ENDED)
        if not head.draft.is_chain and not self.granted(session, Feature.TREES):
            return superseded(number)  # the draft of an Open, made before the answer to it was known
        return superseded(number) if fit(head.draft, head.anchor, session.log) is None else None

    def answer(self, stream: Stream, verdict: Verdict) -> None:
        """Send the verdict of the oldest waiting round."""
        stream.rounds.answer(verdict)
        self.send(stream, verdict)

    def _start_step(self) -> None:
        jobs = self._choose(self._candidates())
        if not jobs:
            return
        self._jobs = tuple(jobs)
        for job in jobs:
            job.session.running = True
            if job.round is not None and not job.round.started_at:
                job.round.started_at = self.now
        self.act(RunStep(tuple(job.work for job in jobs)))

    def _candidates(self) -> list[tuple[float, Job]]:
        """Every session's next work with the time since when it waits."""
        found: list[tuple[float, Job]] = []
        for session in self.sessions.values():
            since = self.waits_since(session)
            if since is None and self.prefills(session):
                since = EARLY
            job = None if since is None else self._next_job(session)
            if since is not None and job is not None:
                found.append((since, job))
        return sorted(found, key=lambda item: (item[0], item[1].session.key))

    def _next_job(self, session: Session) -> Job | None:
        start = len(session.kv)
        pending = session.log.slice(start)
        stream = self.stream_of(session)
        head = stream.rounds.waiting[0] if stream and stream.rounds.waiting else None
        if head is not None and len(pending) <= self.settings.prefill_chunk:
            return self._draft_job(session, head, start, pending)
        if len(pending) <= self.settings.prefill_chunk and self.may_run_ahead(session):
            return self._verify_job(session, start, pending, NOTHING)
        ids = pending[:-1][: self.settings.prefill_chunk]
        if not ids:
            return None
        return Job(session, session.generation, Prefill(session.key, start, ids, session.final))

    def _draft_job(
        self, session: Session, head: WaitingRound, start: int, pending: tuple[int, ...]
    ) -> Job | None:
        fitted = fit(head.draft, head.anchor, session.log)
        if fitted is None:
            return None  # settled before every pass; nothing can have changed since
        # One token is left for the target's own: a draft of depth d yields up to d + 1.
        room = min(self._end_length(session), self.longest) - session.length - 1
        draft = bound(fitted.draft, room, self.stop_ids(session))
        if draft.is_chain:
            draft = draft.only(range(min(len(draft), head.window)))
        return self._verify_job(session, start, pending, draft, head, fitted)

    def _verify_job(
        self,
        session: Session,
        start: int,
        pending: tuple[int, ...],
        draft: Draft,
        head: WaitingRound | None = None,
        fitted: Fitted | None = None,
    ) -> Job | None:
        turn = session.turn
        if turn is None:
            return None
        stop_ids = self.stop_ids(session)
        text = turn.sampling.history(session.log.ids, turn.generated_from, stop_ids)
        work = Verify(
            session.key,
            start,
            pending,
            draft,
            turn.sampling,
            turn.rule,
            session.final,
            history=text,
            log_probs=turn.log_probs,
            stop_ids=stop_ids,
            coin_key=self.coin_key(session, turn, stop_ids, draft),
        )
        return Job(session, session.generation, work, head, session.stream, fitted, self.now)

    def _choose(self, candidates: list[tuple[float, Job]]) -> list[Job]:
        drafts = [item for item in candidates if item[1].round is not None]
        ahead = [item for item in candidates if item[1].round is None and isinstance(item[1].work, Verify)]
        prefills = [item for item in candidates if isinstance(item[1].work, Prefill)]
        urgent = [item for item in ahead if item[1].session.skipped] if drafts else ahead
        for _, job in ahead:
            job.session.skipped = bool(drafts)
        chosen: list[Job] = []
        for since, job in drafts + urgent:
            if not chosen or sum(j.tokens for j in chosen) + job.tokens <= self.settings.max_step_tokens:
                self._take(chosen, since, job)
            elif job.round is None:
                job.session.skipped = True
        budget = self.settings.prefill_chunk_busy if drafts else self.settings.prefill_chunk
        for since, job in prefills:
            if budget > 0 and isinstance(job.work, Prefill):
                work = replace(job.work, ids=job.work.ids[:budget])
                budget -= len(work.ids)
                self._take(chosen, since, Job(job.session, job.generation, work))
        return chosen

    def _take(self, chosen: list[Job], since: float, job: Job) -> None:
        """Add a job to the pass if its KV fits; younger and idle sessions make room for it."""
        if job.work.start != len(job.session.kv):
            return  # an older job of this pass took its room; it begins anew in the next one
        keep = {other.session.key for other in chosen} | {job.session.key}
        needed = sum(one.tokens * self.token_bytes(one.session) for one in (*chosen, job))
        if self.make_room(needed, keep, (since, job.session.key)):
            job.session.used_at = self.now
            chosen.append(job)

    def _start_rows(self, stream: Stream) -> None:
        session = stream.session
        if stream.rows is None or stream.opening is not None or session.turn is None:
            return
        if stream.queued_bytes > self.settings.max_queued_bytes or session.dirty or session.evict_when_idle:
            return
        consumed = min(len(session.kv), session.length - 1)
        self._rows_serial += 1
        job = stream.rows.next_job(session.key, session.turn_number, consumed, self._rows_serial)
        if job is not None:
            self.act(RunRows(job))

    # --------------------------------------------------------------------------------------------------- outcomes

    def on_step_done(self, event: StepDone) -> None:
        """Bring the outcomes of the pass under way into KV accounts, logs and verdicts."""
        jobs, self._jobs = self._jobs, ()
        for job, outcome in zip(jobs, event.outcomes, strict=True):
            job.session.running = False  # one by one: until its outcome is known, a KV must not be evicted
            self._outcome(job, outcome)
            if job.session.key in self.sessions:
                self.trim_kv(job.session)
            else:  # forgotten while it ran
                self.evict(job.session)

    def _outcome(self, job: Job, outcome: Outcome) -> None:
        session, work = job.session, job.work
        if isinstance(outcome, WorkFailed):
            self._work_failed(job, outcome)
            return
        if isinstance(work, Prefill):
            session.kv = session.kv[: work.start] + list(work.ids)
            return
        path = path_ids(work.draft, outcome.accepted) if isinstance(outcome, Verified) else None
        if not isinstance(outcome, Verified) or path is None or not self._fits(outcome):
            self._work_failed(job, WorkFailed(session.key, "the engine's outcome does not fit the work"))
            return
        session.kv = session.kv[: work.start] + list(work.pending) + list(path)
        if session.generation != job.generation or session.ended is not None:
            return  # rewritten or cancelled meanwhile; the round is settled without it
        gain = self.gain(session, job, path, outcome)
        session.audited(outcome.audit, self._trusts_laws(work))
        self._commit(job, replace(gain, log_probs=outcome.log_probs[: len(gain.ids)]), outcome)

    def _fits(self, outcome: Verified) -> bool:
        counts = {0, len(outcome.accepted) + 1}
        return outcome.next_id < self.served.vocabulary and len(outcome.kinds) in counts

    def _trusts_laws(self, work: Verify) -> bool:
        """Whether a verdict rests on laws that the client alone vouches for."""
        return trusts_laws(self.served.rules.named(work.rule.name), work.draft)

    def gain(self, session: Session, job: Job, path: tuple[int, ...], outcome: Verified) -> Gain:
        """The tokens that a verdict adds, each with its kind."""
        kinds = outcome.kinds[:-1] or (TokenKind.ACCEPTED,) * len(path)
        next_id = outcome.next_id
        if path and path[-1] in self.stop_ids(session):
            return Gain(path, kinds, len(path), None)
        if job.fitted is None:
            return Gain((*path, next_id), (*kinds, TokenKind.RUN_AHEAD), 0, None)
        kind, rest = _continue(job.fitted.draft, path, next_id)
        told = outcome.kinds[-1:]
        # The rule knows better where ids do not tell which of several twins was kept, where the target's own token may
        # be a refused one drawn anew, and where a judged one was given back at a near tie.
        if told and (job.fitted.draft.has_twins or told[0] in (TokenKind.RECOVERED, TokenKind.JUDGED)):
            kind, rest = told[0], None
        accepted = len(path) + (kind in (TokenKind.ACCEPTED, TokenKind.JUDGED))
        return Gain((*path, next_id), (*kinds, kind), accepted, rest)

    def _commit(self, job: Job, gain: Gain, outcome: Verified) -> None:
        session, start = job.session, job.session.length
        self.record(session, gain)
        session.ended = session.end_reason(
            min(self.longest, self._end_length(session)), self.stop_ids(session)
        )
        session.since = session.used_at = self.now
        stream = self.stream_of(session)
        if stream is None or stream.opening is not None:
            return
        commit = session.commit_frame(start, start + len(gain.ids), min(outcome.near_ties, len(gain.ids)))
        head = stream.rounds.waiting[0] if stream.rounds.waiting else None
        if job.round is None or job.round is not head or job.stream != stream.number:
            self.send(stream, commit)
        elif gain.rest is not None and session.ended is None:
            self._next_window(job, gain, session)
            self.send(stream, commit)
        else:
            self.answer(stream, self._verdict(job, gain, commit_outcome=outcome, start=start))
        if session.ended is not None:
            self.send(stream, session.end_frame())

    def record(self, session: Session, gain: Gain) -> None:
        """Put committed tokens into the log; nothing is sent that is not in it."""
        session.append(gain.ids, gain.kinds, gain.log_probs)

    def _next_window(self, job: Job, gain: Gain, session: Session) -> None:
        head = job.round
        if head is None or job.fitted is None:
            return
        head.trimmed += job.fitted.trimmed if head.base is None else 0
        head.base, head.rest = session.log.anchor, gain.rest
        head.window *= 2

    def _verdict(self, job: Job, gain: Gain, commit_outcome: Verified, start: int) -> Verdict:
        session, head, fitted = job.session, job.round, job.fitted
        if head is None or fitted is None:
            raise ValueError("a verdict needs a round")
        near_ties = min(commit_outcome.near_ties, len(gain.ids))
        trimmed = head.trimmed + (fitted.trimmed if head.base is None else 0)
        return Verdict(
            round=head.frame.round,
            outcome=RoundOutcome.VERIFIED,
            commit=session.commit_frame(start, start + len(gain.ids), near_ties),
            trimmed=trimmed,
            accepted=gain.accepted,
            queue_us=_microseconds(head.started_at - head.received_at),
            compute_us=_microseconds(self.now - head.started_at),
        )

    def _work_failed(self, job: Job, outcome: WorkFailed) -> None:
        session = job.session
        session.kv = []
        if outcome.no_room:
            others = [s for s in self.sessions.values() if s.kv and s.key != session.key and not s.running]
            if others:
                self.evict(min(others, key=lambda s: (s.stream is not None, s.used_at, s.key)))
                return  # the same work is chosen again
        session.run_until = 0
        stream = self.stream_of(session)
        if stream is not None:
            if outcome.refused is not None:
                self.fail_with(stream.number, outcome.refused)
                return
            reason = FailureReason.OVERLOADED if outcome.no_room else FailureReason.ENGINE
            self.fail(stream, reason, outcome.why)

    def _end_length(self, session: Session) -> int:
        return session.turn.max_length if session.turn else 0


def work_tokens(work: Work) -> int:
    """Rows of a work in a pass."""
    if isinstance(work, Prefill):
        return len(work.ids)
    return len(work.pending) + len(work.draft.ids)


def _continue(draft: Draft, path: tuple[int, ...], next_id: int) -> tuple[TokenKind, Draft | None]:
    """What the target's own token is to the draft, and what a chain has left after it.

    The pass may have seen less than the whole draft: then the next id can still be one that was drafted.
    """
    node = 0
    for token_id in path:
        node = _child(draft, node, token_id)
    children = [index for index, parent in enumerate(draft.parents) if parent == node]
    if not children:
        return TokenKind.BONUS, None
    if all(draft.ids[index] != next_id for index in children):
        return TokenKind.RECOVERED, None
    if not draft.is_chain or node + 1 >= len(draft):
        return TokenKind.ACCEPTED, None
    return TokenKind.ACCEPTED, draft.only(range(node + 1, len(draft)), root=node + 1)


def _child(draft: Draft, node: int, token_id: int) -> int:
    for index, parent in enumerate(draft.parents):
        if parent == node and draft.ids[index] == token_id:
            return index + 1
    raise ValueError("the path is not one of the draft")


def _microseconds(seconds: float) -> int:
    return max(0, min(round(seconds * 1e6), 2**32 - 1))
