"""How fast is virtual time? `python benchmarks/virtual.py [--json]`

A *link-minute* is a minute of an answer's life on its link: handshake, prefill, every draft, message and verdict, and
what the device writes alone meanwhile; nothing of it is idle time between answers. Figures are link-minutes simulated
per second of CPU time of one process on one core, decisions about draft sizes (which are made once and kept) included
after a first answer of every kind; the best of three. Goal: 1,000 for a sweep, that is, over a grid of constant links
in all modes. The time of a bare function call tells how busy the core was otherwise: 35 ns where it is quiet.

Links with jitter, loss and outages take the general moves, message by message; constant ones take short cuts that give
the same figures (`virtual/steady.py`). Both are shown.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import ending
from machine import machine

from outrider.netsim.faults import Schedule
from outrider.netsim.profiles import profile
from outrider.netsim.settings import LinkSettings
from outrider.netsim.virtual.modes import MODES
from outrider.netsim.virtual.recorded import drafters
from outrider.netsim.virtual.run import Setup, simulate
from outrider.netsim.virtual.server import VerifierCost
from outrider.netsim.virtual.session import Answer
from outrider.netsim.virtual.sweep import read_curve

HERE = Path(__file__).parent
GOAL = 1000
RTTS_MS = (5.0, 25.0, 50.0, 85.0, 120.0, 200.0)
PRESETS = ("5g-sa", "4g-medium", "4g-bad", "train")
SHIPPED = "moa (shipped)"


def timed(setup: Setup, mode: str, answers: int, first: int) -> tuple[float, float]:
    """(seconds of link time, seconds of CPU time) of so many answers."""
    begun = time.process_time()
    seconds = sum(simulate(setup.seeded(first + n), MODES[mode]).seconds for n in range(answers))
    return seconds, time.process_time() - begun


def call_ns() -> float:
    """CPU time of calling a function that does nothing."""

    def nothing() -> None:
        return

    begun = time.process_time()
    for _ in range(300_000):
        nothing()
    return (time.process_time() - begun) / 3e5 * 1e9


def rates(setups: list[Setup], answers: int) -> dict[str, float]:
    """Link-minutes a second by mode, and over all modes together."""
    found: dict[str, float] = {}
    link_s = cpu_s = 0.0
    for mode in MODES:
        for setup in setups:
            timed(setup, mode, answers, first=0)
        tries = [[timed(setup, mode, answers, first=answers) for setup in setups] for _ in range(3)]
        own_s = sum(pair[0] for pair in tries[0])
        spent_s = min(sum(pair[1] for pair in pairs) for pairs in tries)
        found[mode] = own_s / 60 / spent_s
        link_s, cpu_s = link_s + own_s, cpu_s + spent_s
    return {"all modes": link_s / 60 / cpu_s} | found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--answers", type=int, default=10, help="a cell")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args()
    cost = VerifierCost(curve=read_curve(HERE / "costs" / "bfloat16.json"), excess_s=0.002, rows_s=0.004)
    device = drafters(HERE / "results" / "drafters.json")[SHIPPED]
    plain = Setup(device=device, cost=cost, answer=Answer(prompt=64, tokens=256))
    grid = [replace(plain, link=LinkSettings.of(rtt_ms=rtt, up_mbit=10, down_mbit=20)) for rtt in RTTS_MS]
    told: dict[str, Any] = {"sweep (constant links)": rates(grid, options.answers)}
    for name in PRESETS:
        rough = replace(plain, link=profile(name).link, schedule=profile(name).schedule())
        told[name] = rates([rough], options.answers)
    calm = [replace(plain, link=profile(name).link, schedule=Schedule()) for name in PRESETS]
    told["presets without outages"] = rates(calm, options.answers)
    for name, found in told.items():
        print(f"{name:28}" + "".join(f"{mode} {rate:8.0f}   " for mode, rate in found.items()))
    busy_ns = call_ns()
    print(f"a bare call: {busy_ns:.0f} ns")
    met = told["sweep (constant links)"]["all modes"] >= GOAL
    print(f"goal {GOAL} link-minutes a second for a sweep: {'met' if met else 'NOT met'}")
    if options.json:
        rounded = {name: {mode: round(rate) for mode, rate in found.items()} for name, found in told.items()}
        print(
            json.dumps(
                {"link_minutes_per_s": rounded, "met": met, "machine": machine(answers=options.answers)}
            )
        )


if __name__ == "__main__":
    ending.run(main)
