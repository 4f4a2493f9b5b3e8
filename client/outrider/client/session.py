"""One conversation of one device: the machine in its world of sockets, files, a drafter and clocks.

::

    async with Session(config) as session:
        async for event in session.generate(tokenizer.chat(messages), max_new=128):
            ...

What a round does is in `machine.py`; here events go in and actions are carried out, in order, on one event loop.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from outrider.client.answers import Answer, Finished, Listener, SessionEvent
from outrider.client.channel import ChannelSettings
from outrider.client.drafter import Drafter
from outrider.client.events import (
    Accept,
    AddRows,
    Begin,
    BundleReady,
    Closed,
    Dial,
    Emit,
    Fetch,
    Finish,
    HangUp,
    Label,
    MachineAction,
    MachineEvent,
    Persist,
    Persisted,
    PersistFailed,
    Prime,
    Propose,
    Received,
    Rollback,
    Send,
    StopAt,
    Tick,
)
from outrider.client.journal import Restored
from outrider.client.journal_file import JournalFile
from outrider.client.links import Link, route_of
from outrider.client.machine import SessionMachine
from outrider.client.machine_settings import MachineSettings, Offline, Reconcile
from outrider.client.pacing import SpokenPacing
from outrider.client.plan import Pacing
from outrider.client.rules import AUTO, asked_rule
from outrider.client.text import LABELS
from outrider.client.transcript import UNVERIFIED, Transcript
from outrider.client.worker import DrafterWorker
from outrider.shared.errors import OutriderError
from outrider.shared.frames import Fingerprints, Rule, Verdict
from outrider.shared.sampling import Sampling
from outrider.shared.tokenizer import Tokenizer

if TYPE_CHECKING:
    from outrider.client.bundle import Bundle

SPARE_IDS = 4096
"""A target rounds its embedding up: it may have this many ids that its tokenizer does not know."""
REPORT_S = 2.0
"""Longest wait for the report on a rule once the text is complete."""
LEAVE_S = 0.5
"""Longest wait for streams to end in good order when a session is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """What a session needs; ``channel`` may be absent only with ``Offline.ALWAYS``."""

    tokenizer: Tokenizer
    pacing: Pacing
    channel: ChannelSettings | None = None
    drafter: Drafter | None = None
    bundle: bytes = b""
    """SHA-256 of the bundle that ``drafter`` comes from; empty when it reads no state rows."""
    num_planes: int = 0
    offline: Offline = Offline.AUTO
    reconcile: Reconcile = Reconcile.REVISE
    journal: JournalFile | None = None
    restored: Restored | None = None
    fetch: Callable[[bytes], Awaitable[Bundle]] | None = None
    """Fetches a bundle in the background (see `fetching.py`); None = drafts as it is."""
    bulk_window_bytes: int = 131_072
    seed: int | None = None
    """Of the back-off's jitter; None draws one."""
    listener: Listener | None = None


