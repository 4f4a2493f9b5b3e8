"""`outrider-sim replay`: a recorded run again, in the view that showed it first."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from outrider.client.views import LiveView, MarkedView, View
from outrider.netsim.errors import BadConfig
from outrider.netsim.events.reader import EventLog, read
from outrider.netsim.events.replay import MARKS, Replay, has_text, play, sessions
from outrider.shared.textstream import printable


def replay(
    log: Annotated[Path, typer.Argument(help="Event log of a run.", metavar="LOG")],
    speed: Annotated[float, typer.Option(help="Times as fast as it was.")] = 1.0,
    session: Annotated[
        str | None, typer.Option(help="Which device, where the log has several; default: the first.")
    ] = None,
) -> None:
    """Show a recorded run again, by its own clock: live on a terminal, otherwise with plain marks."""
    if not (math.isfinite(speed) and speed > 0):
        raise BadConfig("--speed", f"expected a factor above 0, got {speed:g}")
    found = read(log)
    told = sessions(found)
    if session is not None and session not in told:
        raise BadConfig("--session", f"expected one of {', '.join(map(repr, told))}, got {session!r}")
    chosen = session if session is not None else next(iter(told), "")
    _head(found, told, chosen)
    console = Console(highlight=False)
    live = console.is_terminal and os.environ.get("TERM") != "dumb"
    if not live:
        print("(⟨ … ⟩ is provisional: drafted without the link, not verified yet)")

    def make_view() -> View:
        return LiveView(console, legend=True) if live else MarkedView(sys.stdout, lambda: shown.now)

    shown = Replay(make_view, lambda text: print(f"── {text}", flush=True))
    asyncio.run(play(found, shown, session=chosen, speed=speed, clock=time.monotonic))
    if not found.complete:
        print("── the log ends here: the run was not finished", flush=True)


def _head(log: EventLog, told: tuple[str, ...], chosen: str) -> None:
    """What is shown, on stdout; what one should know about the log, on stderr."""
    run = log.run
    parts = [run.mode, run.link, run.drafter, "virtual time" if run.virtual else run.started or ""]
    print(printable("── " + " · ".join(part for part in parts if part)))
    if not has_text(log):
        letters = ", ".join(f"{mark} {label.value}" for label, mark in MARKS.items())
        print(f"── the log has no text; one letter a token: {letters}")
    for word in warnings(log):
        print(f"outrider-sim: {word}", file=sys.stderr)
    if len(told) > 1:
        print(f"outrider-sim: showing {chosen!r} of {len(told)} devices", file=sys.stderr)


def warnings(log: EventLog) -> list[str]:
    """What could not be used of a log."""
    words = []
    if log.truncated:
        words.append(f"{log.path}: the last line was cut short and left out: the run was killed")
    if log.ignored:
        words.append(
            f"{log.path}: {log.ignored} lines of kinds that this version does not know were left out"
        )
    return words
