"""The one thread that computes.

Everything that touches the target's KV goes through one queue in the table's order: passes, state rows, truncations,
evictions. Results come back as table events. A failure is contained: the sessions of the failed pass lose their KV
(their ids are in the table, so it can be rebuilt) and the thread goes on.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from outrider.cloud.events import (
    EvictKv,
    MakeRows,
    Outcome,
    Prefill,
    RowsDone,
    RunRows,
    RunStep,
    StepDone,
    TruncateKv,
    Verified,
    Verify,
    Work,
    WorkFailed,
)
from outrider.cloud.logs import report
from outrider.cloud.metrics import Metrics

_log = logging.getLogger(__name__)

EngineAction = RunStep | RunRows | TruncateKv | EvictKv
"""What the table asks of the engine."""

EngineEvent = StepDone | RowsDone
"""What comes back."""


class Engine(Protocol):
    """What the runner needs of a target engine. Called from one thread only."""

    def run(self, works: Sequence[Work]) -> Sequence[Outcome]:
        """One packed pass; outcomes in the order of ``works``, a session's failure as `WorkFailed`."""

    def truncate(self, key: int, length: int) -> None:
        """Keep the first ``length`` positions of a session's KV; unknown keys are ignored."""

    def evict(self, key: int) -> None:
        """Drop a session's KV; unknown keys are ignored."""

    def kv_bytes(self) -> int:
        """Bytes held by all KV. May be called from any thread."""


class RowMaker(Protocol):
    """Makes state rows from a session's KV. Called on the engine's thread."""

    def make(self, work: MakeRows) -> tuple[bytes, ...]:
        """Encoded rows, one bytes object per plane; empty when the KV does not hold these positions."""


class Runner:
    """Runs engine actions in order on a thread of its own; ``deliver`` is called there with each result."""

    def __init__(
        self, engine: Engine, rows: RowMaker | None, deliver: Callable[[EngineEvent], None], metrics: Metrics
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._deliver = deliver
        self._metrics = metrics
        self._actions: queue.SimpleQueue[EngineAction | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="outrider-engine", daemon=True)
        self._started = False
        self._keys: set[int] = set()

    def start(self) -> None:
        """Start the thread."""
        self._started = True
        self._thread.start()

    def submit(self, action: EngineAction) -> None:
        """Queue an action. From any thread."""
        self._actions.put(action)

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Finish what is queued, drop all KV and end the thread; False if it did not end in time."""
        if not self._started:
            return True
        self._actions.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while (action := self._actions.get()) is not None:
            match action:
                case RunStep():
                    self._deliver(StepDone(self._step(action.works)))
                case RunRows():
                    self._deliver(RowsDone(action.work, self._make_rows(action.work)))
                case TruncateKv():
                    self._contain(partial(self._engine.truncate, action.key, action.length))
                case EvictKv():
                    self._keys.discard(action.key)
                    self._contain(partial(self._engine.evict, action.key))

        # Another table on the same engine starts its keys anew: it must find nothing under them.
        for key in self._keys:
            self._contain(partial(self._engine.evict, key))

    def _step(self, works: tuple[Work, ...]) -> tuple[Outcome, ...]:
        self._keys.update(work.key for work in works)
        started = time.perf_counter()
        try:
            outcomes = tuple(self._engine.run(works))
        except Exception as error:
            self._report("step", error)
            outcomes = tuple(self._lost(work, error) for work in works)
        seconds = time.perf_counter() - started
        self._observe(works, outcomes, seconds)
        micros = int(seconds * 1e6)
        return tuple(
            replace(outcome, compute_us=micros)
            if isinstance(outcome, Verified) and not outcome.compute_us
            else outcome
            for outcome in outcomes
        )

    def _lost(self, work: Work, error: Exception) -> WorkFailed:
        # The pass broke off somewhere in the middle: what the KV holds now is unknown, so it must go.
        self._contain(partial(self._engine.evict, work.key))
        return WorkFailed(work.key, type(error).__name__, isinstance(error, MemoryError))

    def _make_rows(self, work: MakeRows) -> tuple[bytes, ...]:
        if self._rows is None:
            return ()
        started = time.perf_counter()
        try:
            return self._rows.make(work)
        except Exception as error:
            # Rows are help, not text: a session without them drafts worse and says nothing wrong.
            self._report("rows", error)
            return ()
        finally:
            self._metrics.count("rows_seconds", time.perf_counter() - started)

    def _contain(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self._report("kv", error)

    def _observe(self, works: Sequence[Work], outcomes: Sequence[Outcome], seconds: float) -> None:
        count = self._metrics.count
        count("forwards_total")
        sessions = len({work.key for work in works})
        count("batch_size", sessions)
        if sessions > 1:
            count("packed_forwards_total")
        if all(isinstance(work, Prefill) for work in works):
            count("prefill_seconds", seconds)
        else:
            count("verify_seconds", seconds)
            count("draft_tokens_total", sum(len(w.draft.ids) for w in works if isinstance(w, Verify)))
        for outcome in outcomes:
            if isinstance(outcome, WorkFailed):
                count("work_failures_total", why="no_room" if outcome.no_room else "error")

    def _report(self, where: str, error: Exception) -> None:
        self._metrics.count("internal_errors_total", where=where)
        report(_log, "engine failure", error, phase=where)
