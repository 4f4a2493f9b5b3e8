"""Some cells of the client-server study through the real proxy, each with its virtual value."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from client_server_cells import ROWS_S, SEED, SHIPPED, TOKENS, Place, answer, cell

from outrider.client.pacing import law_of
from outrider.netsim.events.schema import Line
from outrider.netsim.profiles import profile
from outrider.netsim.report.parts import COLUMNS as PARTS
from outrider.netsim.report.parts import cells, parts
from outrider.netsim.virtual.acceptance import Acceptance
from outrider.netsim.virtual.modes import MODES
from outrider.netsim.virtual.planner import Device
from outrider.netsim.virtual.run import Setup, logged
from outrider.netsim.virtual.server import VerifierCost
from outrider.netsim.virtual.sweep import scaled

PROMPTS = Path(__file__).with_name("prompts.jsonl")
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


def real(answers: int, dtype: str, devices: dict[str, Device], cost: VerifierCost) -> list[dict[str, Any]]:
    """The cells of `REAL` through the proxy, one verifier for all, each with its virtual value.

    ``virtual`` is predicted from what was recorded elsewhere; ``matched`` from this run's own pass times (by plain
    streaming on loopback) and its own τ, which leaves link and protocol to be predicted.
    """
    from outrider.netsim.demo import DemoSettings, verifier
    from outrider.netsim.scenario.cell import cell_of, run_cell
    from outrider.netsim.scenario.device import Server
    from outrider.netsim.scenario.model import DeviceSpec, Question

    prompts = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    asked = [Question(f"prompt-{n}", row["prompt"], row["kind"]) for n, row in enumerate(prompts)][:answers]
    found = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        verifier(DemoSettings(dtype=dtype), Path(scratch)) as address,
    ):
        for link, mode in REAL:
            spec = DeviceSpec(mode=mode, max_tokens=TOKENS)  # type: ignore[arg-type]
            log: list[Line] = []
            scenario = cell_of(profile(link), spec, asked, seed=SEED)
            told = run_cell(scenario, Server(address=address), put=log.append)
            found.append(told | {"parts": parts_ms(log)})
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
    log: list[Line] = []
    for number in range(answers):
        setup = Setup(device=matched, cost=measured, link=place.settings, answer=answer(number))
        log += logged(setup, MODES[told["mode"]])
    return {
        "link": told["link"],
        "mode": told["mode"],
        "real": told,
        "virtual": pick(predict(device, cost)),
        "matched": pick(predict(matched, measured)) | {"parts": parts_ms(log)},
    }


def parts_ms(log: Sequence[Line]) -> dict[str, float] | None:
    """Where a round goes, milliseconds; None where nothing is drafted."""
    found = parts(log)
    return None if found is None else dict(zip(PARTS, (round(cell, 3) for cell in cells(found)), strict=True))


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
