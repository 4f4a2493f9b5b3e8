"""Runs the table's work on the engine: one packed pass for all, and no session's failure is another's.

`Worker` is what the engine's thread needs (`outrider.cloud.runner.Engine`): run, truncate, evict, kv_bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.cloud.engine import Engine, Request, Rows
from outrider.cloud.events import Outcome, Prefill, Prefilled, Verified, Verify, Work, WorkFailed
from outrider.cloud.kv import KvFull
from outrider.cloud.rules import KNOWN, NOTHING, Nodes, Rule, Rulebook, read_parameters
from outrider.shared.coins import Coins
from outrider.shared.errors import InvalidField, OutriderError
from outrider.shared.sampling import NEAR_TIE

MAX_LINE = 256
"""Rows one session adds to a pass at most, its draft aside; longer contexts take several passes."""

_log = logging.getLogger(__name__)


class UnusableLogits(OutriderError):
    """The target computed NaN or infinity for this session."""


@dataclass(slots=True)
class _Job:
    """A work on its way: what is left of its context, and where it goes."""

    work: Work
    at: int
    left: tuple[int, ...]
    rule: Rule | None
    given: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    """The rule's parameters."""
    outcome: Outcome | None = None

    def request(self) -> Request:
        """The next piece; the draft goes with the last one."""
        if len(self.left) > MAX_LINE or isinstance(self.work, Prefill):
            return Request(self.work.key, self.at, self.left[:MAX_LINE], final=self.work.final)
        return Request(self.work.key, self.at, self.left, self.work.draft, self.work.final)


