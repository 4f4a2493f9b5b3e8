"""`outrider-sim sweep` as its users meet it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.netsim.events.reader import read
from tests.netsim.program import exit_code

GRID = [
    "--rtt-ms",
    "0,40,150",
    "--mbit",
    "10",
    "--verify-ms",
    "30",
    "--tau",
    "2,3",
    "--tokens",
    "48",
    "--answers",
    "2",
]


def test_the_same_seed_gives_the_same_bytes() -> None:
    """Two processes, jitter, loss and outages included: one JSON object each, byte for byte equal."""
    link = ["--profile", "train", "--outages", "--tau", "3"]
    words = ["sweep", *link, "--answers", "2", "--seed", "7", "--json"]
    program = [sys.executable, "-m", "outrider.netsim.cli", *words]
    first, second = (subprocess.run(program, capture_output=True, check=True).stdout for _ in range(2))
    assert first == second
    cells = json.loads(first.splitlines()[-1])["cells"]
    assert {cell["mode"] for cell in cells} == {"stream", "chain", "tree", "auto"}
    assert all(cell["verified"] == 2 * 128 for cell in cells)


def test_break_even_is_marked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Near the verifier drafting wins, far from it streaming does; in between lies the round trip that is named."""
    assert exit_code("sweep", *GRID, "--json", monkeypatch=monkeypatch) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["cells"]) == 3 * 2 * 4
    trees = [cell for cell in told["cells"] if cell["mode"] == "tree" and cell["tau_asked"] == 3]
    assert [cell["beats_streaming"] for cell in trees] == [True, True, False]
    level = next(one for one in told["break_even"] if one["mode"] == "tree" and one["tau_asked"] == 3)
    assert 40 < level["rtt_ms"][0] < 150
    for cell in told["cells"]:
        if cell["mode"] == "stream":
            assert cell["gain"] == 1 and not cell["beats_streaming"]
        assert cell["gain"] == pytest.approx(cell["tokens_per_s"] / cell["streaming_per_s"], abs=1e-5)