class Session:
    """See the module. One turn at a time; not for use from several tasks at once."""

    def __init__(self, config: SessionConfig) -> None:
        self.config = config
        session_id = config.restored.session_id if config.restored else secrets.token_bytes(16)
        self.machine = SessionMachine(
            MachineSettings(
                session_id=session_id,
                offline=config.offline,
                reconcile=config.reconcile,
                journal=config.journal is not None,
                fingerprints=Fingerprints(tokenizer=config.tokenizer.sha256),
                vocabulary=config.tokenizer.vocabulary + SPARE_IDS,
                fetch_bundle=config.fetch is not None,
                bulk_window_bytes=config.bulk_window_bytes,
            ),
            SpokenPacing(config.pacing, self._note),
            random.Random(config.seed),
            config.restored,
        )
        self._route = route_of(session_id)
        self._events: deque[MachineEvent] = deque()
        self._busy = False
        self._links: dict[int, Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._answer: Answer | None = None
        self._failure: Exception | None = None

    # ------------------------------------------------------------------------------------------------------ lifetime

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._worker = DrafterWorker(self.feed, self._drafter_failed)
        if self.config.drafter is not None:
            self._use(self.config.drafter, self.config.bundle, self.config.num_planes)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave in good order, but never wait for a dead link."""
        if self._timer is not None:
            self._timer.cancel()
        links = list(self._links.values())
        for link in links:
            link.hang_up(cancel=False)
        if links:
            waits = [asyncio.create_task(link.ended()) for link in links]
            await asyncio.wait(waits, timeout=LEAVE_S)
            for link in links:
                link.hang_up(cancel=True)
            await asyncio.gather(*waits)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._worker.close()
        if self.config.journal is not None:
            self.config.journal.close()

    # --------------------------------------------------------------------------------------------------------- turns

    @property
    def length(self) -> int:
        """Tokens of the conversation on display, prompts included."""
        return self.machine.displayed

    @property
    def display_ids(self) -> tuple[int, ...]:
        """The ids of the conversation on display, prompts included."""
        machine = self.machine
        return (*machine.sequence.ids, *machine.tail.ids[: machine.tail.shown])

    @property
    def transcript(self) -> Transcript | None:
        """The answer of the latest turn."""
        return self._answer.transcript if self._answer else None

    async def generate(
        self,
        append_ids: Sequence[int],
        *,
        keep: int | None = None,
        max_new: int = 256,
        sampling: Sampling | None = None,
        stops: Sequence[str] = (),
        log_probs: bool = False,
        rule: Rule | None = None,
    ) -> AsyncIterator[SessionEvent]:
        """Continue the first ``keep`` tokens (default: all) with ``append_ids`` and yield what the target answers.

        The text ends before the first of ``stops``, the ids after the token that completes it. ``log_probs``: pieces
        that the target has decided say how likely it found them. ``rule`` None: greedy at temperature 0, else coupled.
        Ends with `Finished`. Leaving the iteration early stops the turn where the display stands.
        """
        sampling = sampling or Sampling()
        kept = self.length if keep is None else keep
        rule = rule or asked_rule(AUTO, sampling)
        self._answer = self._begun(kept + len(append_ids), stops, rule, sampling.min_tokens)
        self.feed(
            Begin(
                keep=kept,
                append_ids=tuple(append_ids),
                max_new=max_new,
                stop_ids=self.config.tokenizer.stop_ids,
                sampling=sampling,
                rule=rule,
                log_probs=log_probs,
                stops=tuple(stops),
            )
        )
        async for event in self._yielded(self._answer):
            yield event

    async def resume(self, stops: Sequence[str] | None = None) -> AsyncIterator[SessionEvent]:
        """Go on with the turn that a journal left unfinished; what it had shown comes first.

        ``stops`` are those it began with unless others are given.
        """
        machine, turn, restored = self.machine, self.machine.turn, self.config.restored
        stops = machine.stops if stops is None else stops
        start, least = (turn.generated_from, turn.sampling.min_tokens) if turn else (0, 0)
        self._answer = self._begun(start, stops, turn.rule if turn else None, least)
        if restored is not None:
            self._show_restored(self._answer, restored)
        self.feed(Tick())
        if machine.finished:
            reason = (restored.end if restored else None) or "stop"
            verified = all(piece.label not in UNVERIFIED for piece in self._answer.transcript.pieces)
            self._answer.finish(Finish(reason, verified), self._now())
        async for event in self._yielded(self._answer):
            yield event

    def _begun(self, start: int, stops: Sequence[str], rule: Rule | None, least: int) -> Answer:
        """An answer without a token yet."""
        return Answer(self.config.tokenizer, start, stops, self._now(), rule, self.config.listener, least)

    def stop(self, reason: str = "cancelled") -> None:
        """End the turn with what is on display."""
        if self._answer is not None and not self.machine.finished:
            self.feed(StopAt(self.machine.displayed, reason))

    async def _yielded(self, answer: Answer) -> AsyncIterator[SessionEvent]:
        try:
            while True:
                event = await answer.queue.get()
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self.stop()

    def _show_restored(self, answer: Answer, restored: Restored) -> None:
        start = answer.transcript.start
        ids = restored.sequence.ids[start:]
        kinds = [restored.kinds.get(start + i) for i in range(len(ids))]
        labels = [Label.KEPT if kind is None else LABELS[kind] for kind in kinds]
        told = tuple(restored.log_probs.get(start + i) for i in range(len(ids)))
        answer.show(Emit(start, tuple(ids), tuple(labels), told), self._now())
        shown = tuple(restored.tail.ids[: restored.tail.shown])
        answer.show(Emit(start + len(ids), shown, (Label.PROVISIONAL,) * len(shown)), self._now())

    # -------------------------------------------------------------------------------------------------------- events

    def _now(self) -> float:
        return time.monotonic()

    def feed(self, event: MachineEvent) -> None:
        """Let the machine handle an event, and what follows from it, before anything else happens."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                event = self._events.popleft()
                self._observe(event)
                for action in self.machine.handle(event, self._now()):
                    self._carry_out(action)
                self._look_for_stop()
        finally:
            self._busy = False
        self._set_timer()

    def _observe(self, event: MachineEvent) -> None:
        if self._answer is not None and isinstance(event, Received) and isinstance(event.frame, Verdict):
            self._answer.judged(event.conn, event.frame, self._now())
        if isinstance(event, Closed):
            self._links.pop(event.conn, None)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wake_at = self.machine.wake_at()
        if wake_at is not None:
            self._timer = self._loop.call_later(max(wake_at - self._now(), 0.0), self.feed, Tick())

    def _count(self, up: int, down: int) -> None:
        if self._answer is not None:
            self._answer.stats.bytes_up += up
            self._answer.stats.bytes_down += down

    # ------------------------------------------------------------------------------------------------------- actions

    def _carry_out(self, action: MachineAction) -> None:
        match action:
            case Prime() | Propose() | Accept() | Rollback() | AddRows():
                self._worker.do(action)
            case Send():
                self._send(action)
            case Dial() if self.config.channel is not None:
                self._links[action.conn] = Link(
                    action, self.config.channel, self._route, self.feed, self._count
                )
            case HangUp():
                link = self._links.get(action.conn)
                if link is not None:
                    link.hang_up(action.cancel)
            case Persist():
                self._persist(action)
            case Fetch():
                self._spawn(self._fetch(action.sha256))
            case Finish() if self._answer and (stop := self._answer.earlier(action, self.machine.sequence)):
                self._events.append(StopAt(stop, "stop", amends=True))
            case _ if self._answer is not None:
                self._answer.take(action, self._now())
                if isinstance(action, Finish) and self._answer.awaited is not None:
                    answer = self._answer
                    self._loop.call_later(REPORT_S, lambda: answer.give_up(self._now()))
            case _:
                pass

    def _send(self, action: Send) -> None:
        link = self._links.get(action.conn)
        if link is None:
            return
        if self._answer is not None:
            self._answer.sent(action.conn, action.frame, self._now())
        link.send(action.frame)

    def _look_for_stop(self) -> None:
        """Stop strings are the device's business: they end committed text, and pause provisional text."""
        if self._answer is None or self.machine.finished:
            return
        length = self._answer.new_stop()
        if length is not None:
            self._events.append(StopAt(length, "stop"))

    # ------------------------------------------------------------------------------------------- journal and bundles

    def _persist(self, action: Persist) -> None:
        journal = self.config.journal
        if journal is None:
            self._events.append(Persisted(action.seq))
            return
        try:
            journal.append(action.record)
            if action.barrier:
                journal.flush()
        except OSError as error:
            self._events.append(PersistFailed(action.seq, str(error)))
        else:
            self._events.append(Persisted(action.seq))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(self, sha256: bytes) -> None:
        if self.config.fetch is None:
            return
        try:
            bundle = await self.config.fetch(sha256)
            if bundle.sha256 == self.machine.bundle:
                return
            drafter = await asyncio.to_thread(bundle.drafter)
        except (OutriderError, OSError) as error:
            if not self.machine.bundle:
                self._note(f"no drafter for this verifier yet: {error}")
            return
        self._note(f"drafting with the verifier's own bundle ({bundle.kind}) from now on")
        self._use(drafter, bundle.sha256, len(bundle.planes))

    def _use(self, drafter: Drafter, sha256: bytes, num_planes: int) -> None:
        self._worker.replace(drafter)
        self.feed(BundleReady(sha256, num_planes, drafter.confidence))

    def _drafter_failed(self, error: Exception) -> None:
        self._failure = error
        self._note(f"the drafter failed, going on without it ({type(error).__name__}: {error})")

    def _note(self, text: str) -> None:
        if self._answer is not None:
            self._answer.note(self.machine.link, text, self._now())
