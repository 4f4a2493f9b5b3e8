"""``outrider-sim faults``: run many schedules over the real cores, or one of them with all it did."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated

import typer

from outrider.netsim.world.checker import Violation, summary
from outrider.netsim.world.mutants import MUTANTS
from outrider.netsim.world.schedule import make_schedule
from outrider.netsim.world.shrink import command, shrink
from outrider.netsim.world.world import Build, Result, run

CHUNK = 50
_MOST_SHOWN = 10


@dataclass(slots=True)
class Tally:
    """What a range of seeds gave."""

    schedules: int = 0
    failing: dict[int, list[Violation]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0

    def add(self, other: Tally) -> None:
        """Take in another range."""
        self.schedules += other.schedules
        self.failing.update(other.failing)
        self.faults.update(other.faults)
        self.figures.update(other.figures)
        self.virtual_s += other.virtual_s


def run_range(start: int, stop: int, mutant: str = "", until_caught: bool = False) -> Tally:
    """Run the seeds start … stop-1; with ``until_caught`` only up to the first failing one."""
    build = MUTANTS[mutant] if mutant else Build()
    tally = Tally()
    for seed in range(start, stop):
        result = run(make_schedule(seed), build)
        tally.schedules += 1
        tally.virtual_s += result.seconds
        tally.faults.update(fault.kind for fault in result.schedule.faults)
        tally.figures.update(result.figures)
        if result.violations:
            tally.failing[seed] = result.violations
            if until_caught:
                break
    return tally


def faults(
    seeds: Annotated[int, typer.Option(help="schedules to run", min=1)] = 1000,
    start: Annotated[int, typer.Option(help="first seed", min=0)] = 0,
    seed: Annotated[int | None, typer.Option(help="run this one schedule only")] = None,
    keep: Annotated[str, typer.Option(help="with --seed: numbers of the faults to keep, or 'none'")] = "",
    trace: Annotated[
        bool, typer.Option("--trace", help="with --seed: print everything that happened")
    ] = False,
    mutant: Annotated[str, typer.Option(help=f"run with a seeded bug: {', '.join(MUTANTS)}")] = "",
    jobs: Annotated[int, typer.Option(help="processes", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object as the last line")] = False,
) -> None:
    """Run the session machine and the session table under seeded faults and check every law."""
    if mutant and mutant not in MUTANTS:
        raise typer.BadParameter(f"unknown bug {mutant!r}; one of {', '.join(MUTANTS)}")
    if seed is not None:
        raise typer.Exit(_one(seed, keep, trace, mutant, as_json))
    raise typer.Exit(_many(start, seeds, mutant, jobs, as_json))


def _one(seed: int, keep: str, trace: bool, mutant: str, as_json: bool) -> int:
    schedule = make_schedule(seed)
    if keep:
        schedule = schedule.keep(() if keep == "none" else tuple(int(number) for number in keep.split(",")))
    result = run(schedule, MUTANTS[mutant] if mutant else Build())
    if trace:
        _show_schedule(result)
        typer.echo("\n".join(result.history.lines()))
    typer.echo("\n".join(summary(result.violations)) or f"seed {seed}: every law holds")
    if as_json:
        typer.echo(json.dumps({"schedules": 1, "violations": len(result.violations), "seed": seed}))
    return 1 if result.violations else 0


def _many(start: int, seeds: int, mutant: str, jobs: int, as_json: bool) -> int:
    began = time.monotonic()
    tally = Tally()
    for part in _parts(start, seeds, mutant, jobs):
        tally.add(part)
    seconds = time.monotonic() - began
    for seed in sorted(tally.failing)[:_MOST_SHOWN]:
        _show_failure(seed, mutant)
    struck = ", ".join(f"{kind} {number}" for kind, number in sorted(tally.faults.items()))
    typer.echo(f"{tally.schedules} schedules, {len(tally.failing)} with violations, {seconds:.0f} s")
    typer.echo(f"faults: {struck}")
    if as_json:
        report = {
            "schedules": tally.schedules,
            "violations": len(tally.failing),
            "failing_seeds": sorted(tally.failing)[:100],
            "start": start,
            "mutant": mutant,
            "faults": dict(sorted(tally.faults.items())),
            "figures": dict(sorted(tally.figures.items())),
            "virtual_s": round(tally.virtual_s),
            "seconds": round(seconds, 1),
        }
        typer.echo(json.dumps(report))
    return 1 if tally.failing else 0


def _parts(start: int, seeds: int, mutant: str, jobs: int) -> Iterator[Tally]:
    ranges = [(at, min(at + CHUNK, start + seeds), mutant) for at in range(start, start + seeds, CHUNK)]
    if jobs == 1:
        yield from (run_range(*one) for one in ranges)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_run_one_range, ranges)


def _run_one_range(one: tuple[int, int, str]) -> Tally:
    return run_range(*one)


def _show_failure(seed: int, mutant: str) -> None:
    build = MUTANTS[mutant] if mutant else Build()
    small = shrink(run(make_schedule(seed), build), build)
    typer.echo(f"seed {seed}: {len(small.schedule.faults)} faults are enough; {command(small, mutant)}")
    typer.echo("\n".join(f"  {line}" for line in summary(small.violations)[:3]))


def _show_schedule(result: Result) -> None:
    for number, fault in enumerate(result.schedule.faults):
        typer.echo(f"fault {number}: {fault}")
    for number, device in enumerate(result.schedule.devices):
        typer.echo(f"device {number}: {json.dumps(asdict(device), default=str)}")
