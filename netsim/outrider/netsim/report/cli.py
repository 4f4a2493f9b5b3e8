"""`outrider-sim report`: event logs and sweeps in, tables and figures out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from outrider.netsim.errors import BadConfig
from outrider.netsim.events.cli import warnings


def report(
    logs: Annotated[
        list[Path] | None, typer.Argument(help="Event logs.", metavar="LOG...", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for report.md, CSV files and figures.")] = None,
    grid: Annotated[
        list[Path] | None,
        typer.Option(help="JSON of a sweep, for throughput against round trip; repeatable."),
    ] = None,
    figures: Annotated[bool, typer.Option(help="PNG and SVG beside the tables; needs the sim extra.")] = True,
) -> None:
    """Make tables (Markdown, CSV) and figures (PNG, SVG) of recorded runs; without --out, print the tables."""
    from outrider.netsim.report import make

    if not logs and not grid:
        raise BadConfig("LOG", "expected at least one event log, or --grid FILE")
    loaded = make.load(logs or ())
    for each in loaded:
        for word in warnings(each.log):
            print(f"outrider-sim: {word}", file=sys.stderr)
    files = make.report(loaded, grid or (), figures=figures and out is not None)
    if out is None:
        print(files["report.md"].decode(), end="")
        return
    make.write(files, out)
    print(f"{out}: {', '.join(files)}")