class Worker:
    """Executes `Prefill` and `Verify` works against one engine. One thread at a time, `kv_bytes` aside."""

    def __init__(self, engine: Engine, near_tie_bound: float = NEAR_TIE, rules: Rulebook = KNOWN) -> None:
        """``rules`` are all it can judge by; which of them are served is the table's business."""
        self.engine = engine
        self.near_tie_bound = near_tie_bound
        self.rules = rules

    def run(self, works: Sequence[Work]) -> tuple[Outcome, ...]:
        """Outcomes in the order of ``works`` (of distinct sessions).

        What fails is that session's `WorkFailed`, and its KV is dropped; the others' work is done all the same.
        """
        jobs = [self._accept(work) for work in works]
        while waiting := [job for job in jobs if job.outcome is None]:
            self._pass(waiting)
        return tuple(job.outcome for job in jobs if job.outcome is not None)

    def truncate(self, key: int, length: int) -> None:
        """Keep the first ``length`` positions of a session's KV; unknown keys are ignored."""
        self.engine.truncate(key, length)

    def evict(self, key: int) -> None:
        """Drop a session's KV; unknown keys are ignored."""
        self.engine.evict(key)

    def kv_bytes(self) -> int:
        """Bytes held by all KV."""
        return self.engine.kv.bytes_in_use

    # ------------------------------------------------------------------------------------------------ one session

    def _accept(self, work: Work) -> _Job:
        """Check a work against the KV and make room for it; a job that has failed already if that cannot be."""
        ids = work.ids if isinstance(work, Prefill) else work.pending
        job = _Job(work, work.start, tuple(ids), None)
        nodes = 0 if isinstance(work, Prefill) else len(work.draft.ids)
        stop = work.start + len(ids) + nodes
        try:
            self._check(work, ids, stop)
            if isinstance(work, Verify):
                job.rule = self.rules.find(work.rule, work.sampling)
                job.given = read_parameters(job.rule, dict(work.rule.parameters))
            self.engine.kv.reserve(work.key, stop, work.final)
        except (KvFull, OutriderError) as error:
            self._fail(job, error)
        return job

    def _check(self, work: Work, ids: Sequence[int], stop: int) -> None:
        held, target = self.engine.length(work.key), self.engine.target
        if work.start != held:
            raise InvalidField("work.start", f"{work.start}, but the KV holds {held} positions")
        if work.final and held and not self.engine.keeps_final(work.key):
            raise InvalidField("work.final", f"the KV holds {held} positions without their final states")
        if not ids or min(ids) < 0 or max(ids) >= target.vocabulary:
            raise InvalidField(
                "work.ids", f"expected at least one id, all within 0 .. {target.vocabulary - 1}"
            )
        if isinstance(work, Prefill):
            stop_position = stop
        else:
            size = len(work.draft.ids)
            work.draft.validate(vocabulary=target.vocabulary, max_nodes=size, max_depth=size, max_chain=size)
            stop_position = work.start + len(ids) + max(work.draft.depths, default=0)
            self._check_sampling(work, work.start + len(ids))
        if stop_position > target.max_context:
            raise InvalidField("work.ids", f"{stop_position} positions, the target has {target.max_context}")

    def _check_sampling(self, work: Verify, base: int) -> None:
        sampling, vocabulary = work.sampling, self.engine.target.vocabulary
        told = None if work.history is None else work.history.position
        if told != base and (told is not None or sampling.needs_history):
            raise InvalidField("work.history", f"a text of {told} tokens, expected {base}")
        if sampling.logit_bias and sampling.logit_bias[-1][0] >= vocabulary:
            beyond = f"id {sampling.logit_bias[-1][0]} is outside the vocabulary of {vocabulary}"
            raise InvalidField("sampling.logit_bias", beyond)

    def _fail(self, job: _Job, error: Exception) -> None:
        self.engine.evict(job.work.key)
        why = str(error) or type(error).__name__
        refused = error if isinstance(error, InvalidField) and error.field.startswith("draft.") else None
        job.outcome = WorkFailed(job.work.key, why, isinstance(error, KvFull | MemoryError), refused)

    # ------------------------------------------------------------------------------------------------ one pass

    def _pass(self, jobs: list[_Job]) -> None:
        """Advance every job by one piece; if the packed pass breaks, each alone, so that only the culprit fails."""
        needs_hidden = any(job.rule is not None and job.rule.needs_hidden for job in jobs)
        try:
            results = self.engine.forward([job.request() for job in jobs], hidden=needs_hidden)
        except Exception as error:
            if len(jobs) == 1:
                _log.exception("a pass failed for session %d", jobs[0].work.key)
                self._fail(jobs[0], error)
                return
            for job in jobs:
                self._pass([job])
            return
        for job, rows in zip(jobs, results, strict=True):
            try:
                self._advance(job, rows)
            except Exception as error:
                if not isinstance(error, OutriderError):
                    _log.exception("a verdict failed for session %d", job.work.key)
                self._fail(job, error)

    def _advance(self, job: _Job, rows: Rows | None) -> None:
        """Take what a pass gave one job: another piece of context in the KV, or the verdict."""
        if rows is None or isinstance(job.work, Prefill) or job.rule is None:
            piece = min(len(job.left), MAX_LINE)
            job.at += piece
            job.left = job.left[piece:]
            self.engine.keep(job.work.key, job.at)
            if not job.left:
                job.outcome = Prefilled(job.work.key)
            return
        base = job.at + len(job.left)
        nodes = self._nodes(job.work, rows, base)
        decision = job.rule(nodes, job.given)
        told = nodes.log_probs(decision.path, decision.next_id) if job.work.log_probs else ()
        self.engine.keep_path(job.work.key, base, rows, job.work.draft, decision.path)
        job.outcome = Verified(
            job.work.key,
            decision.path,
            decision.next_id,
            decision.near_ties,
            log_probs=told,
            kinds=decision.kinds,
            audit=decision.audit,
        )

    def _nodes(self, work: Verify, rows: Rows, base: int) -> Nodes:
        """What the rule sees. Raises UnusableLogits."""
        logits = rows.logits.numpy()
        if not np.isfinite(logits.max(axis=1)).all():
            raise UnusableLogits("the target's logits are not finite")
        return Nodes(
            draft=work.draft,
            logits=logits,
            sampling=work.sampling,
            length=base,
            exact=rows.exact,
            near_tie_bound=self.near_tie_bound,
            states=None if rows.hidden is None else rows.hidden.float().numpy(),
            coins=Coins(work.coin_key) if work.coin_key else None,
            history=work.history,
            stop_ids=work.stop_ids,
            wants_log_probs=work.log_probs,
        )
