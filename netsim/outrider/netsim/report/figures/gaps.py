"""How long the reader waited between tokens: the distribution of gaps, one curve a mode."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from outrider.netsim.report.page import looks, plot
from outrider.netsim.report.tally import Tally

MOST_POINTS = 400
SHORTEST_S = 1e-3
"""Gaps below a millisecond are drawn as one: nobody sees them."""


def gaps(groups: dict[str, Tally]) -> Figure | None:
    """Share of gaps up to a length, which is on a logarithmic axis; None without any gap."""
    known = {name: sorted(tally.gaps_s) for name, tally in groups.items() if tally.gaps_s}
    if not known:
        return None
    figure, axes = plot(
        "Gaps between moments at which new text appeared", "gap (s)", "share of gaps up to this long"
    )
    for (name, found), look in zip(known.items(), looks(), strict=False):
        chosen = range(len(found))
        if len(found) > MOST_POINTS:
            chosen = [i * (len(found) - 1) // (MOST_POINTS - 1) for i in range(MOST_POINTS)]  # type: ignore[assignment]
        axes.step(
            [max(found[i], SHORTEST_S) for i in chosen],
            [(i + 1) / len(found) for i in chosen],
            where="post",
            color=look.colour,
            linestyle=look.stroke,
            linewidth=1.4,
            label=f"{name} ({len(found)} gaps)",
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, 1.02)
    axes.axhline(0.95, color="grey", linewidth=0.7, linestyle=":")
    axes.legend(fontsize=7, loc="lower right")
    return figure
