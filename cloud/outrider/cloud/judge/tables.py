"""The comparison as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = (
    "way",
    "accuracy",
    "recovered",
    "tokens/call",
    "judged",
    "of tested",
    "same text",
    "nll",
    "p lossless",
    "p judge",
)


def comparison_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table, one line per way; figures with intervals as value [low, high]."""
    lines = [_HEAD, tuple("---" for _ in _HEAD)]
    for row in rows:
        lines.append(
            (
                str(row["name"]),
                _interval(row["accuracy"]),
                _interval(row["recovered"]),
                _interval(row["tokens_per_call"]),
                str(row["judged"]),
                _number(row["judged_of_tested"]),
                _number(row["same_text"]),
                _number(row["nll"]),
                _number(row["p_lossless"]),
                _number(row.get("p_judge")),
            )
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _interval(figure: Sequence[float | None]) -> str:
    value, low, high = figure
    if value is None:
        return "-"
    return f"{value:.3f} [{_number(low)}, {_number(high)}]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
