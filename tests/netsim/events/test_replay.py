"""A recorded run shown again: in order, in its own time, and with nothing that was not recorded."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from outrider.client.answers import Finished, SessionEvent
from outrider.client.transcript import Display
from outrider.client.views import LiveView, MarkedView, View
from outrider.netsim.events.order import when
from outrider.netsim.events.reader import EventLog, parse
from outrider.netsim.events.replay import MARKS, Replay, has_text, play, sessions
from outrider.netsim.events.schema import CapacityLine, Line, LinkLine, Run, TokensLine, TurnLine, dumps
from outrider.netsim.events.writer import write
from tests.netsim.program import simulator
from tests.netsim.small_log import LINES, RUN, A, P

LOG = EventLog("log", RUN, LINES)
MUTE = EventLog(
    "log", RUN, tuple(replace(line, pieces=None) if isinstance(line, TokensLine) else line for line in LINES)
)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let it pass."""
        self.slept.append(seconds)
        self.now += seconds


class Spy:
    """A view that remembers what it was told, and when."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.told: list[tuple[float, SessionEvent]] = []
        self.text = ""
        self.closed = 0

    def show(self, event: SessionEvent, transcript: Display) -> None:
        """Remember."""
        self.told.append((self.clock.now - 100.0, event))
        if isinstance(event, Finished):
            self.text = "".join(piece.text for piece in transcript.pieces)

    def close(self) -> None:
        """Count."""
        self.closed += 1


def played(log: EventLog, speed: float = 1.0, session: str = "") -> tuple[list[Spy], list[str], Clock]:
    """What the views of each turn and the reader were told."""
    clock = Clock()
    spies: list[Spy] = []
    said: list[str] = []

    def view() -> View:
        spies.append(Spy(clock))
        return spies[-1]

    shown = Replay(view, said.append)
    asyncio.run(play(log, shown, session=session, speed=speed, clock=clock, sleep=clock.sleep))
    return spies, said, clock


@pytest.mark.parametrize("speed", [1.0, 4.0, 0.5])
def test_the_order_and_the_times_are_the_logs(speed: float) -> None:
    """Every line is taken in the log's order when its own time, divided by the speed, has come."""
    taken: list[tuple[float, object]] = []
    clock = Clock()

    class Watched(Replay):
        def take(self, line: Line) -> None:
            taken.append((clock.now - 100.0, line))

    shown = Watched(lambda: Spy(clock), lambda _: None)
    asyncio.run(play(LOG, shown, session="", speed=speed, clock=clock, sleep=clock.sleep))
    assert [line for _, line in taken] == list(LINES)
    assert [at for at, _ in taken] == pytest.approx([when(line) / speed for line in LINES])
    assert sum(clock.slept) == pytest.approx(when(LINES[-1]) / speed)


def test_a_slow_display_catches_up() -> None:
    """Where showing takes longer than the gap to the next line, nothing is slept and nothing is left out."""
    clock = Clock()
    count = 0

    class Slow(Replay):
        def take(self, line: Line) -> None:
            nonlocal count
            count += 1
            clock.now += 10.0

    asyncio.run(play(LOG, Slow(lambda: Spy(clock), print), session="", clock=clock, sleep=clock.sleep))
    assert count == len(LINES) and clock.slept == []


def test_each_turn_has_its_view_and_its_words() -> None:
    """Two turns, two views, each closed once; the summary counts what is on display and what was taken back."""
    spies, said, _ = played(LOG)
    assert [spy.closed for spy in spies] == [1, 1]
    assert said == [
        "turn 1: code-1 · code",
        "6 tokens in 3.40 s (length): 4 accepted, 1 recovered, 1 bonus; 2 taken back",
        "turn 2: math-1 · math",
        "1 tokens in 0.40 s (stop): 1 recovered; 0 taken back",
    ]


