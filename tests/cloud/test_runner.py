"""The engine's thread: order, containment, counters."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from outrider.cloud.events import (
    EvictKv,
    MakeRows,
    Outcome,
    Prefill,
    Prefilled,
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
from outrider.cloud.metrics import Metrics
from outrider.cloud.runner import EngineEvent, Runner
from outrider.shared.draft import Draft
from outrider.shared.frames import RowEncoding, Rule
from outrider.shared.sampling import Sampling

CANARY = "canary-51b2"


class NotingEngine:
    """Notes what it is asked, and on which thread; fails when told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.threads: set[int] = set()
        self.fail: Exception | None = None

    def run(self, works: Sequence[Work]) -> Sequence[Outcome]:
        self._note("run", *(work.key for work in works))
        return [Prefilled(w.key) if isinstance(w, Prefill) else Verified(w.key, (), 7) for w in works]

    def truncate(self, key: int, length: int) -> None:
        self._note("truncate", key, length)

    def evict(self, key: int) -> None:
        self.calls.append(("evict", key))

    def kv_bytes(self) -> int:
        return 0

    def make(self, work: MakeRows) -> tuple[bytes, ...]:
        self._note("rows", work.start, work.stop)
        return (b"rows",)

    def _note(self, *call: object) -> None:
        self.threads.add(threading.get_ident())
        self.calls.append(call)
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error


@contextmanager
def running(engine: NotingEngine, metrics: Metrics) -> Iterator[tuple[Runner, Callable[[], EngineEvent]]]:
    """A started runner and a way to wait for its next result."""
    events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
    runner = Runner(engine, engine, events.put, metrics)
    runner.start()
    try:
        yield runner, lambda: events.get(timeout=20)
    finally:
        assert runner.stop()


def verify(key: int, drafted: int = 3) -> Verify:
    """A work with a chain."""
    return Verify(key, 0, (1,), Draft.chain(tuple(range(drafted))), Sampling(), Rule())


def test_actions_run_in_order_on_one_thread() -> None:
    """Passes, rows, truncations and evictions keep the table's order, and nothing runs on the caller's thread."""
    engine = NotingEngine()
    with running(engine, Metrics()) as (runner, result):
        rows = MakeRows(1, 1, 0, 2, False, RowEncoding.INT8)
        for action in (RunStep((verify(1),)), TruncateKv(1, 4), RunRows(rows), EvictKv(2)):
            runner.submit(action)
        assert isinstance(result(), StepDone)
        assert result() == RowsDone(rows, (b"rows",))
        assert runner.stop()
    assert engine.calls == [("run", 1), ("truncate", 1, 4), ("rows", 0, 2), ("evict", 2), ("evict", 1)]
    assert len(engine.threads) == 1 and threading.get_ident() not in engine.threads


def test_a_failed_pass_costs_its_sessions_their_kv_and_nothing_else() -> None:
    """Every session of the pass is told, its KV is dropped, and the next pass runs."""
    engine, metrics = NotingEngine(), Metrics()
    engine.fail = RuntimeError(CANARY)
    with running(engine, metrics) as (runner, result):
        runner.submit(RunStep((verify(1), verify(2))))
        assert result() == StepDone((WorkFailed(1, "RuntimeError"), WorkFailed(2, "RuntimeError")))
        runner.submit(RunStep((verify(3),)))
        done = result()
        assert ("evict", 3) not in engine.calls
    assert isinstance(done, StepDone) and isinstance(done.outcomes[0], Verified)
    assert ("evict", 1) in engine.calls and ("evict", 2) in engine.calls
    assert metrics.value("internal_errors_total", where="step") == 1
    assert metrics.value("work_failures_total", why="error") == 2


def test_running_out_of_memory_is_told_apart() -> None:
    """A MemoryError is a matter of room, which eviction can mend."""
    engine = NotingEngine()
    engine.fail = MemoryError()
    with running(engine, Metrics()) as (runner, result):
        runner.submit(RunStep((verify(1),)))
        assert result() == StepDone((WorkFailed(1, "MemoryError", no_room=True),))


def test_failures_of_rows_and_kv_are_contained() -> None:
    """Rows that cannot be made are empty; a failing truncation does not stop the thread."""
    engine, metrics = NotingEngine(), Metrics()
    with running(engine, metrics) as (runner, result):
        work = MakeRows(1, 1, 0, 2, True, RowEncoding.INT8)
        engine.fail = ValueError(CANARY)
        runner.submit(RunRows(work))
        assert result() == RowsDone(work, ())
        engine.fail = ValueError(CANARY)
        runner.submit(TruncateKv(1, 1))
        runner.submit(RunStep((verify(1),)))
        assert isinstance(result(), StepDone)
    assert metrics.value("internal_errors_total", where="rows") == 1
    assert metrics.value("internal_errors_total", where="kv") == 1


def test_passes_with_several_sessions_are_counted() -> None:
    """Only a pass that carries two or more sessions counts as packed; its time is measured."""
    metrics = Metrics()
    with running(NotingEngine(), metrics) as (runner, result):
        runner.submit(RunStep((verify(1), verify(2, drafted=5))))
        runner.submit(RunStep((verify(1),)))
        runner.submit(RunStep((Prefill(1, 0, (1, 2)),)))
        packed = result()
        result(), result()
    assert isinstance(packed, StepDone)
    assert all(isinstance(outcome, Verified) for outcome in packed.outcomes)
    assert metrics.value("forwards_total") == 3 and metrics.value("packed_forwards_total") == 1
    assert metrics.value("draft_tokens_total") == 11
    assert metrics.value("verify_seconds") == 2 and metrics.value("prefill_seconds") == 1


def test_without_a_row_maker_rows_are_empty() -> None:
    """A server without a drafter answers a request for rows with none."""
    events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
    runner = Runner(NotingEngine(), None, events.put, Metrics())
    runner.start()
    work = MakeRows(1, 1, 0, 2, True, RowEncoding.INT8)
    runner.submit(RunRows(work))
    assert events.get(timeout=20) == RowsDone(work, ())
    assert runner.stop()
