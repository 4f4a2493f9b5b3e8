"""A whole device in a few lines, for tests of the system: a session over real gRPC, with any drafter and plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outrider.client.answers import Finished, SessionEvent, Shown, TakenBack
from outrider.client.channel import ChannelSettings
from outrider.client.drafter import Drafter
from outrider.client.events import Label
from outrider.client.journal import restore
from outrider.client.journal_file import JournalFile, read_journal
from outrider.client.machine_settings import Offline, Reconcile
from outrider.client.plan import FixedPacing, Plan
from outrider.client.session import Session, SessionConfig
from outrider.client.transcript import UNVERIFIED
from outrider.shared.frames import UNLIMITED, Rule
from outrider.shared.sampling import LogProbs, Sampling
from outrider.shared.tokenizer import Tokenizer

PATIENCE_S = 60.0
"""Nothing here takes longer; a test that does has hung."""


def chain(depth: int, rounds: int = 1, run_ahead: int = 0) -> Plan:
    """Chains of ``depth`` ids."""
    return Plan(depth, depth, run_ahead=run_ahead, rounds=rounds, reason="test")


def tree(nodes: int, depth: int) -> Plan:
    """Trees."""
    return Plan(depth, nodes, tree=True, reason="test")


STREAM = Plan(0, 0, run_ahead=UNLIMITED, reason="test")


@dataclass(slots=True)
class Answer:
    """What a caller of the session has seen."""

    ids: tuple[int, ...] = ()
    labels: tuple[Label, ...] = ()
    log_probs: tuple[LogProbs | None, ...] = ()
    text: str = ""
    finished: Finished | None = None
    events: list[SessionEvent] = field(default_factory=list)
    verified_once: dict[int, int] = field(default_factory=dict)
    """Position → id as first shown verified: must never change."""

    @property
    def reason(self) -> str:
        """How it ended."""
        return self.finished.reason if self.finished else "never"


@dataclass(slots=True, kw_only=True)
class Device:
    """Settings of one session and the questions asked in it."""

    address: str
    tokenizer: Tokenizer
    drafter: Drafter | None = None
    plan: Plan = STREAM
    bundle: bytes = b""
    num_planes: int = 0
    offline: Offline = Offline.AUTO
    reconcile: Reconcile = Reconcile.REVISE
    journal: Path | None = None
    resume: bool = False
    on_shown: Callable[[int], None] | None = None
    """Called with the number of tokens on display, each time it grows."""
    stops: Sequence[str] = ()
    log_probs: bool = False
    """Ask how likely each token was."""
    rule: Rule | None = None
    """What verdicts are reached by; None = the exact one."""
    tls_ca: Path | None = None
    """The authority of the verifier's certificate; None = plain text."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Dials of the machine (`MachineSettings`) that differ from a session's own."""

    def ask(self, prompt: Sequence[int], max_new: int = 32, sampling: Sampling | None = None) -> Answer:
        """One question in a session of its own."""
        return asyncio.run(self.ask_async(prompt, max_new, sampling))

    async def ask_async(
        self, prompt: Sequence[int], max_new: int = 32, sampling: Sampling | None = None
    ) -> Answer:
        """As `ask`, in the caller's event loop."""
        async with asyncio.timeout(PATIENCE_S), self.session() as session:
            return await self.turn(session, prompt, max_new, sampling)

    def go_on(self) -> Answer:
        """Resume the journal."""
        return asyncio.run(self._go_on())

    async def _go_on(self) -> Answer:
        async with asyncio.timeout(PATIENCE_S), self.session() as session:
            answer = Answer()
            async for event in session.resume(self.stops or None):
                self._note(session, answer, event)
            return answer

    async def turn(
        self, session: Session, prompt: Sequence[int], max_new: int, sampling: Sampling | None = None
    ) -> Answer:
        """One turn of an open session."""
        answer = Answer()
        events = session.generate(
            prompt,
            max_new=max_new,
            sampling=sampling,
            stops=self.stops,
            log_probs=self.log_probs,
            rule=self.rule,
        )
        async for event in events:
            self._note(session, answer, event)
        return answer

    def session(self) -> Session:
        """A session under the configuration, with other dials where asked for."""
        session = Session(self.config())
        session.machine.settings = replace(session.machine.settings, **self.settings)
        return session

    def config(self) -> SessionConfig:
        """The session's configuration."""
        restored = restore(read_journal(self.journal)) if self.journal and self.resume else None
        return SessionConfig(
            tokenizer=self.tokenizer,
            pacing=FixedPacing(self.plan),
            channel=ChannelSettings(server=self.address, tls_ca=self.tls_ca),
            drafter=self.drafter,
            bundle=self.bundle,
            num_planes=self.num_planes,
            offline=self.offline,
            reconcile=self.reconcile,
            journal=JournalFile(self.journal) if self.journal else None,
            restored=restored,
            seed=1,
        )

    def _note(self, session: Session, answer: Answer, event: SessionEvent) -> None:
        transcript = session.transcript
        if transcript is None:
            return
        answer.events.append(event)
        for piece in transcript.pieces[: transcript.verified]:
            known = answer.verified_once.setdefault(piece.position, piece.token_id)
            if known != piece.token_id and piece.label not in UNVERIFIED:
                raise AssertionError(f"verified token {known} at {piece.position} became {piece.token_id}")
        if isinstance(event, Shown) and self.on_shown is not None:
            self.on_shown(len(transcript.pieces))
        answer.ids, answer.text = transcript.ids, transcript.text()
        answer.log_probs = tuple(piece.log_probs for piece in transcript.pieces)
        answer.labels = tuple(piece.label for piece in transcript.pieces)
        if isinstance(event, Finished):
            answer.finished = event


def provisional(answer: Answer) -> int:
    """Tokens shown before they were verified."""
    return sum(p.label is Label.PROVISIONAL for e in answer.events if isinstance(e, Shown) for p in e.pieces)


def taken_back(answer: Answer) -> int:
    """Tokens that left the display again."""
    return sum(len(event.pieces) for event in answer.events if isinstance(event, TakenBack))
