"""Acceptance length by category of the prompt and mode."""

from __future__ import annotations

from matplotlib.figure import Figure

from outrider.netsim.report.page import bars, plot
from outrider.netsim.report.tally import Tally, by_category


def tau(groups: dict[str, Tally]) -> Figure | None:
    """Tokens committed per judged draft; None where no draft was judged."""
    known = {name: by_category(tally.turns) for name, tally in groups.items() if tally.total("nodes")}
    if not known:
        return None
    rows = sorted({category for found in known.values() for category in found})
    height = 1.4 + 0.3 * len(rows) * max(len(known), 1)
    figure, axes = plot(
        "Acceptance length",
        "τ (tokens per judged draft, recovered or bonus included)",
        "",
        size=(6.4, height),
    )
    series = {
        name: [found[row].tau if row in found else None for row in rows] for name, found in known.items()
    }
    bars(axes, rows, series)
    axes.axvline(1.0, color="grey", linewidth=0.8, linestyle=":")
    return figure