def test_as_fast_is_not_faster(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a round trip a call a token is streaming; whatever the last digits of the two rates, it does not win."""
    for verify_ms in ("22", "30", "36", "59"):
        words = ("--rtt-ms", "0", "--mode", "stream,unary", "--verify-ms", verify_ms, "--tau", "2")
        assert exit_code("sweep", *words, "--json", monkeypatch=monkeypatch) == 0
        unary = next(c for c in json.loads(capsys.readouterr().out)["cells"] if c["mode"] == "unary")
        assert (round(unary["gain"], 5), unary["beats_streaming"]) == (1, False)


def test_tables_for_people_and_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Markdown with the break-even lines, CSV with every field of every cell."""
    assert exit_code("sweep", *GRID, "--out", str(tmp_path / "a.csv"), monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "draws level at" in shown
    assert "**" in shown
    with (tmp_path / "a.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24
    assert {"rtt_ms", "tokens_per_s", "gap_p95_s", "beats_streaming"} <= set(rows[0])
    assert exit_code("sweep", *GRID, "--out", str(tmp_path / "a.md"), monkeypatch=monkeypatch) == 0
    assert (tmp_path / "a.md").read_text(encoding="utf-8") == shown


def test_event_log_of_one_answer_and_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulated run writes a log that the reader takes, and its rounds serve as recorded acceptance."""
    log = tmp_path / "run.jsonl"
    one = ["--rtt-ms", "30", "--alpha", "0.6", "--tokens", "400", "--seed", "3"]
    assert exit_code("sweep", *one, "--mode", "chain", "--events", str(log), monkeypatch=monkeypatch) == 0
    told = read(log)
    assert told.complete
    assert told.run.virtual
    assert told.run.mode == "chain"
    capsys.readouterr()
    again = ["--recorded", str(log), "--rtt-ms", "30", "--tokens", "400", "--mode", "chain", "--json"]
    assert exit_code("sweep", *again, monkeypatch=monkeypatch) == 0
    cell = json.loads(capsys.readouterr().out)["cells"][0]
    assert cell["tau"] == pytest.approx(2.3, abs=0.4)


def test_a_measured_drafter_on_a_measured_verifier(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acceptance, step times and rows from a table of drafters, passes from a cost curve."""
    row = {
        "name": "a",
        "kind": "moa",
        "temperature": 0.0,
        "step_ms": 4.0,
        "tree_pass_ms": 6.0,
        "row_bytes": 500,
    }
    row |= {"acceptance": [0.5, 0.6, None], "tau_chain6": 1.9, "tau_tree24": 2.7}
    (tmp_path / "drafters.json").write_text(json.dumps({"rows": [row]}), encoding="utf-8")
    curve = {"widths": [1, 8, 64], "costs_us": [40000, 41000, 90000], "prefill_us_per_token": 2000}
    (tmp_path / "cost.json").write_text(json.dumps(curve), encoding="utf-8")
    words = ["--drafters", f"{tmp_path / 'drafters.json'}:a", "--cost", str(tmp_path / "cost.json"), "--json"]
    assert exit_code("sweep", *words, "--rtt-ms", "0", monkeypatch=monkeypatch) == 0
    cells = {cell["mode"]: cell for cell in json.loads(capsys.readouterr().out)["cells"]}
    assert cells["stream"]["forward_ms_per_token"] == pytest.approx(41, abs=2)
    assert cells["tree"]["bytes_down_per_token"] > 500
    assert cells["tree"]["beats_streaming"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rtt-ms", "10,x"], "expected numbers with commas between, got 'x'"),
        (["--rtt-ms", "-5"], "expected numbers from 0, got -5"),
        (["--mbit", "0"], "expected numbers above 0, got 0"),
        (["--tau", "9"], "chains of 6 emit 1 up to (not including) 7, got 9"),
        (["--alpha", "1.5"], "expected a share in [0, 1), got 1.5"),
        (["--tau", "3", "--alpha", "0.5"], "acceptance is given once"),
        (["--mode", "both"], "expected one of stream, unary, chain, tree, auto, got 'both'"),
        (["--profile", "moon"], "expected one of"),
        (["--outages"], "profile loopback has no outages"),
        (["--tokens", "0"], "expected a number from 1"),
        (["--draft-ms", "0"], "expected milliseconds above 0"),
        (["--cost", "nowhere.json"], "cannot read nowhere.json"),
        (["--drafters", "nowhere"], "expected FILE:NAME"),
        (["--out", "cells.txt"], "expected a name that ends in .csv or .md"),
        (["--events", "log.jsonl"], "give single values and one mode"),
    ],
)
def test_bad_values_say_what_was_expected(
    words: list[str],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit code 78, one line that names what was expected, nothing printed or written."""
    monkeypatch.chdir(tmp_path)
    assert exit_code("sweep", *words, monkeypatch=monkeypatch) == 78
    shown = capsys.readouterr()
    assert expected in " ".join(shown.err.split())
    assert not shown.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "line 1, column 2: expected JSON"),
        ("{}", "expected widths, costs_us and prefill_us_per_token"),
        (
            '{"widths": [8, 1], "costs_us": [1, 2], "prefill_us_per_token": 1}',
            "expected rising widths from 1 on",
        ),
        ('{"widths": [1], "costs_us": [0], "prefill_us_per_token": 1}', "each with a cost above 0"),
    ],
)
def test_bad_cost_curves_are_refused(
    text: str,
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the file, and where in it."""
    (tmp_path / "cost.json").write_text(text, encoding="utf-8")
    assert exit_code("sweep", "--cost", str(tmp_path / "cost.json"), monkeypatch=monkeypatch) == 78
    assert expected in " ".join(capsys.readouterr().err.split())
