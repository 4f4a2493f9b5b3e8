"""Bytes on the wire per token of the answer, up and down, by mode."""

from __future__ import annotations

from matplotlib.figure import Figure

from outrider.netsim.report.page import bars, plot
from outrider.netsim.report.tally import Tally


def traffic(groups: dict[str, Tally]) -> Figure | None:
    """Message bytes (no TCP, no TLS) over tokens of the finished display; None where no byte was counted."""
    known = {
        name: tally for name, tally in groups.items() if tally.total("bytes_up") and tally.total("tokens")
    }
    if not known:
        return None
    figure, axes = plot(
        "Message bytes per token of the answer", "bytes per token", "", size=(6.4, 1.6 + 0.55 * len(known))
    )
    series = {
        "up (device to cloud)": [tally.ratio("bytes_up", "tokens") for tally in known.values()],
        "down (cloud to device)": [tally.ratio("bytes_down", "tokens") for tally in known.values()],
    }
    bars(axes, list(known), series)
    return figure
