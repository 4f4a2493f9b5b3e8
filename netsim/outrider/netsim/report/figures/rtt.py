"""Tokens per second against the round trip, one curve a mode, with the points where a mode and streaming break even."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from outrider.netsim.report.grid import BreakEven, Curve, Panel
from outrider.netsim.report.page import looks, plot


def rtt(panel: Panel) -> Figure | None:
    """None without two round trips of one mode."""
    curves, even = panel.curves, panel.even
    if not any(len(curve.rtt_ms) > 1 for curve in curves):
        return None
    title = "Throughput against round trip" + (f", {panel.where}" if panel.where else "")
    figure, axes = plot(title, "round trip of the link (ms)", "tokens/s")
    colours = {}
    for curve, look in zip(curves, looks(), strict=False):
        colours[curve.name] = look.colour
        axes.plot(
            curve.rtt_ms,
            curve.tokens_per_s,
            color="black" if curve.is_baseline else look.colour,
            marker=look.marker,
            markersize=4,
            linestyle=look.stroke,
            linewidth=2 if curve.is_baseline else 1.4,
            label=_name(curve, even),
        )
    for each in even:
        axes.axvline(each.rtt_ms, color=colours[each.name], linewidth=0.8, linestyle=":")
        axes.plot([each.rtt_ms], [each.tokens_per_s], marker="o", fillstyle="none", color=colours[each.name])
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
    return figure


def _name(curve: Curve, even: Sequence[BreakEven]) -> str:
    """The legend's words: overlapping numbers in the plot could not be read."""
    if curve.is_baseline:
        return f"{curve.name} (plain streaming)"
    at = ", ".join(f"{each.rtt_ms:.3g}" for each in even if each.name == curve.name)
    return f"{curve.name}: even with streaming at {at} ms" if at else curve.name
