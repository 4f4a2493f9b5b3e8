"""How an answer appears: live on a terminal, verified text only in a pipe, or as plain text with marks.

A label is told by colour and by a second sign (bold, underline, italics, or brackets), for readers and terminals
without colours. Text only goes to stdout; states and notes go to stderr.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, TextIO

from outrider.client.answers import Finished, LinkNote, SessionEvent, Shown, TakenBack
from outrider.client.events import Label, LinkState
from outrider.client.transcript import UNVERIFIED, Display, Piece
from outrider.shared.textstream import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

STYLES = {
    Label.ACCEPTED: "green",
    Label.RECOVERED: "bold blue",
    Label.BONUS: "bold cyan",
    Label.RUN_AHEAD: "dim",
    Label.JUDGED: "magenta",
    Label.PROVISIONAL: "italic underline yellow",
    Label.KEPT: "underline magenta",
}
_REFRESH_PER_S = 12
STATES = {
    LinkState.CONNECTING: "connecting",
    LinkState.ONLINE: "online",
    LinkState.LATE: "no answer in time, drafting alone",
    LinkState.OFFLINE: "offline, drafting alone",
}


class View(Protocol):
    """Shows the events of one answer."""

    def show(self, event: SessionEvent, transcript: Display) -> None:
        """Take an event; ``transcript`` is the display after it and perhaps a few more."""
        ...

    def close(self) -> None:
        """Nothing comes after this."""
        ...


class PipeView:
    """Verified text as it becomes verified; the unverified rest at the end, if the turn ends with one."""

    def __init__(
        self, out: TextIO | None = None, err: TextIO | None = None, *, unverified: bool = False
    ) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._unverified = unverified
        """Print unverified tokens too, as they come: nothing will ever take them back (standalone)."""
        self._written = 0

    def show(self, event: SessionEvent, transcript: Display) -> None:
        """Write what has become final."""
        if isinstance(event, Finished):
            text = transcript.text()
        else:
            text = transcript.settled(len(transcript.pieces) if self._unverified else transcript.verified)
        if len(text) > self._written:
            self._out.write(printable(text[self._written :]))
            self._out.flush()
            self._written = len(text)
        if isinstance(event, LinkNote) and event.note:
            print(f"outrider: {event.note}", file=self._err, flush=True)

    def close(self) -> None:
        """End the line."""
        if self._written:
            self._out.write("\n")
            self._out.flush()


class MarkedView:
    """Plain text that tells everything in the order of events: for logs, and for a demo without a terminal."""

    OPEN = {Label.PROVISIONAL: "⟨", Label.KEPT: "⟪"}
    SHUT = {Label.PROVISIONAL: "⟩", Label.KEPT: "⟫"}

    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out or sys.stdout
        self._clock = clock
        self._began = clock()
        self._label: Label | None = None
        self._column = 0

    def show(self, event: SessionEvent, transcript: Display) -> None:
        """Write the event."""
        match event:
            case Shown(pieces):
                for piece in pieces:
                    self._piece(piece)
            case TakenBack(pieces):
                self._line(f"revised: {len(pieces)} tokens taken back: {_quoted(pieces)}")
            case LinkNote(state, note):
                self._line(f"link: {note or STATES[state]}")
            case _:
                pass
        self._out.flush()

    def close(self) -> None:
        """End the line."""
        self._mark(None)
        if self._column:
            self._out.write("\n")
        self._out.flush()

    def _piece(self, piece: Piece) -> None:
        self._mark(piece.label if piece.label in UNVERIFIED else None)
        text = printable(piece.text)
        self._out.write(text)
        self._column = len(text.rpartition("\n")[2]) + (0 if "\n" in text else self._column)

    def _mark(self, label: Label | None) -> None:
        if label is not self._label:
            self._out.write(self.SHUT.get(self._label, "") if self._label else "")
            self._out.write(self.OPEN.get(label, "") if label else "")
            self._label = label

    def _line(self, text: str) -> None:
        self._mark(None)
        self._out.write("\n" if self._column else "")
        self._out.write(f"  [{self._clock() - self._began:6.2f} s] {text}\n")
        self._column = 0


class LiveView:
    """On a terminal: what is settled scrolls away, the last paragraph is repainted while its labels change."""

    def __init__(self, console: Console, *, legend: bool = False, alone: bool = True) -> None:
        """``alone``: whether the device writes without a link."""
        from rich.live import Live

        self._console = console
        self._alone = alone
        self._settled = 0
        """Pieces printed for good."""
        self._state = LinkState.CONNECTING
        self._note = ""
        self._painted_at = 0.0
        if legend:
            console.print(_legend())
        self._live: Live = Live(console=console, refresh_per_second=_REFRESH_PER_S, auto_refresh=False)
        self._live.start()

    def show(self, event: SessionEvent, transcript: Display) -> None:
        """Repaint, at most a dozen times a second."""
        if isinstance(event, LinkNote):
            self._state, self._note = event.state, event.note or self._note
        self._settle(transcript)
        urgent = isinstance(event, Finished | LinkNote | TakenBack)
        if urgent or time.monotonic() - self._painted_at > 1 / _REFRESH_PER_S:
            self._painted_at = time.monotonic()
            self._live.update(self._region(transcript, final=isinstance(event, Finished)), refresh=True)

    def close(self) -> None:
        """Leave what is on display."""
        self._live.stop()

    def _settle(self, transcript: Display) -> None:
        """Print whole verified lines above the live region."""
        pieces = transcript.pieces[self._settled : transcript.standing(transcript.verified)]
        last = max((i for i, piece in enumerate(pieces) if piece.text.endswith("\n")), default=-1)
        if last >= 0:
            text = _styled(pieces[: last + 1])
            text.rstrip()
            self._console.print(text)
            self._settled += last + 1

    def _region(self, transcript: Display, *, final: bool) -> Text:
        from rich.text import Text

        shown = len(transcript.pieces) if final else transcript.standing(len(transcript.pieces))
        text = _styled(transcript.pieces[self._settled : shown])
        if not final:
            state = STATES[self._state] if self._alone else STATES[self._state].partition(",")[0]
            state += f" · {self._note}" if self._note else ""
            text.append_text(Text(f"\n── {state}", style="dim"))
        return text


def _styled(pieces: Iterable[Piece]) -> Text:
    from rich.text import Text

    text = Text()
    for piece in pieces:
        text.append(printable(piece.text), style=STYLES[piece.label])
    return text


def _legend() -> Text:
    from rich.text import Text

    text = Text()
    for label, style in STYLES.items():
        text.append(label.value, style=style).append("  ")
    return text


def _quoted(pieces: Iterable[Piece], most: int = 60) -> str:
    text = printable("".join(piece.text for piece in pieces)).replace("\n", "⏎")
    return repr(text if len(text) <= most else text[:most] + "…")
