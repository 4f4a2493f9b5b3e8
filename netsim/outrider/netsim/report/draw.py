"""All figures of a report, as bytes by file name. Needs matplotlib (`sim` extra)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from outrider.netsim.report.figures.calls import calls
from outrider.netsim.report.figures.gaps import gaps
from outrider.netsim.report.figures.ride import timeline
from outrider.netsim.report.figures.rtt import rtt
from outrider.netsim.report.figures.tau import tau
from outrider.netsim.report.figures.traffic import traffic
from outrider.netsim.report.grid import Panel
from outrider.netsim.report.make import plain
from outrider.netsim.report.page import rendered, style
from outrider.netsim.report.ride import ride
from outrider.netsim.report.tally import Counted, Tally


def draw(logs: Sequence[Counted], groups: dict[str, Tally], panels: Sequence[Panel]) -> dict[str, bytes]:
    """PNG and SVG of every figure that there is something to draw for; the same input gives the same bytes."""
    with style():
        made: dict[str, Figure | None] = {
            **{f"rtt-{number}" if number else "rtt": rtt(panel) for number, panel in enumerate(panels)},
            "gaps": gaps(groups),
            "bytes": traffic(groups),
            "tau": tau(groups),
            "calls": calls(groups),
        }
        for each in logs:
            title = ", ".join(part for part in (each.name, each.run.mode, each.run.link) if part)
            made[f"ride-{plain(each.name)}"] = timeline(ride(each.log), title)
        files = {}
        for name, figure in made.items():
            if figure is not None:
                files[f"{name}.png"], files[f"{name}.svg"] = rendered(figure)
    return files
