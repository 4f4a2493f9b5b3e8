"""The two figures of `disconnection.py`: agreement by offline position, and scores by where the link went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from outrider.cloud.evaluate.cut_tallies import BUCKETS, percent
from outrider.netsim.report.page import Look, dress, looks, rendered, style

Shown = Sequence[float]


def figures(result: Mapping[str, Any]) -> dict[str, bytes]:
    """PNG and SVG of both by file name."""
    sets = {kind: found for kind, found in result["sets"].items() if found["tasks"] and found["shares"]}
    files: dict[str, bytes] = {}
    if sets:
        with style():
            for name, drawn in (("agreement", agreement(sets)), ("scores", scores(sets))):
                files[f"{name}.png"], files[f"{name}.svg"] = rendered(drawn)
    return files


def agreement(sets: Mapping[str, Any]) -> Figure:
    """Per set: how often the target would have said the token, and how much of its text still stands."""
    figure, panels = _panels(sets)
    for axes, (kind, found) in zip(panels, sets.items(), strict=True):
        dress(axes, f"{kind}, {found['tasks']} tasks", "tokens since the link went", "% of tokens")
        series = looks()
        for who, shown in found["drafters"].items():
            for measure, label in (
                ("agree", "the target would say it"),
                ("held", "in the target's own text"),
            ):
                spans = [(first, last) for first, last in BUCKETS if f"{measure}_{first}_{last}" in shown]
                at = [(first * last) ** 0.5 for first, last in spans]
                values = [shown[f"{measure}_{first}_{last}"] for first, last in spans]
                _line(axes, at, values, f"{who}: {label}", next(series))
        axes.set_xscale("log", base=2)
        ticks = [2**power for power in range(9)]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])  # plain numbers, no formulas
        axes.set_ylim(0, 100)
        axes.legend(fontsize=7)
    return figure


def scores(sets: Mapping[str, Any]) -> Figure:
    """Per set: right answers by where the link went for good."""
    figure, panels = _panels(sets)
    for axes, (kind, found) in zip(panels, sets.items(), strict=True):
        word = "pass@1" if kind == "humaneval" else "exact answers"
        dress(
            axes, f"{kind}, {found['tasks']} tasks", "% of the answer there when the link went", f"{word}, %"
        )
        own, series = found["target"], looks()
        names = [percent(share) for share in found["shares"]]
        at = [float(name) for name in names]
        axes.axhline(100 * own["right"][0], color="grey", linestyle=":", label="whole, or reconciled")
        _line(axes, at, [own[f"right_{name}"] for name in names], "plain streaming ends", next(series))
        for who, shown in found["drafters"].items():
            values = [shown[f"right_{name}"] for name in names]
            _line(axes, at, values, f"{who} writes on alone", next(series))
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7)
    return figure


def _panels(sets: Mapping[str, Any]) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(4.8 * len(sets), 3.8), layout="constrained")
    return figure, list(figure.subplots(1, len(sets), squeeze=False)[0])


def _line(axes: Axes, at: Sequence[float], values: Sequence[Shown], label: str, look: Look) -> None:
    middle, low, high = ([100 * value[part] for value in values] for part in range(3))
    axes.plot(at, middle, color=look.colour, marker=look.marker, linestyle=look.stroke, label=label)
    axes.fill_between(at, low, high, color=look.colour, alpha=0.12, linewidth=0)
