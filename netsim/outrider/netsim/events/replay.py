"""A recorded run on display again: the views of the device, by the recorded clock.

A log without text has only labels: every token is then a letter, so that nothing is shown that was not recorded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

from outrider.client.answers import Finished, LinkNote, Relabelled, SessionEvent, Shown, TakenBack
from outrider.client.events import Label, LinkState
from outrider.client.stats import TurnStats
from outrider.client.transcript import Display, Piece
from outrider.client.views import View
from outrider.netsim.events.order import when
from outrider.netsim.events.reader import EventLog
from outrider.netsim.events.schema import CapacityLine, EndLine, Line, LinkLine, TokensLine, TurnLine
from outrider.shared.textstream import printable

MARKS = {
    Label.ACCEPTED: "a",
    Label.RECOVERED: "r",
    Label.BONUS: "b",
    Label.RUN_AHEAD: "c",
    Label.JUDGED: "j",
    Label.PROVISIONAL: "p",
    Label.KEPT: "k",
}
"""What stands for a token whose text was not recorded; c is the cloud's own, run ahead."""
NOBODY = -1
"""The id of a replayed token: logs have none."""


def sessions(log: EventLog) -> tuple[str, ...]:
    """The devices in a log, in the order in which they begin."""
    return tuple(dict.fromkeys(line.session for line in log.lines if isinstance(line, TurnLine)))


def has_text(log: EventLog) -> bool:
    """Whether the answer's text was recorded."""
    return any(isinstance(line, TokensLine) and line.pieces is not None for line in log.lines)


class Replay:
    """Turns lines back into what a view is told. ``make_view`` opens one for each turn, ``say`` takes plain words."""

    def __init__(self, make_view: Callable[[], View], say: Callable[[str], None]) -> None:
        self.now = 0.0
        """The recorded clock, seconds since the run's start."""
        self._make_view = make_view
        self._say = say
        self._view: View | None = None
        self._display = Display(0)
        self._link = LinkState.CONNECTING
        self._mute: set[int] = set()
        """Indices of tokens whose text was not recorded."""
        self._taken_back = 0
        self._began = 0.0
        self._dead = False

    def take(self, line: Line) -> None:
        """Show a line; those that are not about the display only move the clock."""
        self.now = when(line)
        match line:
            case TurnLine():
                self._begin(line)
            case TokensLine():
                self._tokens(line)
            case LinkLine(state=state, note=note):
                self._link = state
                self._show(LinkNote(state, printable(note)))
            case CapacityLine(up_mbit=up, down_mbit=down):
                dead = 0 in (up, down)
                if dead is not self._dead:
                    self._dead = dead
                    self._show(
                        LinkNote(self._link, "the link carries nothing" if dead else "the link carries")
                    )
            case EndLine():
                self._show(
                    Finished(line.reason, line.verified, None, TurnStats(self._began, ended_at=self.now))
                )
                self.close()
                self._say(self._summary(line))
            case _:
                pass

    def close(self) -> None:
        """Leave what is on display."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def _begin(self, line: TurnLine) -> None:
        self.close()
        name = " · ".join(part for part in (line.prompt, line.category) if part)
        self._say(printable(f"turn {line.turn}" + (f": {name}" if name else "")))
        self._display = Display(line.start)
        self._mute.clear()
        self._taken_back, self._began = 0, self.now
        self._view = self._make_view()
        self._show(LinkNote(self._link, ""))

    def _tokens(self, line: TokensLine) -> None:
        pieces, first = self._display.pieces, line.start - self._display.start
        if line.taken_back:
            gone = tuple(pieces[first:])
            del pieces[first:]
            self._mute.difference_update(range(first, first + len(gone)))
            self._taken_back += len(gone)
            self._show(TakenBack(gone))
        texts = line.pieces if line.pieces is not None else (None,) * len(line.labels)
        old = 0
        for offset, (label, text) in enumerate(zip(line.labels, texts, strict=True)):
            at = first + offset
            if at < len(pieces):
                old += 1
                pieces[at] = replace(
                    pieces[at], label=label, text=self._text(at, label, text, pieces[at].text)
                )
            else:
                pieces.append(Piece(line.start + offset, NOBODY, label, self._text(at, label, text, None)))
        if old:
            self._show(Relabelled(line.start, old))
        if len(line.labels) > old:
            self._show(Shown(tuple(pieces[first + old :])))

    def _text(self, at: int, label: Label, said: str | None, before: str | None) -> str:
        """The text of a token: what the line says, else what it had, else the mark of its label."""
        if said is not None:
            self._mute.discard(at)
            return said
        if before is None:
            self._mute.add(at)
        return MARKS[label] if before is None or at in self._mute else before

    def _show(self, event: SessionEvent) -> None:
        if self._view is not None:
            self._view.show(event, self._display)

    def _summary(self, line: EndLine) -> str:
        labels = Counter(piece.label for piece in self._display.pieces)
        told = ", ".join(f"{labels[label]} {label.value}" for label in Label if labels[label])
        end = "" if line.verified else ", its end not verified"
        return (
            f"{len(self._display.pieces)} tokens in {self.now - self._began:.2f} s ({printable(line.reason)}{end}): "
            f"{told or 'none'}; {self._taken_back} taken back"
        )


async def play(
    log: EventLog,
    replay: Replay,
    *,
    session: str,
    speed: float = 1.0,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Show the lines of one device in the log's order, each when its time has come, ``speed`` times as fast."""
    began = clock()
    try:
        for line in log.lines:
            if getattr(line, "session", session) != session:
                continue
            ahead = began + when(line) / speed - clock()
            if ahead > 0:
                await sleep(ahead)
            replay.take(line)
    finally:
        replay.close()
