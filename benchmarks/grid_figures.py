"""The figures of the two grids in virtual time: modes and drafters over links, and many devices on one verifier.

::

    python benchmarks/grid_figures.py      # from results/client_server.json and devices.json, needs the sim extra
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ending
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from outrider.netsim.report.page import Look, dress, looks, rendered, style
from outrider.shared.errors import ConfigError

RESULTS = Path(__file__).with_name("results")
DEFAULT = "hybrid"
"""What a device drafts with unless told otherwise."""

Cells = Sequence[Mapping[str, Any]]


def client_server(cells: Cells) -> Figure:
    """Links from near to far: tokens/s of every mode with the default drafter, and trees of every drafter."""
    links = list(dict.fromkeys(one["link"] for one in cells))
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    dress(left, f"every mode; drafts by {DEFAULT}", "", "tokens/s")
    modes = list(dict.fromkeys(one["mode"] for one in cells))
    for mode, look in zip(modes, looks(), strict=False):
        mine = {
            one["link"]: one for one in cells if one["mode"] == mode and one["drafter"] in ("none", DEFAULT)
        }
        _series(left, range(len(links)), [mine[link]["tokens_per_s"] for link in links], mode, look)
    dress(right, "trees of every drafter", "", "tokens/s, of plain streaming's")
    drafters = [name for name in dict.fromkeys(one["drafter"] for one in cells) if name != "none"]
    for name, look in zip(drafters, looks(), strict=False):
        found = {
            one["link"]: one["gain"] for one in cells if one["mode"] == "tree" and one["drafter"] == name
        }
        _series(right, range(len(links)), [found[link] for link in links], name, look)
    right.axhline(1.0, color="black", linewidth=1)
    for axes in (left, right):
        _finish(axes)
        axes.set_xticks(range(len(links)), links, rotation=45, ha="right")
    return figure


def devices(cells: Cells) -> Figure:
    """Per link: tokens/s that one verifier delivers, and its time a token, against the number of devices."""
    links = list(dict.fromkeys(one["link"] for one in cells))
    figure = Figure(figsize=(9.6, 5.6), layout="constrained")
    panels = figure.subplots(2, len(links), sharex=True, sharey="row", squeeze=False)
    measures = (("tokens_per_s", "tokens/s delivered"), ("forward_ms_per_token", "verifier's ms a token"))
    for row, across, (field, words) in zip(panels, ("", "devices"), measures, strict=True):
        for axes, link in zip(row, links, strict=True):
            dress(axes, link, across, words if link == links[0] else "")
            for mode, look in zip(dict.fromkeys(one["mode"] for one in cells), looks(), strict=False):
                mine = [one for one in cells if (one["link"], one["mode"]) == (link, mode)]
                _series(axes, [one["devices"] for one in mine], [one[field] for one in mine], mode, look)
            counts = sorted({one["devices"] for one in cells})
            _finish(axes)
            axes.set_xscale("log", base=2)
            axes.set_xticks(counts, [str(count) for count in counts])
    return figure


def write(name: str, figure: Figure, folder: Path = RESULTS) -> None:
    """``name``.png and .svg."""
    for kind, content in zip(("png", "svg"), rendered(figure), strict=True):
        (folder / f"{name}.{kind}").write_bytes(content)


def draw(name: str, cells: Cells, folder: Path = RESULTS) -> None:
    """The figure of a study, `client_server` or `devices`, beside its results."""
    with style():
        write(name, {"client_server": client_server, "devices": devices}[name](cells), folder)


def _series(axes: Axes, at: Sequence[float], values: Sequence[float], label: str, look: Look) -> None:
    axes.plot(
        at, values, color=look.colour, marker=look.marker, markersize=4, linestyle=look.stroke, label=label
    )


def _finish(axes: Axes) -> None:
    """Once everything is in it: from 0 up, with its names."""
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)


def main() -> None:
    """Both, from what was measured last."""
    for name in ("client_server", "devices"):
        path = RESULTS / f"{name}.json"
        cells = ending.earlier(path, name).get("cells", [])
        if not cells:
            raise ConfigError(name, f"{path} has no cells", remedy=f"python benchmarks/{name}.py")
        draw(name, cells)


if __name__ == "__main__":
    ending.run(main)
