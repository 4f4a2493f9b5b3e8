"""What a scenario file says, and every way in which it can be refused: line, column, what was expected."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from outrider.netsim.faults import Cut, Outage, OutageProcess, Reset, Scheduled
from outrider.netsim.profiles import PROFILES
from outrider.netsim.scenario import BadScenario, DeviceSpec, parse, read
from outrider.netsim.scenario.model import QUESTION
from outrider.netsim.settings import LinkSettings
from outrider.shared.errors import ExitCode, exit_code

FULL = """
name = "commuter"
summary = "to work"
seed = 7
after = "end"
cut_at_token = 64

[device]
mode = "tree"
drafter = "ngram"
depth = 4
nodes = 9
rule = "lenience:epsilon=0.1"
max_tokens = 99
temperature = 0.5
patience = "1.5m"

[prompts]
inline = ["one", "two", "three"]
take = 2

[[phases]]
name = "station"
for = "45s"
link = "5g-nsa"
outages = "preset"

[[phases]]
for = "20s"
link = { preset = "4g-bad", rtt_ms = 140, loss = 0 }
outages = { gap = "8s", median = "2s", tail = "15s" }
faults = [{ kind = "reset", at = "4s" }, { kind = "outage", at = "500ms", for = "3s", dir = "up" }]

[[phases]]
for = "1m"
link = { rtt_ms = 60, jitter_ms = 4, down_mbit = 20, up_mbit = 5 }
outages = "none"

