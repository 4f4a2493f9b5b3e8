"""Event logs on disk: what is written is read back; what cannot be is refused with file, line and field."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.client.eventlog_file import EventFile
from outrider.client.events import Label, LinkState
from outrider.netsim.errors import BadConfig
from outrider.netsim.events.reader import BadLog, parse, read
from outrider.netsim.events.schema import (
    KINDS,
    CapacityLine,
    LinkLine,
    RoundLine,
    Run,
    TokensLine,
    TurnLine,
    dumps,
)
from outrider.netsim.events.writer import write
from outrider.shared.errors import ConfigError, ExitCode, exit_code
from tests.netsim.small_log import LINES, RUN

A = Label.ACCEPTED


def text(*lines: dict[str, Any] | str, run: dict[str, Any] | None = None) -> bytes:
    """A log of raw lines after a good first one."""
    head = run or json.loads(dumps(RUN))
    return "".join(
        (each if isinstance(each, str) else json.dumps(each)) + "\n" for each in (head, *lines)
    ).encode()


TURN = {"kind": "turn", "at_s": 0, "turn": 1, "start": 5}


def test_written_then_read_is_equal(tmp_path: Path) -> None:
    """Every kind of line survives the way through a file, by the writer at once and line by line."""
    write(tmp_path / "whole.jsonl", RUN, LINES)
    log = EventFile(tmp_path / "lines.jsonl")
    for line in (RUN, *LINES):
        log.put(line)
    log.close()
    assert {line.KIND for line in (RUN, *LINES)} == set(KINDS)
    for name in ("whole.jsonl", "lines.jsonl"):
        found = read(tmp_path / name)
        assert (found.run, found.lines) == (RUN, LINES)
        assert found.complete and not found.truncated and not found.ignored
    assert (tmp_path / "whole.jsonl").read_bytes() == (tmp_path / "lines.jsonl").read_bytes()


times = st.floats(0, 1e6).map(lambda value: round(value, 6))
links = st.builds(
    LinkLine, at_s=st.just(1.0), state=st.sampled_from(LinkState), note=st.text(), session=st.just("")
)
capacities = st.builds(
    CapacityLine, at_s=st.just(1.0), up_mbit=st.none() | st.floats(0, 1e4), down_mbit=st.none()
)
shown = st.lists(st.sampled_from(Label), max_size=5).map(
    lambda labels: TokensLine(at_s=1.0, start=5, labels=tuple(labels))
)
chains = st.integers(0, 6).map(
    lambda n: RoundLine(
        turn=1,
        round=1,
        sent_s=0.5,
        got_s=1.0,
        nodes=n,
        depth=n,
        parents=tuple(range(n)),
        path=tuple(range(n)),
        kinds=(A,) * n,
        start=5,
    )  # fmt: skip
)


@settings(max_examples=40)
@given(st.lists(links | capacities | shown | chains, max_size=8), st.text(), times)
def test_any_lines_survive(lines: list[Any], name: str, at: float) -> None:
    """Any notes, names and numbers come back as they were, whatever characters they have."""
    run = Run(link=name, started=None, rtt_ms=at)
    turn = TurnLine(at_s=0.0, turn=1, start=5)
    data = "".join(dumps(line) + "\n" for line in (run, turn, *lines)).encode()
    found = parse(data)
    assert (found.run, found.lines) == (run, (turn, *lines))


def test_a_killed_run_loses_its_last_line_only(tmp_path: Path) -> None:
    """Cut anywhere in the last line, the rest is used and the loss is reported; cut between lines, it just ends."""
    path = tmp_path / "log.jsonl"
    write(path, RUN, LINES)
    data = path.read_bytes()
    last = data.rstrip(b"\n").rindex(b"\n") + 1
    for cut in range(last + 1, len(data) - 1):
        found = parse(data[:cut])
        assert found.truncated and found.lines == LINES[:-1] and not found.complete
    assert parse(data[:-1]).lines == LINES  # only the newline is missing
    between = parse(data[:last])
    assert not between.truncated and not between.complete and between.lines == LINES[:-1]


def test_a_broken_line_before_the_last_is_refused() -> None:
    """Damage that no kill explains is not forgiven, nor a cut first line."""
    with pytest.raises(BadLog) as caught:
        parse(text('{"kind": "turn", "at', TURN))
    assert caught.value.line == 2 and "column" in caught.value.name
    with pytest.raises(BadLog):
        parse(dumps(RUN).encode()[:-4])


BAD: list[tuple[str, dict[str, Any] | str, int, str]] = [
    ("no object", "[1]", 2, "text"),
    ("no kind", {"at_s": 0}, 2, "kind"),
    ("a kind nobody knows", {"kind": "mood", "at_s": 0}, 2, "kind"),
    ("a second run", {"kind": "run"}, 2, "kind"),
    ("a field too many", {**TURN, "colour": 1}, 2, "colour"),
    ("a field too few", {"kind": "turn", "at_s": 0, "turn": 1}, 2, "start"),
    ("text for a number", {**TURN, "at_s": "0"}, 2, "at_s"),
    ("a flag for a number", {**TURN, "at_s": True}, 2, "at_s"),
    ("a negative time", {**TURN, "at_s": -0.5}, 2, "at_s"),
    ("half a token", {**TURN, "start": 0.5}, 2, "start"),
    ("NaN", '{"kind":"turn","at_s":NaN,"turn":1,"start":5}', 2, "NaN"),
    ("a number without end", '{"kind":"turn","at_s":1e999,"turn":1,"start":5}', 2, "at_s"),
    ("a field twice", '{"kind":"turn","at_s":0,"at_s":1,"turn":1,"start":5}', 2, "at_s"),
    ("a state nobody knows", {"kind": "link", "at_s": 0, "state": "dreaming"}, 2, "state"),
    ("tokens before a turn", {"kind": "tokens", "at_s": 0, "start": 5, "labels": ["bonus"]}, 2, "kind"),
    ("the third turn first", {**TURN, "turn": 3}, 2, "turn"),
]


@pytest.mark.parametrize(("line", "number", "name"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_lines_are_named(line: dict[str, Any] | str, number: int, name: str) -> None:
    """Each fault is refused at its line and field, with what was expected."""
    with pytest.raises(BadLog) as caught:
        parse(text(line), "ride.jsonl")
    assert (caught.value.path, caught.value.line, caught.value.name) == ("ride.jsonl", number, name)
    assert "expected" in str(caught.value) and f"ride.jsonl, line {number}, {name}" in str(caught.value)
    assert exit_code(caught.value) is ExitCode.CONFIG


def made(**changes: Any) -> RoundLine:
    """A good round of a tree of four, with changes."""
    good = RoundLine(
        turn=1, round=1, sent_s=1, got_s=2, nodes=4, depth=2, parents=(0, 1, 0, 3), path=(2, 3),
        kinds=(A, A, A), start=5,
    )  # fmt: skip
    return replace(good, **changes)


IMPOSSIBLE = {
    "sent_s": made(sent_s=3.0),
    "got_s": made(sent_s=0.0, got_s=0.5),
    "outcome": made(outcome="lost"),
    "parents": made(parents=(0, 1, 4, 3)),
    "depth": made(depth=3),
    "path": made(path=(0, 3)),
    "start": made(start=None),
    "turn": made(turn=2),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_rounds_are_named(name: str) -> None:
    """Times that run back, shapes that are no tree, paths that are none: the field is named; the good round passes."""
    turn = dumps(TurnLine(at_s=1.0, turn=1, start=5))
    assert len(parse(text(turn, dumps(made()))).lines) == 2
    with pytest.raises(BadLog) as caught:
        parse(text(turn, dumps(IMPOSSIBLE[name])))
    assert (caught.value.line, caught.value.name) == (3, name)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (TokensLine(at_s=1.0, start=7, labels=(A,)), "start"),
        (TokensLine(at_s=1.0, start=4, labels=(A,)), "start"),
        (TokensLine(at_s=1.0, start=5, taken_back=2), "taken_back"),
        (TokensLine(at_s=1.0, start=6, taken_back=1), "start"),
        (TokensLine(at_s=1.0, start=5, labels=(A,), pieces=("a", "b")), "pieces"),
        (LinkLine(at_s=0.5, state=LinkState.LATE), "at_s"),
    ],
    ids=["a gap", "before the answer", "more than is shown", "from the middle", "texts", "time runs back"],
)
def test_impossible_displays_are_named(line: TokensLine | LinkLine, name: str) -> None:
    """With one token on display at 5, what cannot follow is refused."""
    turn, one = TurnLine(at_s=1.0, turn=1, start=5), TokensLine(at_s=1.0, start=5, labels=(A,))
    with pytest.raises(BadLog) as caught:
        parse(text(dumps(turn), dumps(one), dumps(line)))
    assert (caught.value.line, caught.value.name) == (4, name)


def test_newer_minor_versions_are_read_and_other_majors_refused() -> None:
    """1.9 may bring fields and kinds, which are passed over; 2.0 and other schemas are refused; no minor means 0."""
    newer = {"kind": "run", "schema": "outrider.events/1.9", "mood": 1}
    found = parse(text({**TURN, "colour": "red"}, {"kind": "mood", "at_s": 0}, run=newer))
    assert found.ignored == 1 and found.lines == (TurnLine(at_s=0.0, turn=1, start=5),)
    assert parse(text(run={"kind": "run", "schema": "outrider.events/1"})).lines == ()
    for schema in ("outrider.events/2.0", "outrider.events", "other/1.0", 1, None):
        with pytest.raises(BadLog) as caught:
            parse(text(run={"kind": "run", "schema": schema}))
        assert (caught.value.line, caught.value.name) == (1, "schema")


@pytest.mark.parametrize("data", [b"", b"\n", b'{"kind":"turn"}\n', b"\xff\xfe\n"])
def test_what_is_no_log_is_refused(data: bytes) -> None:
    """An empty file, a file of something else."""
    with pytest.raises(BadLog) as caught:
        parse(data)
    assert caught.value.line == 1


def test_a_file_that_is_missing_is_bad_configuration(tmp_path: Path) -> None:
    """Named, with the system's reason."""
    with pytest.raises(BadConfig, match="cannot be read"):
        read(tmp_path / "nothing.jsonl")