def test_text_comes_back_as_recorded() -> None:
    """With text, the display ends with the answer's own; relabelled tokens keep their text."""
    spies, _, _ = played(LOG)
    assert has_text(LOG) and [spy.text for spy in spies] == ["abé\ncdx", "7"]


def test_without_text_there_are_only_labels() -> None:
    """Without text every token is its label's letter, also after it got another label."""
    spies, _, _ = played(MUTE)
    assert not has_text(MUTE) and [spy.text for spy in spies] == ["aaraab", "r"]
    assert len(set(MARKS.values())) == len(MARKS)


def test_a_letter_of_text_is_not_taken_for_a_mark() -> None:
    """A token whose text is "p" and that is provisional keeps its text when it is accepted."""
    lines = (
        TurnLine(at_s=0.0, turn=1, start=0),
        TokensLine(at_s=0.1, start=0, labels=(P,), pieces=("p",)),
        TokensLine(at_s=0.2, start=0, labels=(A,)),
        *LINES[15:16],
    )
    spies, _, _ = played(EventLog("log", RUN, lines))
    assert spies[0].text == "p"


def test_one_device_of_several_is_shown() -> None:
    """Lines of other devices are passed over; the link's capacity is everybody's."""
    other = tuple(replace(line, session="b") for line in LINES if not isinstance(line, CapacityLine | Run))
    both = EventLog("log", RUN, tuple(sorted((*LINES, *other), key=when)))
    assert sessions(both) == ("", "b")
    assert played(both)[1] == played(LOG)[1] == played(both, session="b")[1]


def test_the_views_of_the_device_take_it() -> None:
    """Plain marks by the recorded clock; colours and labels on a terminal; no control code of a note gets through."""
    out = io.StringIO()
    noted = (*LINES[:7], LinkLine(at_s=1.1, state=LINES[5].state, note="go\x1b[2J"), *LINES[7:])  # type: ignore[union-attr]
    shown = Replay(lambda: MarkedView(out, lambda: shown.now), lambda text: print(text, file=out))
    clock = Clock()
    log = EventLog("log", RUN, noted)
    asyncio.run(play(log, shown, session="", clock=clock, sleep=clock.sleep))
    assert "⟨cdef⟩" in out.getvalue()
    assert "[  1.00 s] link: no answer in time" in out.getvalue()
    assert "[  3.10 s] revised: 2 tokens taken back: 'ef'" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system="standard")
    live = Replay(lambda: LiveView(console, legend=True), lambda text: None)
    asyncio.run(play(LOG, live, session="", clock=clock, sleep=clock.sleep))
    assert "provisional" in screen.getvalue() and "\x1b[32m" in screen.getvalue()


def test_the_command_shows_a_log_and_refuses_what_is_none(tmp_path: Path) -> None:
    """A killed run's log is shown and its loss told; a bad log, speed or device ends with 78 and one line."""
    path = tmp_path / "ride.jsonl"
    write(path, RUN, LINES)
    path.write_bytes(path.read_bytes()[:-20])
    done = simulator("replay", str(path), "--speed", "1000")
    assert done.returncode == 0, done.stderr
    assert "── chain · 4g-bad · moa · virtual time" in done.stdout and "⟨cdef⟩" in done.stdout
    assert "the last line was cut short" in done.stderr and "the run was not finished" in done.stdout
    bad = tmp_path / "bad.jsonl"
    bad.write_text(dumps(RUN) + "\n" + json.dumps({"kind": "turn", "at_s": 0, "turn": 1}) + "\n")
    for arguments, word in (
        ((str(bad),), "bad.jsonl, line 2, start"),
        ((str(path), "--speed", "0"), "--speed"),
        ((str(path), "--session", "nobody"), "--session"),
    ):
        refused = simulator("replay", *arguments)
        assert refused.returncode == 78 and word in refused.stderr and refused.stderr.count("\n") == 1


def test_a_log_that_only_begins_is_shown() -> None:
    """A run killed before its first turn has nothing to show and is no error."""
    assert played(parse((dumps(RUN) + "\n").encode()))[1] == []
