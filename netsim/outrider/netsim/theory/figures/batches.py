"""Rejections against the number of drafts, down to a positive floor (the paper's Figure 2, middle and right)."""

from __future__ import annotations

from matplotlib.figure import Figure

from outrider.netsim.theory.figures.page import axes
from outrider.netsim.theory.report import Report


def batches(report: Report) -> Figure:
    """Theorem 3 on the golden chain against M, the simulation where it was played, and the floor."""
    figure, plot = axes("Theorem 3, golden chain: M drafts from one prefix", "M", "expected rejections")
    rejections = sorted((int(batch), value) for batch, value in report.theorem3.rejections.items())
    plot.plot(
        [batch for batch, _ in rejections], [value for _, value in rejections], marker="o", label="exact"
    )
    plot.errorbar(
        [int(batch) for batch in report.monte_carlo],
        [one.mean for one in report.monte_carlo.values()],
        [4.5 * one.error for one in report.monte_carlo.values()],
        fmt="x",
        capsize=3,
        label="simulated, 4.5 s.e.",
    )
    floor = report.theorem3.floor
    plot.axhline(floor, color="black", linestyle="--", linewidth=1, label=f"floor, {floor:.5f}")
    plot.set_xscale("log")
    plot.legend(fontsize=8)
    return figure
