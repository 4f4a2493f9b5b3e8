"""Client and server over mobile links: every drafter, every way to get tokens, every link, in virtual time.

::

    python benchmarks/client_server.py --trace lirr=train,PATH/Long_Island_Rail_Road.csv \\
        --trace att-lte=4g-medium,PATH/ATT-LTE-driving-2016.down.gz,PATH/ATT-LTE-driving-2016.up.gz
    python benchmarks/client_server.py --real        # afterwards: some cells through the proxy as well

Acceptance, step times and row sizes are those of `results/drafters.json`, pass times those of `costs/`. Presets bring
their own random outages; a trace brings those that it has, and every answer begins at another place of it. Writes
`results/client_server.json` and `.md`, and a figure (`sim` extra).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ending
from client_server_cells import EXCESS_S, PROMPT, ROWS_S, SEED, SHIPPED, TOKENS, Place, cell
from client_server_page import page
from client_server_real import beside, real
from machine import machine

from outrider.netsim.faults import Schedule
from outrider.netsim.profiles import profile
from outrider.netsim.traces import read as read_trace
from outrider.netsim.virtual.planner import Device
from outrider.netsim.virtual.recorded import drafters
from outrider.netsim.virtual.server import VerifierCost
from outrider.netsim.virtual.sweep import read_curve
from outrider.shared.errors import ConfigError

HERE = Path(__file__).parent
RESULTS = HERE / "results"
LINKS = ("loopback", "5g-sa", "5g-nsa", "4g-good", "4g-medium", "4g-bad", "leo", "subway", "train")
ANSWERS = 24


def places(traces: Sequence[str]) -> Iterator[Place]:
    """The presets with their outages, then the traces: ``name=preset,down[,up]``."""
    for name in LINKS:
        yield Place(name, profile(name).link, profile(name).schedule())
    for text in traces:
        name, _, rest = text.partition("=")
        preset, *paths = rest.split(",")
        if not name or len(paths) not in (1, 2):
            raise ConfigError("--trace", f"expected NAME=PRESET,DOWN[,UP], got {text!r}")
        found = [read_trace(path) for path in paths]
        yield Place(name, profile(preset).link, Schedule(), found[0], found[1] if len(found) == 2 else None)


def virtual(
    grid: Sequence[Place], devices: dict[str, Device], cost: VerifierCost, answers: int
) -> list[dict[str, Any]]:
    """All cells. Modes without a drafter stand once a link."""
    cells: list[dict[str, Any]] = []
    first = next(iter(devices.values()))
    for place in grid:
        begun = time.process_time()
        head = {"link": place.name, "rtt_ms": round(place.settings.rtt_s * 1e3, 3)}
        base = cell(place, first, cost, "stream", answers)
        rate = base["tokens_per_s"]
        rows = [("none", "stream", base), ("none", "unary", cell(place, first, cost, "unary", answers))]
        for name, device in devices.items():
            rows += [
                (name, mode, cell(place, device, cost, mode, answers)) for mode in ("chain", "tree", "auto")
            ]
        for name, mode, told in rows:
            gain = round(told["tokens_per_s"] / rate, 4)
            beats = mode != "stream" and gain > 1
            cells.append(
                head | {"drafter": name, "mode": mode} | told | {"gain": gain, "beats_streaming": beats}
            )
        print(f"{place.name}: {len(rows)} cells, {time.process_time() - begun:.1f} s of CPU", file=sys.stderr)
    return cells


def write(told: dict[str, Any]) -> None:
    """JSON with a cell a line, the page, and the figure."""
    from grid_figures import draw  # needs matplotlib, measuring does not

    lists = {name: told[name] for name in ("cells", "real") if told.get(name)}
    rest = {name: value for name, value in told.items() if name not in ("cells", "real")}
    parts = [f'"{name}": {json.dumps(value)}' for name, value in rest.items()]
    for name, rows in lists.items():
        parts.append(f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]")
    (RESULTS / "client_server.json").write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")
    (RESULTS / "client_server.md").write_text(page(told), encoding="utf-8")
    draw("client_server", told["cells"])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trace", action="append", default=[], help="NAME=PRESET,DOWN[,UP]; repeatable")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--answers", type=ending.count("--answers"), default=ANSWERS)
    parser.add_argument(
        "--real", action="store_true", help="measure the cells through the proxy; keeps the grid"
    )
    parser.add_argument("--page", action="store_true", help="only virtual values of real cells, and the page")
    parser.add_argument("--real-answers", type=ending.count("--real-answers"), default=6)
    options = parser.parse_args()
    path = HERE / "costs" / f"{options.dtype}.json"
    cost = VerifierCost(curve=read_curve(path), excess_s=EXCESS_S, rows_s=ROWS_S)
    devices = drafters(RESULTS / "drafters.json")
    told: dict[str, Any]
    if options.page or options.real:
        told = ending.earlier(RESULTS / "client_server.json", "the grid")
        if not told:
            raise ConfigError(
                "the grid", "there is none yet", remedy="run this without --real and --page first"
            )
    if options.real:
        told["real"] = beside(real(options.real_answers, options.dtype), devices[SHIPPED], cost)
        told["real_machine"] = machine(
            dtype=options.dtype, answers=options.real_answers, tokens=TOKENS, seed=SEED
        )
    elif options.page and told.get("real"):
        told["real"] = beside([one["real"] for one in told["real"]], devices[SHIPPED], cost)
    elif not options.page:
        told = {
            "machine": machine(answers=options.answers, tokens=TOKENS, prompt=PROMPT, seed=SEED),
            "cost": {"dtype": options.dtype, **json.loads(path.read_text(encoding="utf-8"))},
            "acceptance": {name: one.acceptance.law for name, one in devices.items()},
            "cells": virtual(list(places(options.trace)), devices, cost, options.answers),
        }
    write(told)
    print(f"{RESULTS / 'client_server.md'}")


if __name__ == "__main__":
    ending.run(main)
