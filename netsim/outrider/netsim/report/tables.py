"""The tables of a report: one row type each, as Markdown for people and CSV for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.client.events import Label
from outrider.netsim.report.grid import Panel
from outrider.netsim.report.tally import Counted, Tally, by_category
from outrider.shared.textstream import printable

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Table:
    """Named columns and rows; None is "not known" and prints as a dash or as nothing."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def markdown(self) -> str:
        """A heading and a table; numbers with four significant digits."""
        lines = [f"## {self.title}", "", "| " + " | ".join(self.columns) + " |"]
        lines.append("|" + "---|" * len(self.columns))
        lines += ["| " + " | ".join(_told(cell) for cell in row) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """The same rows with seven significant digits, fields quoted where needed, lines ended by a newline."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([f"{c:.7g}" if isinstance(c, float) else c for c in row] for row in self.rows)
        return out.getvalue()


FIGURES = (
    "turns", "tokens", "tokens/s", "first token s", "gap p50 s", "gap p95 s", "τ", "calls/token",
    "verifier ms/token", "bytes up/token", "bytes down/token", "provisional", "taken back", "offline s",
)  # fmt: skip
"""Columns of what turns come to together."""


def figures(tally: Tally) -> tuple[Cell, ...]:
    """The cells under `FIGURES`."""
    compute = tally.ratio("compute_s", "tokens")
    return (
        len(tally.turns),
        int(tally.total("tokens")),
        tally.tokens_per_s,
        tally.first_token_s,
        tally.gap(0.50),
        tally.gap(0.95),
        tally.tau,
        tally.ratio("calls", "tokens"),
        None if compute is None else compute * 1e3,
        tally.ratio("bytes_up", "tokens"),
        tally.ratio("bytes_down", "tokens"),
        int(tally.total("provisional")),
        int(tally.total("taken_back")),
        tally.total("offline_s"),
    )


def runs(logs: Iterable[Counted]) -> Table:
    """One row a log."""
    rows = tuple(
        (each.name, each.run.mode, each.run.drafter, each.run.link, each.rtt_ms, _state(each), *figures(each.tally))
        for each in logs
    )  # fmt: skip
    return Table("Runs", ("log", "mode", "drafter", "link", "RTT ms", "state", *FIGURES), rows)


def _state(each: Counted) -> str:
    if each.log.truncated:
        return "killed, last line cut"
    return "whole" if each.log.complete else "not finished"


def modes(groups: dict[str, Tally]) -> Table:
    """One row a mode, over all its turns."""
    return Table(
        "Modes", ("mode", *FIGURES), tuple((name, *figures(tally)) for name, tally in groups.items())
    )


def categories(groups: dict[str, Tally]) -> Table:
    """τ by mode and category of the prompt."""
    rows = tuple(
        (
            name,
            category,
            len(tally.turns),
            int(tally.total("rounds")),
            tally.tau,
            tally.ratio("accepted", "nodes"),
            tally.tokens_per_s,
        )
        for name, group in groups.items()
        for category, tally in by_category(group.turns).items()
    )
    columns = ("mode", "category", "turns", "rounds", "τ", "accepted/drafted", "tokens/s")
    return Table("Acceptance by category", columns, rows)


def labels(groups: dict[str, Tally]) -> Table:
    """Tokens of the answers by label, at the end."""
    rows: list[tuple[Cell, ...]] = []
    for name, tally in groups.items():
        found = tally.labels()
        rows.append((name, *(found[label] for label in Label), int(tally.total("tokens"))))
    return Table("Labels at the end", ("mode", *(label.value for label in Label), "all"), tuple(rows))


def turns(logs: Iterable[Counted]) -> Table:
    """One row a turn."""
    rows = tuple(
        (
            each.name,
            turn.session,
            turn.turn,
            turn.prompt,
            turn.category,
            "ended" if turn.ended else "not finished",
            "yes" if turn.verified else "no",
            *figures(Tally((turn,)))[1:],
        )
        for each in logs
        for turn in each.tally.turns
    )
    head = ("log", "device", "turn", "prompt", "category", "state", "verified")
    return Table("Turns", (*head, *FIGURES[1:]), rows)


def points(panels: Sequence[Panel]) -> Table:
    """Throughput by mode and round trip."""
    rows = tuple(
        (panel.where, curve.name, rtt, rate)
        for panel in panels
        for curve in panel.curves
        for rtt, rate in zip(curve.rtt_ms, curve.tokens_per_s, strict=True)
    )
    return Table("Throughput by round trip", ("where", "mode", "RTT ms", "tokens/s"), rows)


def break_even(panels: Sequence[Panel]) -> Table:
    """Where modes cross streaming."""
    rows = tuple(
        (panel.where, each.name, each.rtt_ms, each.tokens_per_s, "shorter" if each.wins_below else "longer")
        for panel in panels
        for each in panel.even
    )
    columns = ("where", "mode", "RTT ms", "tokens/s of both", "faster than streaming at round trips that are")
    return Table("Break-even with plain streaming", columns, rows)


def _told(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return printable(str(cell)).replace("|", "\\|").replace("\n", " ")
