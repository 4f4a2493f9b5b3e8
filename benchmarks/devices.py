"""Many devices on one verifier, in virtual time: 1, 2, 4, 8 and 16 at once.

::

    python benchmarks/devices.py          # results/devices.json, .md and a figure (`sim` extra), some seconds

Every device has a link of its own (the same preset, another seed, no outages) and asks for one long answer at time 0.
What waits of all devices shares packed passes, first come first served. Acceptance, step times and pass times as in
`client_server.py`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ending
from client_server import RESULTS
from client_server_cells import EXCESS_S, PROMPT, ROWS_S, SEED, SHIPPED, TOKENS
from machine import machine

from outrider.netsim.profiles import profile
from outrider.netsim.virtual.modes import MODES
from outrider.netsim.virtual.outcome import quantile, together
from outrider.netsim.virtual.recorded import drafters
from outrider.netsim.virtual.run import Setup, simulate_many
from outrider.netsim.virtual.server import VerifierCost
from outrider.netsim.virtual.session import Answer
from outrider.netsim.virtual.sweep import read_curve
from outrider.netsim.virtual.tables import table

DEVICES = (1, 2, 4, 8, 16)
LINKS = ("loopback", "5g-sa", "4g-medium")
COLUMNS = (
    ("link", "link", "{}"),
    ("mode", "mode", "{}"),
    ("devices", "devices", "{}"),
    ("tokens_per_s", "tokens/s delivered", "{:.1f}"),
    ("per_device_per_s", "a device", "{:.1f}"),
    ("forward_ms_per_token", "forward ms/token", "{:.1f}"),
    ("rows_per_pass", "rows a pass", "{:.1f}"),
    ("busy", "verifier busy", "{:.0%}"),
    ("round_p95_s", "round p95 s", "{:.3f}"),
    ("gap_p95_s", "gap p95 s", "{:.3f}"),
)
SAYS = """**What it says.** On a verifier of one core a wider pass costs more, and packing alone already shares passes
among streaming devices: sixteen of them get ten times the tokens of one. Drafts help while the verifier would
be idle or narrow: one device, a short round trip. Two devices on loopback still get 6 and 7 % more by drafting, on
5G trees draw level; from four on rows of rejected drafts displace other devices' tokens and streaming delivers
more on every link; trees, sized as if the verifier were idle, are the worst. Run-ahead sees the queue it waits in
and streams more, which is not enough: on 5G eight and sixteen such devices get 21 and 28 % less than by plain
streaming, elsewhere 5 to 10 % less. Passes above 64 rows were not measured: they go on along the curve's mean
slope. Where passes cost the same up to hundreds of rows, drafts should pay for longer, which was not simulated
here.

"""


def cell(setup: Setup, link: str, mode: str, devices: int) -> dict[str, Any]:
    """So many devices in one mode. A round is from sending a draft (or asking for a token) to its verdict."""
    setups = [replace(setup.seeded(SEED + number), link=profile(link).link) for number in range(devices)]
    outcomes, load = simulate_many(setups, MODES[mode])
    both = together(outcomes)
    last = max(one.seconds for one in outcomes)
    rounds = [seconds for one in outcomes for seconds in one.rounds_s]
    return {
        "link": link,
        "mode": mode,
        "devices": devices,
        "tokens_per_s": round(both.tokens / last, 4),
        "per_device_per_s": round(sum(one.tokens / one.seconds for one in outcomes) / devices, 4),
        "forward_ms_per_token": round(1e3 * load.busy_s / both.tokens, 4),
        "rows_per_pass": round(load.rows / load.passes, 4),
        "busy": round(load.busy_s / last, 4),
        "round_p95_s": quantile(rounds, 0.95),
        "gap_p95_s": quantile(both.gaps_s, 0.95),
        "tau": both.round_tokens / both.rounds if both.rounds else None,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--drafter", default=SHIPPED)
    parser.add_argument(
        "--tokens", type=ending.count("--tokens"), default=4 * TOKENS, help="of the one answer of each device"
    )
    options = parser.parse_args()
    curve = read_curve(Path(__file__).parent / "costs" / f"{options.dtype}.json")
    measured = drafters(RESULTS / "drafters.json")
    ending.known("--drafter", (options.drafter,), measured)
    device = measured[options.drafter]
    setup = Setup(
        device=device,
        cost=VerifierCost(curve=curve, excess_s=EXCESS_S, rows_s=ROWS_S),
        answer=Answer(prompt=PROMPT, tokens=options.tokens),
    )
    cells = [
        cell(setup, link, mode, devices)
        for link in LINKS
        for mode in ("stream", "chain", "tree", "auto")
        for devices in DEVICES
    ]
    facts = machine(
        dtype=options.dtype, drafter=options.drafter, tokens=options.tokens, prompt=PROMPT, seed=SEED
    )
    rows = ",\n".join(json.dumps(one) for one in cells)
    text = f'{{"machine": {json.dumps(facts)},\n"cells": [\n{rows}\n]}}\n'
    (RESULTS / "devices.json").write_text(text, encoding="utf-8")
    head = (
        f"# Many devices on one verifier\n\nVirtual time, {options.drafter}, one answer of {options.tokens} tokens a "
        f"device, seeds from {SEED}. Passes: {options.dtype} on one core of {facts['cpu']}. "
        f"Commit {facts['commit']}.\n\n"
    )
    shown = "![Delivered tokens and the verifier's time against devices](devices.png)\n\n"
    page = head + SAYS + shown + "\n".join(table(cells, COLUMNS)) + "\n"
    (RESULTS / "devices.md").write_text(page, encoding="utf-8")
    from grid_figures import draw  # needs matplotlib, measuring does not

    draw("devices", cells)
    print(page)


if __name__ == "__main__":
    ending.run(main)
