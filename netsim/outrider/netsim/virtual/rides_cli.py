"""`outrider-sim rides`: a scenario in virtual time, many times over, in every mode."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

import typer

from outrider.netsim.errors import BadConfig
from outrider.netsim.scenario.shipped import find
from outrider.netsim.virtual import cli, tables
from outrider.netsim.virtual.modes import mode
from outrider.netsim.virtual.rides import Riding
from outrider.netsim.virtual.rides import rides as run_rides
from outrider.netsim.virtual.server import VerifierCost
from outrider.netsim.virtual.session import Answer
from outrider.netsim.virtual.sweep import FLAT, numbers, read_curve, scaled
from outrider.shared.program import version

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("mode", "mode", "{}"),
    ("answers", "answers", "{}"),
    ("tokens_per_s", "tokens/s", "{:.1f}"),
    ("first_token_s", "first token s", "{:.2f}"),
    ("gap_p95_s", "gap p95 s", "{:.3f}"),
    ("longest_gap_s", "longest gap s", "{:.2f}"),
    ("offline_share", "offline", "{:.1%}"),
    ("kept", "kept", "{}"),
    ("revised", "revised", "{}"),
    ("reconnects", "reconnects", "{}"),
    ("tau", "τ", "{:.2f}"),
)
One = str | None


def rides(
    scenario: Annotated[str, typer.Argument(help="a scenario file, or the name of a shipped one")],
    count: Annotated[int, typer.Option("--rides", help="how often; seeds count up")] = 10,
    modes: cli.Modes = "stream,chain,tree,auto",
    tau: Annotated[One, typer.Option(help="tokens a round that chains of 6 bring", show_default="3")] = None,
    alpha: Annotated[One, typer.Option(help="share of right first guesses, instead of --tau")] = None,
    drafters: cli.Drafters = None,
    recorded_rounds: cli.Recorded = None,
    verify_ms: Annotated[
        One, typer.Option(help="a pass of one row; scales the curve", show_default="30, or the curve's own")
    ] = None,
    cost: cli.Cost = None,
    draft_ms: cli.DraftMs = None,
    row_bytes: cli.RowBytes = None,
    prompt: Annotated[int, typer.Option(help="tokens of a prompt")] = 64,
    tokens: Annotated[int | None, typer.Option(help="tokens of an answer, instead of the scenario's")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="of the first ride, instead of the scenario's")
    ] = None,
    as_json: cli.Json = False,
    out: cli.Out = None,
) -> None:
    """Ride through a scenario in virtual time, with every mode; the same seeds give the same bytes."""
    chosen = find(scenario)
    length = chosen.device.max_tokens if tokens is None else tokens
    for name, value in (("rides", count), ("prompt", prompt), ("tokens", length)):
        if not 1 <= value <= 100_000:
            raise BadConfig(name, f"expected a number from 1 to 100000, got {value}")
    if all(given is None for given in (tau, alpha, drafters, recorded_rounds)):
        tau = "3"
    device, accepts = cli.device_of(tau, alpha, drafters, recorded_rounds, draft_ms, row_bytes)
    passes = (30.0,) if verify_ms is None else numbers("verify_ms", verify_ms, low=0, open_low=True)
    if len(accepts) != 1 or len(passes) != 1:
        raise BadConfig("tau" if len(passes) == 1 else "verify_ms", "expected one value: rides have no grid")
    given_s = None if cost is not None and verify_ms is None else passes[0]
    curve = scaled(FLAT if cost is None else read_curve(cost), given_s)
    if out is not None:
        tables.check_suffix(out)
    riding = Riding(
        scenario=chosen,
        device=replace(device, acceptance=accepts[0][1]),
        cost=VerifierCost(curve=curve),
        answer=Answer(prompt=prompt, tokens=length, seed=chosen.seed if seed is None else seed),
        rides=count,
    )
    cells = run_rides(riding, [mode(name.strip()) for name in modes.split(",")])
    told = {"rides": _settings(riding), "cells": cells}
    page = "\n".join(tables.table(cells, COLUMNS)) + "\n"
    if out is not None:
        tables.save(out, cells, page)
    print(json.dumps(told) if as_json else page, end="\n" if as_json else "")


def _settings(riding: Riding) -> dict[str, Any]:
    return {
        "version": version(),
        "scenario": riding.scenario.name,
        "seed": riding.answer.seed,
        "rides": riding.rides,
        "questions": len(riding.scenario.questions),
        "prompt": riding.answer.prompt,
        "tokens": riding.answer.tokens,
        "drafter": riding.device.kind,
        "acceptance": riding.device.acceptance.source,
        "row_bytes": riding.device.row_bytes,
        "widths": riding.cost.curve.widths,
        "costs_us": riding.cost.curve.costs_us,
    }