def test_nothing_is_half_written(tmp_path: Path) -> None:
    """Lines that nobody could read are refused before anything is written, and what was there stays."""
    path = tmp_path / "log.jsonl"
    path.write_text("before")
    with pytest.raises(ValueError, match="line 3, turn"):
        write(path, RUN, [TurnLine(at_s=0.0, turn=1, start=5), replace(made(), turn=2)])
    with pytest.raises(ValueError, match="JSON"):
        write(path, RUN, [CapacityLine(at_s=0.0, up_mbit=float("inf"))])
    with pytest.raises(BadConfig, match="cannot write"):
        write(tmp_path / "no folder" / "log.jsonl", RUN, LINES)
    assert path.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_disk_that_fails_ends_the_log_and_not_the_run(tmp_path: Path) -> None:
    """A full disk is told once; a file that cannot be opened is refused before the run."""
    log = EventFile(Path("/dev/full"))
    log.put(RUN)
    log.put(LINES[0])
    assert "incomplete" in log.failure
    with pytest.raises(ConfigError, match="--events"):
        EventFile(tmp_path / "no folder" / "log.jsonl")


def test_every_field_says_its_unit() -> None:
    """Names end in what they are measured in, so that no reader guesses."""
    numbers = {each.name for kind in KINDS.values() for each in fields(kind) if "float" in str(each.type)}
    assert all(name.endswith(("_s", "_ms", "_mbit")) for name in numbers)
