"""What all figures look like."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def axes(title: str, across: str, up: str) -> tuple[Figure, Axes]:
    """One empty plot with its words, in colours that colour-blind readers can tell apart."""
    figure = Figure(figsize=(6.0, 3.8), layout="constrained")
    plot = figure.subplots()
    plot.set_prop_cycle(color=["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"])
    plot.set_title(title, fontsize=10)
    plot.set_xlabel(across)
    plot.set_ylabel(up)
    plot.grid(alpha=0.25)
    return figure, plot
