"""Calls to the verifier per token of the answer, by mode."""

from __future__ import annotations

from matplotlib.figure import Figure

from outrider.netsim.report.page import bars, plot
from outrider.netsim.report.tally import Tally


def calls(groups: dict[str, Tally]) -> Figure | None:
    """Answered drafts over tokens of the finished display; None where nothing was called or shown."""
    known = {name: tally for name, tally in groups.items() if tally.total("calls") and tally.total("tokens")}
    if not known:
        return None
    figure, axes = plot(
        "Calls to the verifier per token of the answer",
        "calls per token",
        "",
        size=(6.4, 1.4 + 0.4 * len(known)),
    )
    bars(axes, list(known), {"": [tally.ratio("calls", "tokens") for tally in known.values()]})
    axes.axvline(1.0, color="grey", linewidth=0.8, linestyle=":")
    return figure
