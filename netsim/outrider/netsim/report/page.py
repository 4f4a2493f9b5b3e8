"""What all figures look like, and how they become bytes: the same data gives the same file."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's palette (2008), which colour-blind readers can tell apart; marks and strokes differ as well."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STROKES: tuple[str | tuple[int, tuple[int, ...]], ...] = (
    "-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)),
)  # fmt: skip
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
DPI = 100


@dataclass(frozen=True, slots=True)
class Look:
    """Colour, marker, stroke and hatch of one series."""

    colour: str
    marker: str
    stroke: str | tuple[int, tuple[int, ...]]
    hatch: str


def looks() -> Iterator[Look]:
    """One look after the other, without end."""
    number = 0
    while True:
        kind = number % len(COLOURS)
        yield Look(COLOURS[kind], MARKERS[kind], STROKES[(kind + number // len(COLOURS)) % 7], HATCHES[kind])
        number += 1


def plot(title: str, across: str, up: str, *, size: tuple[float, float] = (6.4, 3.8)) -> tuple[Figure, Axes]:
    """One empty plot with its words; ``across`` and ``up`` name unit and quantity."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    dress(axes, title, across, up)
    return figure, axes


def dress(axes: Axes, title: str, across: str, up: str) -> None:
    """Words and grid of a plot."""
    if title:
        axes.set_title(title, fontsize=10)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def bars(axes: Axes, rows: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> None:
    """Grouped horizontal bars, one group a row, with the figure at the end of each bar; None has no bar.

    A series without a name is the only one, and needs no legend.
    """
    height = 0.8 / max(len(series), 1)
    for number, ((name, values), look) in enumerate(zip(series.items(), looks(), strict=False)):
        at = [row + (number + 0.5) * height - 0.4 for row in range(len(rows))]
        widths = [0.0 if value is None else value for value in values]
        drawn = axes.barh(
            at, widths, height=height, color=look.colour, hatch=look.hatch, label=name, alpha=0.85
        )
        told = [
            "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in values
        ]
        axes.bar_label(drawn, told, padding=2, fontsize=7)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    if any(series):
        axes.legend(fontsize=7)


def rendered(figure: Figure) -> tuple[bytes, bytes]:
    """PNG and SVG of a figure."""
    png, svg = io.BytesIO(), io.BytesIO()
    figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return png.getvalue(), svg.getvalue()


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib with its defaults and this style, whatever the user's own configuration says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rc("svg", hashsalt="outrider", fonttype="none")
        matplotlib.rc("font", family="DejaVu Sans", size=9)
        matplotlib.rc("text", parse_math=False)  # names of logs and links are no formulas
        yield
