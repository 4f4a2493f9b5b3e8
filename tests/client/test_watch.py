"""Watching an answer: when the user is told that nothing comes, and when it ends for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from outrider.client.answers import Finished, LinkNote, SessionEvent
from outrider.client.commands import watch
from outrider.client.events import LinkState
from outrider.client.stats import TurnStats
from outrider.client.transcript import Display

WAIT_S, PATIENCE_S = 30.0, 2.0


@dataclass
class Machine:
    """Knows the state of the link."""

    link: LinkState = LinkState.OFFLINE


@dataclass
class FakeSession:
    """Plays what happens to the link; ``stopped`` is the reason somebody gave."""

    transcript: Display = field(default_factory=lambda: Display(0))
    machine: Machine = field(default_factory=Machine)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: str = ""

    def stop(self, reason: str) -> None:
        """As the real one: the answer ends, with this reason."""
        self.stopped = reason
        self.ended.set()


@dataclass
class NoteView:
    """Keeps the words for the user."""

    notes: list[str] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)

    def show(self, event: SessionEvent, transcript: Display) -> None:
        """Of all events only these."""
        if isinstance(event, LinkNote) and event.note:
            self.notes.append(event.note)
            self.told.set()

    def close(self) -> None:
        """Nothing is open."""


def run(patience_s: float, play: Any) -> tuple[FakeSession, NoteView]:
    """Watch what ``play`` yields."""

    async def watched() -> tuple[FakeSession, NoteView]:
        session, view = FakeSession(), NoteView()
        async with asyncio.timeout(WAIT_S):
            await watch(session, play(session, view), view, (patience_s, "unreachable"))  # type: ignore[arg-type]
        return session, view

    return asyncio.run(watched())


def test_told_first_and_ended_then() -> None:
    """Half way through the patience a word, at its end the reason; both once, however the link's state changes."""

    async def play(session: FakeSession, view: NoteView) -> AsyncIterator[SessionEvent]:
        for state in (LinkState.LATE, LinkState.OFFLINE, LinkState.CONNECTING):
            yield LinkNote(state, "")
        await session.ended.wait()
        yield Finished("unreachable", False, None, TurnStats(0.0))

    session, view = run(0.4, play)
    assert view.notes == ["nothing from the verifier for 0.2 s; the answer ends without it in 0.2 s"]
    assert session.stopped == "unreachable"


def test_who_comes_back_is_announced_and_the_answer_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told that nothing came, the user is told the end of it too, and nothing is left that would end the answer."""

    async def play(session: FakeSession, view: NoteView) -> AsyncIterator[SessionEvent]:
        yield LinkNote(LinkState.OFFLINE, "")
        await view.told.wait()
        yield LinkNote(LinkState.ONLINE, "")
        await asyncio.sleep(PATIENCE_S + 0.2)
        yield Finished("length", True, None, TurnStats(0.0))

    # Long before the end: that a busy machine is late with both timers says nothing.
    monkeypatch.setattr("outrider.client.commands.WORD_S", 0.05)
    session, view = run(PATIENCE_S, play)
    assert [note.partition(" for ")[0] for note in view.notes] == [
        "nothing from the verifier", "the verifier is back",
    ]  # fmt: skip
    assert session.stopped == ""


def test_a_short_gap_is_not_worth_a_word() -> None:
    """Back before anything was said: nothing is said."""

    async def play(session: FakeSession, view: NoteView) -> AsyncIterator[SessionEvent]:
        yield LinkNote(LinkState.LATE, "")
        yield LinkNote(LinkState.ONLINE, "")
        yield Finished("length", True, None, TurnStats(0.0))

    session, view = run(WAIT_S, play)
    assert (view.notes, session.stopped) == ([], "")
