"""What a finite window and its bonus tokens do to the rejections of Theorem 1."""

from __future__ import annotations

from matplotlib.figure import Figure

from outrider.netsim.theory.figures.page import axes
from outrider.netsim.theory.report import Report


def windows(report: Report) -> Figure:
    """Rejections and target passes against the window, with and without bonus tokens, on the golden chain."""
    figure, plot = axes("Finite windows, golden chain", "drafts per round, γ", "expected number in 50 tokens")
    rows = report.theorem1.windows
    across = [row.exact.window for row in rows]
    plot.plot(across, [row.exact.rejections for row in rows], marker="o", label="rejections, bonus tokens")
    plot.plot(across, [row.exact.rounds for row in rows], marker="s", label="target passes, bonus tokens")
    plot.plot(
        across,
        [row.without_bonus.rounds for row in rows],
        marker="^",
        linestyle=":",
        label="target passes, no bonus token",
    )
    plot.axhline(
        report.theorem1.expected, color="black", linewidth=1, label="Theorem 1: rejections, no bonus token"
    )
    plot.errorbar(
        across,
        [row.rejections.mean for row in rows],
        [4.5 * row.rejections.error for row in rows],
        fmt="x",
        color="grey",
        label="simulated, 4.5 s.e.",
    )
    plot.set_xscale("log", base=2)
    plot.set_xticks(across, [str(window) for window in across])
    plot.legend(fontsize=8)
    return figure
