"""Client and server over mobile links: every drafter, every way to get tokens, every link, in virtual time.

::

    python benchmarks/client_server.py --trace lirr=train,PATH/Long_Island_Rail_Road.csv \\
        --trace att-lte=4g-medium,PATH/ATT-LTE-driving-2016.down.gz,PATH/ATT-LTE-driving-2016.up.gz
    python benchmarks/client_server.py --real        # afterwards: some cells through the proxy as well

Acceptance, step times and row sizes are those of `results/drafters.json`, pass times those of `costs/`. Presets bring
their own random outages; a trace brings those that it has, and every answer begins at another place of it. Writes
`results/client_server.json` and `.md`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from machine import machine

from outrider.client.pacing import law_of
from outrider.netsim.faults import Schedule
from outrider.netsim.profiles import profile
from outrider.netsim.settings import LinkSettings
from outrider.netsim.traces import Trace
from outrider.netsim.traces import read as read_trace
from outrider.netsim.virtual.acceptance import Acceptance
from outrider.netsim.virtual.modes import MODES
from outrider.netsim.virtual.outcome import together
from outrider.netsim.virtual.planner import Device
from outrider.netsim.virtual.recorded import drafters
from outrider.netsim.virtual.run import Setup, simulate
from outrider.netsim.virtual.server import VerifierCost
from outrider.netsim.virtual.session import Answer
from outrider.netsim.virtual.sweep import read_curve, scaled
from outrider.netsim.virtual.tables import COLUMNS as SWEPT
from outrider.netsim.virtual.tables import table

HERE = Path(__file__).parent
RESULTS = HERE / "results"
LINKS = ("loopback", "5g-sa", "5g-nsa", "4g-good", "4g-medium", "4g-bad", "leo", "subway", "train")
EXCESS_S, ROWS_S = 0.002, 0.004
"""What a verdict takes beyond its pass, and rows after it: the goals, which the verifier met on an idle core."""
TRACE_STEP_S = 41.0
"""Every answer begins so much later in a trace than the one before."""
PROMPT, TOKENS, ANSWERS, SEED = 64, 128, 24, 7
REAL = (
    ("loopback", "stream"),
    ("loopback", "tree"),
    ("5g-sa", "stream"),
    ("5g-sa", "chain"),
    ("5g-sa", "auto"),
    ("4g-medium", "stream"),
    ("4g-medium", "tree"),
    ("4g-medium", "auto"),
)
"""Cells measured through the proxy, with the shipped drafter."""
SHIPPED = "moa (shipped)"


@dataclass(frozen=True, slots=True)
class Place:
    """A link of the grid."""

    name: str
    settings: LinkSettings
    schedule: Schedule = Schedule()
    down: Trace | None = None
    up: Trace | None = None

    def at(self, number: int) -> LinkSettings:
        """The link of answer number ``number``."""
        return self.settings if self.down is None else _shifted(self.settings, self.down, self.up, number)


@cache
def _shifted(settings: LinkSettings, down: Trace, up: Trace | None, number: int) -> LinkSettings:
    by_s = TRACE_STEP_S * number
    return settings.following(down.shifted(by_s), None if up is None else up.shifted(by_s))


def places(traces: Sequence[str]) -> Iterator[Place]:
    """The presets with their outages, then the traces: ``name=preset,down[,up]``."""
    for name in LINKS:
        yield Place(name, profile(name).link, profile(name).schedule())
    for text in traces:
        name, _, rest = text.partition("=")
        preset, *paths = rest.split(",")
        if not name or len(paths) not in (1, 2):
            raise SystemExit(f"--trace: expected NAME=PRESET,DOWN[,UP], got {text!r}")
        found = [read_trace(path) for path in paths]
        yield Place(name, profile(preset).link, Schedule(), found[0], found[1] if len(found) == 2 else None)


def cell(place: Place, device: Device, cost: VerifierCost, mode: str, answers: int) -> dict[str, Any]:
    """One cell's figures."""
    outcomes = []
    for number in range(answers):
        setup = Setup(
            device=device,
            cost=cost,
            link=place.at(number),
            schedule=place.schedule,
            answer=Answer(prompt=PROMPT, tokens=TOKENS, seed=SEED + number),
        )
        outcomes.append(simulate(setup, MODES[mode]))
    return together(outcomes).figures()


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


# ------------------------------------------------------------------------------------------------ through the proxy


