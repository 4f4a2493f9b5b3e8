"""The timeline of a run: the link's capacity, when the device drafted alone, and the tokens on display."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from outrider.netsim.report.page import COLOURS, DPI, dress
from outrider.netsim.report.ride import Ride

MOST_STEPS = 4 * 6 * DPI
"""Steps drawn: more than four a pixel cannot be seen, and make an SVG large."""


def timeline(ride: Ride, title: str) -> Figure | None:
    """Seconds since the run's start across; None where nothing was ever on display."""
    if not ride.shown:
        return None
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    if ride.down_mbit:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
        _capacity(above, ride)
        above.set_title(title, fontsize=10)
    else:
        below = figure.subplots()
        below.set_title(title, fontsize=10)
    dress(below, "", "time since the run's start (s)", "tokens on display")
    for number, (start, end) in enumerate(ride.alone):
        label = "device drafts alone" if number == 0 else None
        below.axvspan(start, end, color=COLOURS[4], alpha=0.25, linewidth=0, label=label)
    for number, at in enumerate(ride.turns):
        label = "question asked" if number == 0 else None
        below.axvline(at, color="grey", linewidth=0.8, linestyle=":", label=label)
    _steps(below, ride.shown, ride.length_s, COLOURS[1], "--", "shown")
    _steps(below, ride.verified, ride.length_s, COLOURS[0], "-", "verified")
    below.set_ylim(bottom=0)
    below.set_xlim(0, ride.length_s or 1)
    below.legend(fontsize=7, loc="upper left")
    return figure


def _capacity(axes: Axes, ride: Ride) -> None:
    dress(axes, "", "", "capacity (Mbit/s)")
    lanes = (("down", ride.down_mbit, COLOURS[2], "-"), ("up", ride.up_mbit, COLOURS[3], "--"))
    for name, steps, colour, stroke in lanes:
        known = [(at, float("nan") if value is None else value) for at, value in steps]
        if any(value is not None for _, value in steps):
            _steps(axes, known, ride.length_s, colour, stroke, name)
    if any(value is None for _, value in (*ride.up_mbit, *ride.down_mbit)):
        axes.plot([], [], color="grey", linestyle=":", label="gap: unlimited")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, loc="upper right")


def _steps(
    axes: Axes, steps: Sequence[tuple[float, float]], end: float, colour: str, stroke: str, name: str
) -> None:
    """A step function up to ``end``, with what is too fine to see left out."""
    told = [*steps, (max(end, steps[-1][0]), steps[-1][1])]
    if len(told) > MOST_STEPS:
        told = [told[i * (len(told) - 1) // (MOST_STEPS - 1)] for i in range(MOST_STEPS)]
    axes.step(
        [at for at, _ in told],
        [value for _, value in told],
        where="post",
        color=colour,
        linestyle=stroke,
        linewidth=1.3,
        label=name,
    )
