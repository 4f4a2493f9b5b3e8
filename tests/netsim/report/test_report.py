"""`outrider-sim report`: the same logs give the same bytes, small files, and nothing at all from a bad log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.netsim.errors import BadConfig
from outrider.netsim.events.reader import BadLog
from outrider.netsim.events.schema import CapacityLine, TokensLine, TurnLine
from outrider.netsim.events.writer import write
from outrider.netsim.report.make import load, plain, report
from outrider.netsim.report.make import write as write_report
from tests.netsim.program import simulator
from tests.netsim.small_log import LINES, RUN, A

CELLS = {
    "cells": [
        {"mode": mode, "rtt_ms": rtt, "tokens_per_s": rate}
        for mode, rates in (("stream", (30, 30, 29)), ("tree", (60, 35, 10)), ("auto", (60, 36, 30)))
        for rtt, rate in zip((0, 50, 200), rates, strict=True)
    ]
}
FIGURES = {"rtt", "gaps", "bytes", "tau", "calls", "ride-small", "ride-stream"}


def lay(folder: Path) -> list[Path]:
    """A chain's log, a stream's without rounds or capacity, and a sweep, in a folder."""
    small, stream = folder / "small.jsonl", folder / "stream.jsonl"
    write(small, RUN, LINES)
    shown = [line for line in LINES if isinstance(line, TurnLine | TokensLine) or line.KIND == "end"]
    write(stream, replace(RUN, mode="stream", link="a $ in \\ it", rtt_ms=None), shown)
    (folder / "grid.json").write_text(json.dumps(CELLS))
    return [small, stream]


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """The inputs, to be changed at will."""
    return lay(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Their report."""
    folder = tmp_path_factory.mktemp("report")
    return report(load(lay(folder)), [folder / "grid.json"])


def test_the_same_logs_give_the_same_bytes(made: dict[str, bytes], logs: list[Path], tmp_path: Path) -> None:
    """Tables, PNG and SVG, twice; every figure is there, none is above 80 kB, no SVG has a date."""
    first = made
    assert first == report(load(logs), [tmp_path / "grid.json"])
    drawn = {name.rpartition(".")[0] for name in first if name.endswith(".svg")}
    assert drawn == FIGURES and drawn == {name[:-4] for name in first if name.endswith(".png")}
    assert all(len(content) < 80_000 for content in first.values())
    assert all(content.startswith(b"\x89PNG") for name, content in first.items() if name.endswith(".png"))
    for name, content in first.items():
        if name.endswith(".svg"):
            assert b"dc:date" not in content and b"<svg" in content
    text = first["rtt.svg"].decode()
    assert "round trip of the link (ms)" in text and "tokens/s" in text and "even with streaming at" in text
    assert "a $ in \\ it" in first["ride-stream.svg"].decode()


def test_another_log_gives_other_bytes(made: dict[str, bytes], logs: list[Path]) -> None:
    """Negative control: one token more is seen in the tables and in the figures."""
    before = made
    lines = [*LINES[:-1], TokensLine(at_s=4.35, start=21, labels=(A,)), LINES[-1]]
    write(logs[0], RUN, lines)
    after = report(load(logs))
    assert before["report.md"] != after["report.md"] and before["calls.svg"] != after["calls.svg"]
    assert before["ride-stream.svg"] == after["ride-stream.svg"]


def test_a_long_ride_stays_small(tmp_path: Path) -> None:
    """An hour of a changing link and six thousand tokens fit into the same bounds."""
    lines: list[CapacityLine | TurnLine | TokensLine] = [TurnLine(at_s=0.0, turn=1, start=0)]
    for second in range(6000):
        lines.append(CapacityLine(at_s=0.6 * second, up_mbit=second % 7, down_mbit=second % 11))
        lines.append(TokensLine(at_s=0.6 * second, start=second, labels=(A,)))
    write(tmp_path / "hour.jsonl", RUN, lines)
    files = report(load([tmp_path / "hour.jsonl"]))
    assert len(files["ride-hour.png"]) < 80_000 and len(files["ride-hour.svg"]) < 400_000


def test_figures_without_data_are_left_out(logs: list[Path]) -> None:
    """Without two round trips there is no throughput figure, without rounds no acceptance; tables need no figures."""
    files = report(load(logs[1:]))
    names = {name.rpartition(".")[0] for name in files if name.endswith(".svg")}
    assert names == {"gaps", "bytes", "ride-stream"}
    assert not [name for name in report(load(logs), figures=False) if name.endswith((".png", ".svg"))]


def test_a_bad_log_leaves_nothing(logs: list[Path], tmp_path: Path) -> None:
    """One bad log among good ones: refused before the folder is made; a folder that cannot be made is named."""
    logs[1].write_text('{"kind":"run"}\n{"kind":"turn"}\n')
    with pytest.raises(BadLog):
        load(logs)
    assert not (tmp_path / "out").exists()
    with pytest.raises(BadConfig, match="--out"):
        write_report({"report.md": b""}, logs[0] / "below a file")


def test_logs_of_one_name_are_told_apart(logs: list[Path], tmp_path: Path) -> None:
    """The second gets a number; names become harmless file names."""
    (tmp_path / "b").mkdir()
    write(tmp_path / "b" / "small.jsonl", RUN, LINES)
    assert [each.name for each in load([logs[0], tmp_path / "b" / "small.jsonl"])] == ["small", "small-2"]
    assert plain("../a b/ü") == "a-b" and plain("…") == "log"


def test_the_command(made: dict[str, bytes], logs: list[Path], tmp_path: Path) -> None:
    """Files in a new folder, no leftovers, the same bytes in another process; a bad log is refused with 78."""
    out, grid = tmp_path / "out" / "ride", tmp_path / "grid.json"
    done = simulator("report", *map(str, logs), "--grid", str(grid), "--out", str(out))
    assert done.returncode == 0, done.stderr
    names = {path.name for path in out.iterdir()}
    assert {"report.md", "runs.csv", "modes.csv", "turns.csv", "break-even.csv", "rtt.svg"} <= names
    assert not [name for name in names if name.startswith(".")]
    assert {path.name: path.read_bytes() for path in out.iterdir()} == made
    logs[0].write_text("no log\n")
    refused = simulator("report", *map(str, logs), "--out", str(tmp_path / "other"))
    assert refused.returncode == 78 and "small.jsonl, line 1, column 1" in refused.stderr
    assert not (tmp_path / "other").exists()


def test_tables_alone_go_to_stdout(logs: list[Path]) -> None:
    """Without --out the Markdown is printed and nothing is written; without any input 78 says what is missing."""
    done = simulator("report", str(logs[0]))
    assert done.returncode == 0 and "| chain | code | 1 | 2 | 3 |" in done.stdout
    assert simulator("report").returncode == 78
