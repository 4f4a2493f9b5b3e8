"""Tokens per second against the round trip, one curve a mode, with the points where a mode and streaming break even."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from outrider.netsim.report.grid import BreakEven, Curve
from outrider.netsim.report.page import looks, plot


def rtt(curves: Sequence[Curve], even: Sequence[BreakEven]) -> Figure | None:
    """None without two round trips of one mode."""
    if not any(len(curve.rtt_ms) > 1 for curve in curves):
        return None
    figure, axes = plot("Throughput against round trip", "round trip of the link (ms)", "tokens/s")
    colours = {}
    for curve, look in zip(curves, looks(), strict=False):
        colours[curve.mode] = look.colour
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
        axes.axvline(each.rtt_ms, color=colours[each.mode], linewidth=0.8, linestyle=":")
        axes.plot([each.rtt_ms], [each.tokens_per_s], marker="o", fillstyle="none", color=colours[each.mode])
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
    return figure


def _name(curve: Curve, even: Sequence[BreakEven]) -> str:
    """The legend's words: overlapping numbers in the plot could not be read."""
    if curve.is_baseline:
        return f"{curve.mode} (plain streaming)"
    at = ", ".join(f"{each.rtt_ms:.3g}" for each in even if each.mode == curve.mode)
    return f"{curve.mode}, even with streaming at {at} ms" if at else curve.mode
