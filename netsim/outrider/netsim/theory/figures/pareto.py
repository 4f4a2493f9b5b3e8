"""Rejection against loss: OPT on the line of Theorem 5, UNO above it (the paper's Figure 4)."""

from __future__ import annotations

from matplotlib.figure import Figure

from outrider.netsim.theory.figures.page import axes
from outrider.netsim.theory.report import Report


def pareto(report: Report) -> Figure:
    """The ε table of G2 as points, and the line rejection + loss = TV that no rule of the class is below."""
    rows = report.overacceptance.g2
    distance = rows[0].distance
    figure, plot = axes("Theorem 5, pair G2", "rejection", "loss: total variation to the target")
    plot.plot([0, distance], [distance, 0], color="black", linewidth=1, label="rejection + loss = TV")
    plot.plot([row.rejection for row in rows], [row.opt_loss for row in rows], "o", label="OPT")
    plot.plot([row.rejection for row in rows], [row.uno_loss for row in rows], "s", label="UNO")
    for row in rows:
        plot.annotate(
            f"ε {row.epsilon:g}",
            (row.rejection, row.opt_loss),
            xytext=(-4, -10),
            textcoords="offset points",
            ha="right",
            fontsize=7,
        )
    plot.set_xlim(left=-0.08)
    plot.set_ylim(bottom=-0.06)
    plot.legend(fontsize=8)
    return figure