[[faults]]
kind = "cut"
token = 20
dir = "down"
bytes = 300
then = "hold"
"""


def test_a_full_scenario_means_what_it_says() -> None:
    """Every key arrives, in seconds, shares and settings."""
    got = parse(FULL)
    assert (got.name, got.summary, got.seed, got.after) == ("commuter", "to work", 7, "end")
    assert got.device == DeviceSpec(
        mode="tree", drafter="ngram", depth=4, nodes=9, rule="lenience:epsilon=0.1", max_tokens=99,
        temperature=0.5, patience_s=90.0,
    )  # fmt: skip
    assert [question.text for question in got.questions] == ["one", "two"]
    assert [(p.name, p.duration_s) for p in got.phases] == [
        ("station", 45.0),
        ("phase 2", 20.0),
        ("phase 3", 60.0),
    ]
    first, second, third = got.phases
    assert (first.link, first.outages) == (PROFILES["5g-nsa"].link, PROFILES["5g-nsa"].outages)
    assert second.link == PROFILES["4g-bad"].link.override(rtt_ms=140, loss=0)
    assert second.outages == OutageProcess(8, 2, 15)
    assert second.faults == (Scheduled(Reset(), at_s=4), Scheduled(Outage("up"), at_s=0.5, for_s=3))
    assert third.link == LinkSettings.of(rtt_ms=60, jitter_ms=4, down_mbit=20, up_mbit=5)
    assert third.outages is None
    assert got.faults == (Scheduled(Cut("down", 300, "hold"), token=20), Scheduled(Outage(), token=64))


def test_a_link_is_all_that_has_to_be_said() -> None:
    """One phase without a duration goes on for ever; the rest has defaults."""
    got = parse('[[phases]]\nlink = "4g-good"\n', Path("rides/bus.toml"))
    assert (got.name, got.after, got.seed, got.faults, got.device) == ("bus", "stay", 0, (), DeviceSpec())
    assert [question.text for question in got.questions] == [QUESTION]
    assert [(p.name, p.duration_s, p.outages) for p in got.phases] == [("phase 1", None, None)]
    assert parse('[[phases]]\nlink = "4g-good"\nfor = "1s"\n').after == "repeat"


PHASE = '[[phases]]\nlink = "wifi"\n'

BAD = [
    ("seed = \n", 1, 8, "expected TOML: Invalid value"),
    ('name = "x\n', 1, 10, "expected TOML: "),
    ("[[phases]]\nlink = [1,\n", 3, 1, "expected TOML: "),
    ("seed = 1\nseed = 2\n", 2, 9, "expected TOML: Cannot overwrite a value"),
    ("", 1, 1, "expected at least one [[phases]]"),
    ("phases = 3\n", 1, 10, "expected tables: [[phases]], once for each, got 3"),
    (PHASE + 'sed = 1\n', 3, 1, "got sed"),
    ("sede = 7\n" + PHASE, 1, 1, "did you mean seed?"),
    (PHASE + "\n[device]\nmax_token = 3\n", 5, 1, "did you mean max_tokens?"),
    ("seed = -1\n" + PHASE, 1, 8, "expected a whole number of at least 0, got -1"),
    ("seed = true\n" + PHASE, 1, 8, "expected a whole number of at least 0, got true"),
    ('cut_at_token = "9"\n' + PHASE, 1, 16, 'expected a whole number of at least 0, got "9"'),
    ("name = 3\n" + PHASE, 1, 8, "expected text in quotes, got 3"),
    ("[[phases]]\n", 1, 3, "expected a key link in this table"),
    ('[[phases]]\nlink = "4g-goood"\n', 2, 8, "did you mean 4g-good?"),
    ('[[phases]]\nlink = "flight"\n', 2, 8, "expected one of wifi, "),
    ("[[phases]]\nlink = 4\n", 2, 8, "expected a preset's name or a table of figures, got 4"),
    ("[[phases]]\nlink = {}\n", 2, 8, "expected at least one of preset, rtt_ms"),
    ("[[phases]]\nlink = { rtt_mss = 4 }\n", 2, 10, "did you mean rtt_ms?"),
    ("[[phases]]\nlink = { rtt_ms = 20, loss = 0.7 }\n", 2, 30, "expected otherwise: expected a share in [0, 0.5)"),
    ("[[phases]]\nlink = { rtt_ms = nan }\n", 2, 19, "expected a number of at least 0, got nan"),
    ("[[phases]]\nlink = { jitter_ms = 5 }\n", 2, 22, "jitter is relative to the delay"),
    ("[[phases]]\nlink = { rtt_ms = 9, up_mbit = 0 }\n", 2, 32, "expected Mbit/s above 0"),
    ("[[phases.link]]\nrtt_ms = 3\n", 1, 3, "expected tables: [[phases]], once for each, got a table"),
    (PHASE + 'for = "45"\n', 3, 7, 'expected a duration with its unit, e.g. "300ms"'),
    (PHASE + "for = 45\n", 3, 7, "expected a duration with its unit"),
    (PHASE + 'for = "0s"\n', 3, 7, "expected a duration above 0"),
    (PHASE + PHASE, 1, 3, 'expected for = "…": only the last phase may be endless'),
    ('after = "end"\n' + PHASE, 1, 1, "expected no such key: the last phase has no duration"),
    ('after = "ende"\n' + PHASE + 'for = "1s"\n', 1, 9, 'expected one of repeat, end, stay, got "ende"'),
    (PHASE + "outages = 3\n", 3, 11, 'expected "none", "preset" or a table of gap, median, tail, got 3'),
    (PHASE + 'outages = "preset"\n', 3, 11, "wifi has none"),
    ("[[phases]]\nlink = { rtt_ms = 1 }\noutages = 'preset'\n", 3, 11, "this link is no preset"),
    (PHASE + 'outages = { gap = "8s", median = "2s" }\n', 3, 1, "expected a key tail in this table"),
    (PHASE + 'outages = { gap = "8s", median = "2s", tail = "1s" }\n', 3, 47, "at least the median of 2 s"),
    (PHASE + 'outages = { gap = "0s", median = "2s", tail = "3s" }\n', 3, 19, "expected a duration above 0"),
    (PHASE + 'faults = [{ kind = "boom", at = "1s" }]\n', 3, 20, "expected one of outage, blackhole"),
    (PHASE + 'faults = [{ kind = "reset" }]\n', 3, 11, "expected the moment of the reset: at"),
    (PHASE + 'faults = [{ kind = "reset", token = 3 }]\n', 3, 29, "faults by token belong to the ride"),
    (PHASE + 'for="5s"\nfaults = [{ kind = "reset", at = "5s" }]\n', 4, 34, "expected a moment within the phase's 5 s"),
    (PHASE + 'faults = [{ kind = "reset", at = "1s", for = "1s" }]\n', 3, 46, "a reset is over at once"),
    (PHASE + 'faults = [{ kind = "reset", at = "1s", dir = "up" }]\n', 3, 40, "expected no such key with this kind"),
    (PHASE + 'faults = [{ kind = "cut", at = "1s", dir = "up" }]\n', 3, 11, "expected bytes: a cut needs bytes="),
    (PHASE + 'faults = [{ kind = "outage", at = "1s", for = 3 }]\n', 3, 47, "expected a duration with its unit"),
    (PHASE + '[[faults]]\nkind = "reset"\nat = "1s"\ntoken = 3\n', 3, 3, "at or token, not both"),
    (PHASE + '[[faults]]\nkind = "reset"\n', 3, 3, "at or token"),
    (PHASE + '[device]\nmode = "fast"\n', 4, 8, "expected one of stream, unary, chain, tree, auto"),
    (PHASE + "[device]\ndepth = 3\n", 4, 1, "expected no fixed depth"),
    (PHASE + '[device]\nmode = "chain"\ndepth = 3\nnodes = 4\n', 6, 9, 'expected with mode = "tree" and a depth'),
    (PHASE + '[device]\nrule = "lenience:x"\n', 4, 8, "expected a rule, NAME or NAME:PARAMETER=VALUE"),
    (PHASE + "[device]\nmax_tokens = 0\n", 4, 14, "expected a whole number from 1 to"),
    (PHASE + "[device]\ntemperature = -1\n", 4, 15, "expected a number from 0 to 100, got -1"),
    (PHASE + "device = 3\n", 3, 1, "got device"),
    ("device = 3\n" + PHASE, 1, 10, "expected a table with mode, drafter"),
    ("[prompts]\ninline = []\n" + PHASE, 2, 10, "expected an array of at least one text"),
    ('[prompts]\ninline = ["a", 3]\n' + PHASE, 2, 16, "expected text in quotes, got 3"),
    ('[prompts]\ninline = ["a"]\npath = "x"\n' + PHASE, 3, 1, "expected inline prompts or a path, not both"),
    ('[prompts]\npath = "nowhere.jsonl"\n' + PHASE, 2, 8, "expected a file of prompts"),
    ('[prompts]\ninline = ["a"]\ntake = 2\n' + PHASE, 3, 8, "expected at most the 1 prompts"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "expected"), BAD)
def test_every_refusal_names_line_column_and_what_was_expected(
    text: str, line: int, column: int, expected: str
) -> None:
    """The place is exact, the message says what should stand there, and the exit code is 78."""
    with pytest.raises(BadScenario) as caught:
        parse(text, Path("ride.toml"))
    error = caught.value
    assert (error.path, error.line, error.column) == (Path("ride.toml"), line, column), str(error)
    assert expected in error.expected
    assert str(error).startswith(f"ride.toml:{line}:{column}: expected ")
    assert exit_code(error) is ExitCode.CONFIG


def test_windows_line_ends_change_no_place() -> None:
    """A file written elsewhere is refused at the same place."""
    text = (PHASE + "\n[device]\nmax_token = 3\n").replace("\n", "\r\n")
    with pytest.raises(BadScenario) as caught:
        parse(text)
    assert (caught.value.line, caught.value.column) == (5, 1)


@pytest.mark.parametrize(
    ("raw", "line", "column", "expected"),
    [
        (b'seed = 1\nname = "\xff"\n', 2, 9, "expected UTF-8 text"),
        (None, 1, 1, "expected a file that can be read"),
    ],
)
def test_what_cannot_be_read_is_refused_as_well(
    tmp_path: Path, raw: bytes | None, line: int, column: int, expected: str
) -> None:
    """No such file, and bytes that are no text."""
    path = tmp_path / "ride.toml"
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(BadScenario) as caught:
        read(path)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert caught.value.expected.startswith(expected)


ROWS = [
    {"task_id": "T/0", "prompt": "write"},
    {"question_id": 81, "category": "math", "turns": ["first", "second"]},
    {"question": "how many?"},
    {"instruction": "translate", "input": "this"},
]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.json"])
def test_prompts_come_from_a_file_beside_the_scenario(tmp_path: Path, name: str) -> None:
    """Every known kind of row; the first user message counts."""
    lines = "\n".join(json.dumps(row) for row in ROWS) if "jsonl" in name else json.dumps(ROWS)
    raw = lines.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    got = parse(f'[prompts]\npath = "{name}"\n' + PHASE, tmp_path / "ride.toml").questions
    assert [(q.name, q.text, q.category) for q in got] == [
        ("rows/T/0", "write", "rows"),
        ("rows/81", "first", "math"),
        ("rows/3", "how many?", "rows"),
        ("rows/4", "translate\n\nthis", "rows"),
    ]


def test_prompts_are_taken_at_even_distances(tmp_path: Path) -> None:
    """`take` spreads over the file; a text file is one prompt."""
    (tmp_path / "many.jsonl").write_text("".join(json.dumps({"prompt": f"p{n}"}) + "\n" for n in range(10)))
    got = parse('[prompts]\npath = "many.jsonl"\ntake = 3\n' + PHASE, tmp_path / "ride.toml").questions
    assert [q.text for q in got] == ["p0", "p3", "p6"]
    (tmp_path / "one.txt").write_text("a long\nprompt\n")
    alone = parse('[prompts]\npath = "one.txt"\n' + PHASE, tmp_path / "ride.toml").questions
    assert [q.text for q in alone] == ["a long\nprompt"]


@pytest.mark.parametrize(
    ("content", "line", "column"),
    [
        ('{"prompt": "a"}\n{"prompt": }\n', 2, 12),
        ('{"prompt": "a"}\n\n{"answer": "b"}\n', 3, 1),
        ('{"turns": []}\n', 1, 1),
        ("[1]\n", 1, 1),
        ("\n", 1, 1),
    ],
)
def test_a_bad_row_is_named_by_its_own_file_and_line(
    tmp_path: Path, content: str, line: int, column: int
) -> None:
    """The error is about the prompts, not about the scenario that names them."""
    (tmp_path / "bad.jsonl").write_text(content)
    with pytest.raises(BadScenario) as caught:
        parse('[prompts]\npath = "bad.jsonl"\n' + PHASE, tmp_path / "ride.toml")
    assert (caught.value.path.name, caught.value.line, caught.value.column) == ("bad.jsonl", line, column)
