"""`outrider-sim sweep`: grids of simulated answers against plain streaming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.client.cost import StepCost
from outrider.netsim.errors import BadConfig
from outrider.netsim.events.schema import Run
from outrider.netsim.events.writer import write as write_log
from outrider.netsim.faults import Schedule
from outrider.netsim.profiles import Profile, profile
from outrider.netsim.virtual import recorded, tables
from outrider.netsim.virtual.acceptance import Acceptance, by_alpha, by_tau
from outrider.netsim.virtual.modes import mode
from outrider.netsim.virtual.planner import Device
from outrider.netsim.virtual.run import logged
from outrider.netsim.virtual.session import Answer
from outrider.netsim.virtual.sweep import FLAT, Grid, numbers, read_curve
from outrider.netsim.virtual.sweep import sweep as run_sweep
from outrider.shared.program import version

MOST_CELLS = 100_000
Numbers = Annotated[str | None, typer.Option(help="numbers with commas between")]


Text = str | None
Rtts = Annotated[
    Text,
    typer.Option("--rtt-ms", help="round trips, with commas between", show_default="0,10,25,50,85,120,200"),
]
Rates = Annotated[
    Text, typer.Option("--mbit", help="rates of both directions; left out: the preset's, or unlimited")
]
Passes = Annotated[
    Text, typer.Option(help="passes of one row; scales the cost curve", show_default="30, or the curve's own")
]
Tau = Annotated[Text, typer.Option(help="tokens a round that chains of 6 bring", show_default="2,3,4")]
Alpha = Annotated[Text, typer.Option(help="shares of right first guesses, instead of --tau")]
Drafters = Annotated[Text, typer.Option(help="FILE:NAME of a measured drafter, instead of --tau")]
Recorded = Annotated[
    Path | None,
    typer.Option("--recorded", help="event log whose rounds say what is accepted, instead of --tau"),
]
Modes = Annotated[str, typer.Option("--mode", help="stream, unary, chain, tree, auto; with commas between")]
Preset = Annotated[str, typer.Option("--profile", help="a preset: jitter, loss, and what is not varied")]
Own = Annotated[bool, typer.Option("--outages", help="the preset's own random outages too")]
Cost = Annotated[Path | None, typer.Option(help="JSON of a measured cost curve; left out: a flat one")]
DraftMs = Annotated[float | None, typer.Option(help="a run of the drafter", show_default="5, or as measured")]
RowBytes = Annotated[int | None, typer.Option(help="state rows a token", show_default="0, or as measured")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object")]
Out = Annotated[Path | None, typer.Option(help="write the cells here too: .csv or .md")]
Events = Annotated[Path | None, typer.Option(help="write the event log of a single cell's first answer here")]


def sweep(
    rtt_ms: Rtts = None,
    mbit: Rates = None,
    verify_ms: Passes = None,
    tau: Tau = None,
    alpha: Alpha = None,
    drafters: Drafters = None,
    recorded_rounds: Recorded = None,
    modes: Modes = "stream,chain,tree,auto",
    profile_name: Preset = "loopback",
    outages: Own = False,
    cost: Cost = None,
    draft_ms: DraftMs = None,
    row_bytes: RowBytes = None,
    prompt: Annotated[int, typer.Option(help="tokens of a prompt")] = 64,
    tokens: Annotated[int, typer.Option(help="tokens of an answer")] = 128,
    answers: Annotated[int, typer.Option(help="answers a cell")] = 4,
    seed: Annotated[int, typer.Option(help="same seed, same bytes")] = 0,
    as_json: Json = False,
    out: Out = None,
    events: Events = None,
) -> None:
    """Predict what split decoding gains or costs over a grid of links, verifiers and drafters, in virtual time."""
    for name, value in (("prompt", prompt), ("tokens", tokens), ("answers", answers)):
        if not 1 <= value <= 100_000:
            raise BadConfig(name, f"expected a number from 1 to 100000, got {value}")
    chosen = profile(profile_name)
    device, accepts = device_of(tau, alpha, drafters, recorded_rounds, draft_ms, row_bytes)
    grid = Grid(
        rtt_ms=_rtts(rtt_ms, chosen),
        mbit=(None,) if mbit is None else numbers("mbit", mbit, low=0, open_low=True),
        verify_ms=_verify(verify_ms, cost),
        acceptance=accepts,
        modes=tuple(mode(name.strip()) for name in modes.split(",")),
        device=device,
        curve=FLAT if cost is None else read_curve(cost),
        link=chosen.link,
        schedule=_schedule(chosen, outages),
        answer=Answer(prompt=prompt, tokens=tokens, seed=seed),
        answers=answers,
    )
    cells = len(grid.rtt_ms) * len(grid.mbit) * len(grid.verify_ms) * len(accepts) * len(grid.modes)
    if cells > MOST_CELLS:
        raise BadConfig("grid", f"expected at most {MOST_CELLS} cells, got {cells}: vary less")
    if events is not None and cells != 1:
        raise BadConfig(
            "events", f"a log is of one answer: give single values and one mode, not {cells} cells"
        )
    if out is not None:
        tables.check_suffix(out)
    told = {"sweep": _settings(grid, chosen, outages)} | run_sweep(grid)
    if out is not None:
        tables.write(out, told)
    if events is not None:
        _write_events(events, grid, chosen)
    print(json.dumps(told) if as_json else tables.as_markdown(told), end="\n" if as_json else "")


def _rtts(text: str | None, chosen: Profile) -> tuple[float, ...]:
    if text is not None:
        return numbers("rtt_ms", text, low=0)
    own = chosen.link.rtt_s * 1e3
    return (own,) if own else (0.0, 10.0, 25.0, 50.0, 85.0, 120.0, 200.0)


def _verify(text: str | None, cost: Path | None) -> tuple[float | None, ...]:
    if text is not None:
        return numbers("verify_ms", text, low=0, open_low=True)
    return (30.0,) if cost is None else (None,)


def device_of(
    tau: str | None,
    alpha: str | None,
    drafters: str | None,
    rounds: Path | None,
    draft_ms: float | None,
    row_bytes: int | None,
) -> tuple[Device, tuple[tuple[float | None, Acceptance], ...]]:
    """The device that the options describe, and every acceptance asked for. Raises `BadConfig`."""
    named = {"tau": tau, "alpha": alpha, "drafters": drafters, "recorded": rounds}
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise BadConfig(given[1], f"acceptance is given once: leave out --{given[0]} or --{given[1]}")
    accepts: list[tuple[float | None, Acceptance]]
    step, rows, kind = StepCost(0.004, 0.001), 0, "assumed"
    if alpha is not None:
        accepts = [(None, by_alpha(value)) for value in numbers("alpha", alpha, low=0)]
    elif rounds is not None:
        accepts = [(None, recorded.from_events(rounds))]
    elif drafters is not None:
        measured = _measured(drafters)
        accepts = [(None, measured.acceptance)]
        step, rows, kind = measured.step, measured.row_bytes, measured.kind
    else:
        accepts = [(value, by_tau(value)) for value in numbers("tau", tau or "2,3,4", low=1)]
    step, rows = _dials(step, rows, draft_ms, row_bytes)
    return Device(kind=kind, step=step, acceptance=accepts[0][1], row_bytes=rows), tuple(accepts)


def _dials(step: StepCost, rows: int, draft_ms: float | None, row_bytes: int | None) -> tuple[StepCost, int]:
    """What was measured or assumed, where the command line says nothing else."""
    if draft_ms is not None:
        if not 0 < draft_ms < 1e6:
            raise BadConfig("draft_ms", f"expected milliseconds above 0, got {draft_ms:g}")
        step = StepCost(0.8 * draft_ms / 1e3, 0.2 * draft_ms / 1e3)
    if row_bytes is not None:
        if not 0 <= row_bytes <= 1_000_000:
            raise BadConfig("row_bytes", f"expected bytes from 0 to 1000000, got {row_bytes}")
        rows = row_bytes
    return step, rows


def _measured(text: str) -> Device:
    path, colon, name = text.rpartition(":")
    if not colon or not path:
        raise BadConfig("drafters", f"expected FILE:NAME, got {text!r}")
    found = recorded.drafters(Path(path))
    if name not in found:
        raise BadConfig("drafters", f"expected one of {', '.join(found)}, got {name!r}")
    return found[name]


def _schedule(chosen: Profile, outages: bool) -> Schedule:
    if not outages:
        return Schedule()
    if chosen.outages is None and not chosen.cut_for_good:
        raise BadConfig("outages", f"profile {chosen.name} has no outages of its own; leave --outages out")
    return chosen.schedule()


def _settings(grid: Grid, chosen: Profile, outages: bool) -> dict[str, Any]:
    return {
        "version": version(),
        "profile": chosen.name,
        "outages": outages,
        "prompt": grid.answer.prompt,
        "tokens": grid.answer.tokens,
        "answers": grid.answers,
        "drafter": grid.device.kind,
        "draft_pass_s": round(grid.device.step.pass_s, 9),
        "draft_node_s": round(grid.device.step.node_s, 9),
        "row_bytes": grid.device.row_bytes,
        "acceptance": [accepts.source for _, accepts in grid.acceptance],
        "widths": grid.curve.widths,
        "costs_us": grid.curve.costs_us,
    }


def _write_events(path: Path, grid: Grid, chosen: Profile) -> None:
    rtt, _, _, _, setup = next(iter(grid.points))
    lines = logged(setup, grid.modes[0])
    head = Run(
        mode=grid.modes[0].name,
        link=chosen.name,
        rtt_ms=rtt,
        drafter=grid.device.kind,
        seed=grid.answer.seed,
        virtual=True,
        versions={"outrider": version()},
    )
    write_log(path, head, lines)