def real(answers: int, dtype: str, devices: dict[str, Device], cost: VerifierCost) -> list[dict[str, Any]]:
    """The cells of `REAL` through the proxy, one verifier for all, each with its virtual value.

    ``virtual`` is predicted from what was recorded elsewhere; ``matched`` from this run's own pass times (by plain
    streaming on loopback) and its own τ, which leaves link and protocol to be predicted.
    """
    from outrider.netsim.demo import DemoSettings, verifier
    from outrider.netsim.scenario.cell import cell_of, run_cell
    from outrider.netsim.scenario.device import Server
    from outrider.netsim.scenario.model import DeviceSpec, Question

    prompts = [json.loads(line) for line in (HERE / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    asked = [Question(f"prompt-{n}", row["prompt"], row["kind"]) for n, row in enumerate(prompts)][:answers]
    found = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        verifier(DemoSettings(dtype=dtype), Path(scratch)) as address,
    ):
        for link, mode in REAL:
            spec = DeviceSpec(mode=mode, max_tokens=TOKENS)  # type: ignore[arg-type]
            told = run_cell(cell_of(profile(link), spec, asked, seed=SEED), Server(address=address))
            found.append(told)
            print(f"{link}, {mode}: {told['tokens_per_s']:.2f} tokens/s", file=sys.stderr)
    own = next(one for one in found if one["mode"] == "stream")
    measured = VerifierCost(curve=scaled(cost.curve, own["forward_ms_per_token"]), rows_s=ROWS_S)
    return [beside(one, devices[SHIPPED], cost, measured, answers) for one in found]


def beside(
    told: dict[str, Any], device: Device, cost: VerifierCost, measured: VerifierCost, answers: int
) -> dict[str, Any]:
    """A real cell with what virtual time says about it."""
    place = Place(told["link"], profile(told["link"]).link)
    predict: Callable[[Device, VerifierCost], dict[str, Any]] = lambda drafter, verifier: cell(  # noqa: E731
        place, drafter, verifier, told["mode"], answers
    )
    matched = like(device, told["tau"], lambda drafter: predict(drafter, measured)["tau"])
    names = (
        "tokens_per_s",
        "ttft_s",
        "gap_p50_s",
        "gap_p95_s",
        "tau",
        "forward_ms_per_token",
        "calls_per_token",
    )
    pick: Callable[[dict[str, Any]], dict[str, Any]] = lambda all_: {name: all_[name] for name in names}  # noqa: E731
    return {
        "link": told["link"],
        "mode": told["mode"],
        "real": told,
        "virtual": pick(predict(device, cost)),
        "matched": pick(predict(matched, measured)),
    }


def like(device: Device, tau: float | None, tau_of: Callable[[Device], float | None]) -> Device:
    """The device with its acceptance shifted so that simulated rounds bring ``tau`` tokens (None: as it is)."""
    if tau is None:
        return device
    best, apart = device, float("inf")
    for percent in range(20, 96, 3):
        law = law_of(device.acceptance.law, percent)
        law = tuple(tuple(min(ranks[: n + 1]) for n in range(len(ranks))) for ranks in law)
        shifted = replace(device, acceptance=Acceptance(law, f"{percent} %"))
        found = tau_of(shifted)
        if found is not None and abs(found - tau) < apart:
            best, apart = shifted, abs(found - tau)
    return best


# ----------------------------------------------------------------------------------------------------------- the page


def page(told: dict[str, Any]) -> str:
    """The Markdown of the results."""
    facts, cells = told["machine"], told["cells"]
    links = list(dict.fromkeys(one["link"] for one in cells))
    lines = [
        "# Client and server over mobile links",
        "",
        f"Virtual time, {facts['answers']} answers a cell, {PROMPT} tokens of prompt, {TOKENS} of answer, seeds from "
        f"{SEED}. Passes: {told['cost']['dtype']} on one core of {facts['cpu']}. Commit {facts['commit']}. "
        "**Bold** is faster than plain streaming on the same link.",
        "",
        *SAYS,
        "",
        "## Tokens per second",
        "",
        *pivot(cells, links, "tokens_per_s", "{:.1f}"),
        "",
        "## Pauses: 95th percentile of the time between moments at which tokens appeared, seconds",
        "",
        *pivot(cells, links, "gap_p95_s", "{:.2f}"),
        "",
        "## Longest pause, seconds",
        "",
        *pivot(cells, links, "longest_gap_s", "{:.1f}"),
        "",
        "## Target's time a token, milliseconds",
        "",
        *pivot(cells, links, "forward_ms_per_token", "{:.0f}"),
        "",
        f"## All figures of {SHIPPED} and of what needs no drafter",
        "",
        *table([one for one in cells if one["drafter"] in ("none", SHIPPED)], COLUMNS),
    ]
    if told.get("real"):
        lines += [
            "",
            "## Through the real proxy, beside virtual time",
            "",
            *table(flat(told["real"]), REAL_COLUMNS),
        ]
        lines += [
            "",
            "*virtual*: predicted from what was recorded; *matched*: from this run's pass times and τ. Virtual time is "
            "an optimist: where *real / matched* is below 1, rounds took longer than the model knows; device and "
            "verifier sharing one machine's memory is one reason, what else was not separated.",
        ]
    return "\n".join(lines) + "\n"


SAYS = (
    "**What it says.** Synchronous edge drafting pays the round trip once a round, streaming once an answer, and "
    "a pass here takes 53 to 75 ms. So drafting wins where the round trip is short beside what a round brings "
    "(loopback, 5G standalone, with the best drafters up to 4G in good coverage) and loses everywhere else, by up "
    "to half and more on bad 4G; trees lose later than chains. A unary call a token is never better than "
    "streaming. Run-ahead takes the better side of both within a few percent, but on bad 4G it stays 5 to 8 % "
    "behind plain streaming, which is against us: its first window asks for nothing before the link is known, "
    "every attempt to draft again costs a round trip, and state rows follow every streamed token (without them it "
    "is one percent better). Where drafts are used, the verifier spends about half the time a token.",
    "",
    "Outages, and lost packets that TCP repairs after 200 ms or more, make verdicts late, and the device writes "
    "on. Where outages are short the longest pauses are then shorter than streaming's, on the worst links they "
    "are not. Nearly all of that text is taken back (95 %): it stands up to the first wrong guess, and about one "
    "guess in two is wrong.",
    "",
    "**What it leaves out.** The device is a core of the same machine (a phone's drafter has another speed). "
    "There is no second round in flight, no slow start of TCP; drafts have the size that is best on average and "
    "do not grow with the drafter's confidence in the single text; rounds in which prompt lookup is silent count "
    "as wrong drafts; every position has its own luck, where real texts have easy and hard stretches.",
)
COLUMNS = (
    ("link", "link", "{}"),
    *(column for column in SWEPT if column[0] not in ("rtt_ms", "mbit", "verify_ms", "tau_asked")),
    ("provisional", "provisional", "{}"),
    ("revised", "revised", "{}"),
)
REAL_COLUMNS = (
    ("link", "link", "{}"),
    ("mode", "mode", "{}"),
    ("real_tokens_per_s", "tokens/s", "{:.2f}"),
    ("virtual_tokens_per_s", "virtual", "{:.2f}"),
    ("matched_tokens_per_s", "matched", "{:.2f}"),
    ("ratio", "real / matched", "{:.2f}"),
    ("real_tau", "τ", "{:.2f}"),
    ("virtual_tau", "virtual", "{:.2f}"),
    ("real_ttft_s", "first token s", "{:.2f}"),
    ("matched_ttft_s", "matched", "{:.2f}"),
    ("real_gap_p50_s", "gap p50 s", "{:.3f}"),
    ("matched_gap_p50_s", "matched", "{:.3f}"),
)


def flat(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Real cells with their virtual values in one row each."""
    rows = []
    for one in cells:
        row = {"link": one["link"], "mode": one["mode"]}
        for side in ("real", "virtual", "matched"):
            row |= {f"{side}_{name}": value for name, value in one[side].items()}
        row["ratio"] = one["real"]["tokens_per_s"] / one["matched"]["tokens_per_s"]
        rows.append(row)
    return rows


def pivot(cells: Sequence[dict[str, Any]], links: Sequence[str], field: str, form: str) -> list[str]:
    """One figure: a row for each drafter and mode, a column for each link."""
    rows = list(dict.fromkeys((one["drafter"], one["mode"]) for one in cells))
    found = {(one["drafter"], one["mode"], one["link"]): one for one in cells}
    lines = [f"| drafter | mode | {' | '.join(links)} |", "| --- | --- |" + " ---: |" * len(links)]
    for drafter, mode in rows:
        words = []
        for link in links:
            one = found[drafter, mode, link]
            word = "–" if one[field] is None else form.format(one[field])
            words.append(f"**{word}**" if field == "tokens_per_s" and one["beats_streaming"] else word)
        lines.append(f"| {drafter} | {mode} | {' | '.join(words)} |")
    return lines


def write(told: dict[str, Any]) -> None:
    """JSON with a cell a line, and the page."""
    lists = {name: told[name] for name in ("cells", "real") if told.get(name)}
    rest = {name: value for name, value in told.items() if name not in ("cells", "real")}
    parts = [f'"{name}": {json.dumps(value)}' for name, value in rest.items()]
    for name, rows in lists.items():
        parts.append(f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]")
    (RESULTS / "client_server.json").write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")
    (RESULTS / "client_server.md").write_text(page(told), encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trace", action="append", default=[], help="NAME=PRESET,DOWN[,UP]; repeatable")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--answers", type=int, default=ANSWERS)
    parser.add_argument(
        "--real", action="store_true", help="measure the cells through the proxy; keeps the grid"
    )
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    parser.add_argument("--real-answers", type=int, default=6)
    options = parser.parse_args()
    path = HERE / "costs" / f"{options.dtype}.json"
    cost = VerifierCost(curve=read_curve(path), excess_s=EXCESS_S, rows_s=ROWS_S)
    devices = drafters(RESULTS / "drafters.json")
    told: dict[str, Any]
    if options.page or options.real:
        told = json.loads((RESULTS / "client_server.json").read_text(encoding="utf-8"))
    if options.real:
        told["real"] = real(options.real_answers, options.dtype, devices, cost)
        told["real_machine"] = machine(
            dtype=options.dtype, answers=options.real_answers, tokens=TOKENS, seed=SEED
        )
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
    main()
