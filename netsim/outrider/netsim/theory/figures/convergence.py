"""The mean number of rejections over runs goes to Theorem 1's value (the paper's Figure 2, left)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from outrider.netsim.theory.figures.page import axes
from outrider.netsim.theory.report import Report


def convergence(report: Report) -> Figure:
    """Mean over the first k runs against k, with 4.5 standard errors around the exact value."""
    figure, plot = axes("Theorem 1, golden chain: 7 states, 50 tokens", "runs", "mean rejections")
    first = report.theorem1
    runs = np.array([count for count, _ in first.convergence])
    plot.plot(runs, [mean for _, mean in first.convergence], marker=".", markersize=3, label="simulated")
    plot.axhline(first.expected, color="black", linewidth=1, label=f"exact, {first.expected:.5f}")
    spread = 4.5 * first.deviation / np.sqrt(runs)
    plot.fill_between(
        runs, first.expected - spread, first.expected + spread, alpha=0.15, color="grey", label="4.5 s.e."
    )
    plot.set_xscale("log")
    plot.set_ylim(first.expected - 6, first.expected + 6)
    plot.legend(fontsize=8)
    return figure
