"""Results as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.cloud.evaluate.rounds import BUCKETS, CHAINS, TREES

NONE = "–"


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are figures."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines)) + "\n"


def number(value: Any, digits: int = 2) -> str:
    """A figure, or a dash where there is none."""
    return NONE if value is None else f"{value:.{digits}f}"


def with_interval(row: Mapping[str, Any], name: str, digits: int = 2) -> str:
    """A mean figure and its interval."""
    value = row.get(name)
    if value is None:
        return NONE
    low, high = row["intervals"][name]
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def rounds_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Drafters by tau, acceptance and cost, means over the categories with intervals."""
    taus = [f"tau_chain{n}" for n in CHAINS] + [f"tau_tree{n}" for n in TREES]
    head = ["drafter", *(f"τ {name[4:]}" for name in taus), "depth 1 / 4 / 8", "step ms", "row bytes"]
    lines = [
        [
            row["name"],
            *(with_interval(row, name) for name in taus),
            " / ".join(number(row["acceptance"][depth]) for depth in (0, 3, 7)),
            number(row["step_ms"]),
            str(row["row_bytes"]),
        ]
        for row in rows
    ]
    return markdown(head, lines)


def categories_table(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """One measure by category."""
    categories = list(dict.fromkeys(category for row in rows for category in row["categories"]))
    lines = []
    for row in rows:
        cells = []
        for category in categories:
            found = row["categories"].get(category, {}).get(name)
            cells.append(f"{found[0]:.2f} [{found[1]:.2f}, {found[2]:.2f}]" if found else NONE)
        lines.append([row["name"], *cells, with_interval(row, name)])
    return markdown([name, *categories, "mean"], lines)


def offline_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Drafting alone, by depth after the cut: agreement, and the target's surprise in nats."""
    spans = [f"{first}_{last}" for first, last in BUCKETS]
    spans = [span for span in spans if any(f"agree_{span}" in row for row in rows)]
    measures = {
        "agree": "agrees",
        "nll_text": "target's NLL of its own text",
        "nll_forced": "of the drafter's best token along it",
        "nll_free": "of what the drafter writes alone",
    }
    lines = [
        [f"{row['name']}: {label}", *(with_interval(row, f"{name}_{span}") for span in spans)]
        for row in rows
        for name, label in measures.items()
        if any(f"{name}_{span}" in row for span in spans)
    ]
    return markdown(["depth after the cut", *(span.replace("_", "–") for span in spans)], lines)
