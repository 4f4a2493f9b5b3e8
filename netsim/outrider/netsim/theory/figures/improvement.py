"""What M drafts save at one fresh position, for pairs with a closed form (the paper's Figure 3)."""

from __future__ import annotations

from itertools import groupby

from matplotlib.figure import Figure

from outrider.netsim.theory.figures.page import axes
from outrider.netsim.theory.report import Report


def improvement(report: Report) -> Figure:
    """TV minus root rejection against M: lines are the recursion, crosses the closed forms."""
    figure, plot = axes("Batch improvement at a fresh position", "M", "rejection saved")
    for pair, rows in groupby(report.theorem3.closed_forms, key=lambda row: row.pair):
        forms = list(rows)
        one = forms[0].formula
        (line,) = plot.plot([form.batch for form in forms], [form.improvement for form in forms], label=pair)
        plot.plot(
            [form.batch for form in forms],
            [one - form.formula for form in forms],
            "x",
            color=line.get_color(),
            markersize=4,
        )
    plot.set_xticks([1, 5, 10, 15, 20])
    plot.legend(fontsize=8)
    return figure
