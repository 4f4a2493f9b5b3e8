"""Some cells of the client-server study through the real proxy, each with its virtual value."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from client_server_cells import ROWS_S, SEED, TOKENS, Place, answer, cell

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


def real(answers: int, dtype: str) -> list[dict[str, Any]]:
    """The cells of `REAL` through the proxy, one verifier for all."""
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
    return found


def beside(found: Sequence[dict[str, Any]], device: Device, cost: VerifierCost) -> list[dict[str, Any]]:
    """Real cells with what virtual time says about them.

    ``virtual`` is predicted from what was recorded elsewhere. ``matched`` has the cell's own τ and, for chains and
    trees, the verifier's own time a verdict, which leaves device, link and protocol to be predicted: the host's speed
    changes by itself, within seconds and by up to a factor of two. Streamed tokens carry no times, so the other modes
    get the passes that the verifier advertised in the streaming cell of their link.
    """
    streams = {one["link"]: one for one in found if one["mode"] == "stream"}
    pairs = []
    for told in found:
        place = Place(told["link"], profile(told["link"]).link)
        settings = Cell(place, told["mode"], told["answers"])
        if told["mode"] in ("stream", "auto"):
            one_ms = streams[told["link"]]["forward_ms_per_token"]
            measured = VerifierCost(curve=scaled(cost.curve, one_ms), rows_s=ROWS_S)
            matched = like(device, told["tau"], settings, measured)
        else:
            matched, measured = as_slow(told, device, cost, settings)
        pairs.append(
            {
                "link": told["link"],
                "mode": told["mode"],
                "real": told,
                "virtual": settings.figures(device, cost),
                "matched": settings.figures(matched, measured) | {"parts": settings.parts(matched, measured)},
            }
        )
    return pairs


FIGURES = (
    "tokens_per_s",
    "ttft_s",
    "gap_p50_s",
    "gap_p95_s",
    "tau",
    "forward_ms_per_token",
    "calls_per_token",
)
TRIES = 4
"""Times that the verifier's speed is corrected: drafts change with it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A link and a mode in virtual time."""

    place: Place
    mode: str
    answers: int

    def figures(self, device: Device, cost: VerifierCost) -> dict[str, Any]:
        """`FIGURES` with this device on such a verifier."""
        found = cell(self.place, device, cost, self.mode, self.answers)
        return {name: found[name] for name in FIGURES}

    def parts(self, device: Device, cost: VerifierCost) -> dict[str, float] | None:
        """Where its rounds go."""
        log: list[Line] = []
        for number in range(self.answers):
            setup = Setup(device=device, cost=cost, link=self.place.settings, answer=answer(number))
            log += logged(setup, MODES[self.mode])
        return parts_ms(log)


def as_slow(
    told: dict[str, Any], device: Device, cost: VerifierCost, settings: Cell
) -> tuple[Device, VerifierCost]:
    """Device and verifier with the real cell's τ and time a verdict."""
    one_ms = cost.curve.costs_us[0] / 1e3
    for _ in range(TRIES):
        measured = VerifierCost(curve=scaled(cost.curve, one_ms), rows_s=ROWS_S)
        matched = like(device, told["tau"], settings, measured)
        own = settings.parts(matched, measured)
        if own is None:
            break
        one_ms *= told["parts"]["verifier ms"] / own["verifier ms"]
    return matched, measured


def parts_ms(log: Sequence[Line]) -> dict[str, float] | None:
    """Where a round goes, milliseconds; None where nothing is drafted."""
    found = parts(log)
    return None if found is None else dict(zip(PARTS, (round(cell, 3) for cell in cells(found)), strict=True))


def like(device: Device, tau: float | None, settings: Cell, cost: VerifierCost) -> Device:
    """The device with its acceptance shifted so that simulated rounds bring ``tau`` tokens (None: as it is)."""
    if tau is None:
        return device
    best, apart = device, float("inf")
    for percent in range(20, 96, 3):
        law = law_of(device.acceptance.law, percent)
        law = tuple(tuple(min(ranks[: n + 1]) for n in range(len(ranks))) for ranks in law)
        shifted = replace(device, acceptance=Acceptance(law, f"{percent} %"))
        found = settings.figures(shifted, cost)["tau"]
        if found is not None and abs(found - tau) < apart:
            best, apart = shifted, abs(found - tau)
    return best
