"""Over-acceptance adds up over a text: distance between the laws of whole texts, and its bound."""

from __future__ import annotations

from matplotlib.figure import Figure

from outrider.netsim.theory.figures.page import axes
from outrider.netsim.theory.report import Report


def texts(report: Report) -> Figure:
    """Rejections, summed loss and the distance of whole texts against ε, for a process of 3 tokens and 5 positions."""
    figure, plot = axes("Whole texts under OPT: 3 tokens, 5 positions", "ε", "expected sum over the text")
    rows = sorted(report.sequence, key=lambda row: row.epsilon)
    across = [row.epsilon for row in rows]
    plot.plot(across, [row.small_opt.rejections for row in rows], marker="o", label="rejections")
    plot.plot(across, [row.small_opt.loss for row in rows], marker="s", label="loss (bounds the distance)")
    plot.plot(
        across, [row.small_opt.distance for row in rows], "k--", linewidth=1, label="TV = rejections + loss"
    )
    plot.plot(across, [row.text_distance for row in rows], marker="^", label="distance of whole texts")
    plot.legend(fontsize=8)
    return figure
