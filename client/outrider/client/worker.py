"""The drafter's thread: everything a drafter is told happens there, in order, so that the event loop never waits.

onnxruntime lets go of the interpreter while it computes; the loop keeps reading the network meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from outrider.client.drafter import Drafter, Proposal
from outrider.client.events import Accept, AddRows, Drafted, Prime, Propose, Rollback

DrafterAction = Prime | Propose | Accept | Rollback | AddRows


class DrafterWorker:
    """Owns a drafter; ``on_drafted`` is called on the loop with each answer."""

    def __init__(self, on_drafted: Callable[[Drafted], None], on_error: Callable[[Exception], None]) -> None:
        self._pool = ThreadPoolExecutor(1, "outrider-drafter")
        self._loop = asyncio.get_running_loop()
        self._on_drafted = on_drafted
        self._on_error = on_error
        self._drafter: Drafter | None = None

    def replace(self, drafter: Drafter) -> None:
        """From now on this one drafts; it has to be primed."""
        self._submit(lambda: setattr(self, "_drafter", drafter))

    def do(self, action: DrafterAction) -> None:
        """Carry out an action after all earlier ones."""
        self._submit(lambda: self._carry_out(action))

    def close(self) -> None:
        """Let go of the thread; what was not begun is not done."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, act: Callable[[], None]) -> None:
        try:
            self._pool.submit(act).add_done_callback(self._report)
        except RuntimeError:  # shut down while the session was leaving
            return

    def _report(self, done: Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, Exception):
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """A drafter that fails once is not asked again: what it holds cannot be trusted any more."""
        self._drafter = None
        self._call(lambda: self._on_error(error))

    def _call(self, act: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act)

    def _carry_out(self, action: DrafterAction) -> None:
        drafter = self._drafter
        match action:
            case Propose():
                self._propose(drafter, action)
            case _ if drafter is None:
                return
            case Prime():
                drafter.begin(action.ids)
            case Accept():
                drafter.accept(action.ids)
            case Rollback():
                drafter.rollback(action.length)
            case AddRows():
                drafter.add_rows(action.plane, action.start, action.rows)

    def _propose(self, drafter: Drafter | None, action: Propose) -> None:
        begun = time.perf_counter()
        proposal, passes, fed = Proposal.empty(), 0, 0
        try:
            if drafter is not None:
                passes, fed = -drafter.counters.passes, -drafter.counters.ingested
                proposal = drafter.propose(action.budget)
                passes, fed = passes + drafter.counters.passes, fed + drafter.counters.ingested
        except Exception as error:  # whatever it was, it is told before the answer that may end the turn
            self._failed(error)
        answer = Drafted(action.base, proposal, time.perf_counter() - begun, max(passes, 0), max(fed, 0))
        self._call(lambda: self._on_drafted(answer))
