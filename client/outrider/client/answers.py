"""The answer of one turn as the caller sees it: what is told of it, its display, and its figures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Protocol

from outrider.client.events import Audited, Emit, Finish, LinkState, MachineAction, Relabel, Report, Revise
from outrider.client.stats import TurnStats
from outrider.client.transcript import UNVERIFIED, Piece, Transcript
from outrider.shared.errors import OutriderError
from outrider.shared.frames import DraftFrame, Rule, RuleReport, UpFrame, Verdict
from outrider.shared.rule_names import QUIET
from outrider.shared.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Shown:
    """New tokens on display."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Relabelled:
    """Tokens on display have other labels now."""

    start: int
    count: int


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Tokens that left the display, from the end."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class LinkNote:
    """The link's state, or something to tell the user."""

    state: LinkState
    note: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete. ``verified`` False: its end was not decided by the target."""

    reason: str
    verified: bool
    error: OutriderError | None
    stats: TurnStats
    rule: Rule = field(default_factory=Rule)
    """What the turn was to be judged by."""
    report: RuleReport | None = None
    """The verifier's word on it, if it came."""


SessionEvent = Shown | Relabelled | TakenBack | LinkNote | Finished


class Listener(Protocol):
    """Watches the answers of a session, e.g. to record them; ``now`` is monotonic seconds. It changes nothing."""

    def began(self, start: int, now: float) -> None:
        """A turn begins whose answer stands at positions ``start`` …"""
        ...

    def sent(self, conn: int, frame: UpFrame, now: float) -> None:
        """A frame was handed to the transport."""
        ...

    def judged(self, conn: int, frame: Verdict, stats: TurnStats, now: float) -> None:
        """A verdict was read; the session has not acted on it yet, and need not find it right."""
        ...

    def told(self, event: SessionEvent, transcript: Transcript, now: float) -> None:
        """The caller is told of something; ``transcript`` is the display after it."""
        ...


class Answer:
    """Turns the machine's actions into events for the caller, who reads them from ``queue``."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        start: int,
        stops: Sequence[str],
        now: float,
        rule: Rule | None = None,
        listener: Listener | None = None,
        min_tokens: int = 0,
    ) -> None:
        """``stops`` are looked for behind the first ``min_tokens`` tokens."""
        self.rule = rule or Rule()
        self.report: RuleReport | None = None
        self.awaited: Finish | None = None
        """The end of an answer that is held back for the verifier's report."""
        self.transcript = Transcript(tokenizer, start, stops, min_tokens)
        self.stats = TurnStats(now, prompt_tokens=start)
        self.queue: asyncio.Queue[SessionEvent] = asyncio.Queue()
        self._checked = start
        """Position up to which stop strings were looked for in committed text."""
        self._told_stop: int | None = None
        self._listener = listener
        if listener is not None:
            listener.began(start, now)

    def _tell(self, event: SessionEvent, now: float) -> None:
        self.queue.put_nowait(event)
        if self._listener is not None:
            self._listener.told(event, self.transcript, now)

    def sent(self, conn: int, frame: UpFrame, now: float) -> None:
        """A frame was handed to the transport."""
        if isinstance(frame, DraftFrame):
            self.stats.sent(conn, frame, now)
        if self._listener is not None:
            self._listener.sent(conn, frame, now)

    def judged(self, conn: int, frame: Verdict, now: float) -> None:
        """A verdict was read."""
        self.stats.verdict(conn, frame, now)
        if self._listener is not None:
            self._listener.judged(conn, frame, self.stats, now)

    def take(self, action: MachineAction, now: float) -> None:
        """Carry out what concerns the display; other actions are not its business."""
        match action:
            case Emit():
                self.show(action, now)
            case Relabel():
                self.transcript.relabel(action.start, action.labels, action.log_probs)
                self.stats.kept += len(action.labels)
                self._tell(Relabelled(action.start, len(action.labels)), now)
            case Revise():
                self._told_stop = None
                gone = self.transcript.revise(action.start)
                self.stats.revised += sum(piece.label in UNVERIFIED for piece in gone)
                self._tell(TakenBack(tuple(gone)), now)
            case Report():
                self.stats.link(action.state, now)
                self._tell(LinkNote(action.state, action.note), now)
            case Audited():
                self.report = action.report
                self.give_up(now)
            case Finish() if self._wants_report(action):
                self.awaited = action
            case Finish():
                self.finish(action, now)
            case _:
                pass

    def show(self, action: Emit, now: float) -> None:
        """New tokens came on display."""
        if not action.ids:
            return
        pieces = self.transcript.emit(action.start, action.ids, action.labels, action.log_probs)
        self.stats.shown(action.labels, now)
        self._tell(Shown(tuple(pieces)), now)

    def note(self, state: LinkState, text: str, now: float) -> None:
        """Something to tell the user."""
        self._tell(LinkNote(state, text), now)

    def _wants_report(self, action: Finish) -> bool:
        """Whether the report on the rule is worth waiting for, and will come."""
        return action.verified and self.report is None and self.rule.name not in QUIET

    def give_up(self, now: float) -> None:
        """The end of the answer is told, with a report or without."""
        action, self.awaited = self.awaited, None
        if action is not None:
            self.finish(action, now)

    def finish(self, action: Finish, now: float) -> None:
        """The turn is over: nothing from a stop string on stays, and the figures are complete."""
        self.transcript.close()
        stats, pieces = self.stats, self.transcript.pieces
        stats.finish(now)
        stats.tokens = len(pieces)
        stats.labels = {
            label: sum(p.label is label for p in pieces) for label in dict.fromkeys(p.label for p in pieces)
        }
        self._tell(Finished(action.reason, action.verified, action.error, stats, self.rule, self.report), now)

    def earlier(self, end: Finish, sequence: Sized) -> int | None:
        """Where a stop string ends the sequence, if the commit that completed it has ended the turn further on.

        Without it the ids of an answer would depend on how many of them came at once.
        """
        stop = self.new_stop() if end.verified else None
        if stop is None or stop > len(sequence) or (stop == len(sequence) and end.reason == "stop"):
            return None
        return stop

    def new_stop(self) -> int | None:
        """Length at which a stop string is complete, told once until the text is revised.

        Provisional text is looked through again when it becomes committed: only then does the stop end the turn.
        """
        length = self.transcript.stop_after(self._checked)
        if length is None:
            self._checked = self.transcript.start + self.transcript.verified
        if length == self._told_stop:
            return None
        self._told_stop = length
        return length
