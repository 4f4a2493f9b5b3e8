"""Cells of a sweep as CSV and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.netsim.errors import BadConfig
from outrider.netsim.events.writer import replace_file

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("rtt_ms", "RTT ms", "{:g}"),
    ("mbit", "Mbit/s", "{:g}"),
    ("verify_ms", "pass ms", "{:g}"),
    ("tau_asked", "τ asked", "{:g}"),
    ("mode", "mode", "{}"),
    ("tokens_per_s", "tokens/s", "{:.1f}"),
    ("gain", "× streaming", "{:.2f}"),
    ("first_token_s", "first token s", "{:.2f}"),
    ("gap_p50_s", "gap p50 s", "{:.3f}"),
    ("gap_p95_s", "gap p95 s", "{:.3f}"),
    ("tau", "τ", "{:.2f}"),
    ("calls_per_token", "calls/token", "{:.2f}"),
    ("forward_ms_per_token", "forward ms/token", "{:.1f}"),
    ("bytes_up_per_token", "up B/token", "{:.0f}"),
    ("bytes_down_per_token", "down B/token", "{:.0f}"),
)
"""Field, heading, and how it is written in Markdown."""


def check_suffix(path: Path) -> None:
    """Raise `BadConfig` unless the file can be written as its name says."""
    if path.suffix not in (".csv", ".md"):
        raise BadConfig("out", f"expected a name that ends in .csv or .md, got {path.name!r}")
    if not path.resolve().parent.is_dir():
        raise BadConfig("out", f"{path}: its folder is not there")


def write(path: Path, told: dict[str, Any]) -> None:
    """All cells into a .csv (every field) or .md file (what people read). Raises `BadConfig`."""
    save(path, told["cells"], as_markdown(told))


def save(path: Path, cells: Sequence[dict[str, Any]], page: str) -> None:
    """The cells into a .csv file, or their page into a .md file. Raises `BadConfig`."""
    check_suffix(path)
    text = as_csv(cells) if path.suffix == ".csv" else page
    replace_file(path, text.encode(), setting="out")


def as_csv(cells: Sequence[dict[str, Any]]) -> str:
    """One line a cell, every field; empty where there is no figure."""
    sink = io.StringIO()
    rows = csv.DictWriter(sink, fieldnames=list(cells[0]), lineterminator="\n")
    rows.writeheader()
    rows.writerows(cells)
    return sink.getvalue()


def as_markdown(told: dict[str, Any]) -> str:
    """The table, then the round trips at which each mode draws level with streaming."""
    lines = table(told["cells"], COLUMNS)
    lines += ["", "Cells in **bold** are faster than plain streaming at the same point.", ""]
    for each in told["break_even"]:
        place = ", ".join(
            f"{name} {each[field]:g}"
            for field, name in (("mbit", "Mbit/s"), ("verify_ms", "pass ms"), ("tau_asked", "τ"))
            if each[field] is not None
        )
        level = ", ".join(f"{rtt:g} ms" for rtt in each["rtt_ms"])
        said = f"draws level at {level}" if level else f"{each['always']} at every round trip here"
        lines.append(f"- {each['mode']}{f' ({place})' if place else ''}: {said}")
    return "\n".join(lines) + "\n"


def table(cells: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str, str]]) -> list[str]:
    """Lines of a Markdown table; columns that are empty everywhere are left out."""
    used = [column for column in columns if any(cell.get(column[0]) is not None for cell in cells)]
    lines = ["| " + " | ".join(heading for _, heading, _ in used) + " |"]
    lines.append(
        "|"
        + "|".join(" --- " if name in ("link", "mode", "drafter") else " ---: " for name, _, _ in used)
        + "|"
    )
    for cell in cells:
        row = [_word(cell, name, form) for name, _, form in used]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def _word(cell: dict[str, Any], name: str, form: str) -> str:
    value = cell.get(name)
    if value is None:
        return "–"
    word = form.format(value)
    return f"**{word}**" if name == "tokens_per_s" and cell.get("beats_streaming") else word
