"""Grids of simulated answers, and where a mode draws level with remote streaming."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import Schedule
from outrider.netsim.settings import LinkSettings
from outrider.netsim.virtual.acceptance import Acceptance
from outrider.netsim.virtual.modes import MODES, Mode
from outrider.netsim.virtual.outcome import Outcome, together
from outrider.netsim.virtual.planner import Device
from outrider.netsim.virtual.run import Setup, simulate
from outrider.netsim.virtual.server import VerifierCost
from outrider.netsim.virtual.session import Answer
from outrider.shared.frames import CostCurve

BASELINE = "stream"
FLAT = CostCurve((1, 64), (1_000_000, 1_000_000), 0, 50_000)
"""Without a measured curve: a pass costs the same up to 64 rows, and a token of prefill a twentieth of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is varied, and what is not. Every list has at least one value."""

    rtt_ms: tuple[float, ...]
    mbit: tuple[float | None, ...]
    """Both directions; None is unlimited."""
    verify_ms: tuple[float | None, ...]
    """A pass of one row; the cost curve is scaled to it. None: the curve as it is."""
    acceptance: tuple[tuple[float | None, Acceptance], ...]
    """τ (or another name's number; None for recorded ones) and what it means."""
    modes: tuple[Mode, ...]
    device: Device
    curve: CostCurve = FLAT
    link: LinkSettings = field(default_factory=LinkSettings)
    """What the grid does not vary: jitter, loss, spikes."""
    schedule: Schedule = field(default_factory=Schedule)
    answer: Answer = field(default_factory=Answer)
    answers: int = 4
    """Answers a cell, seeds counting up from the answer's."""

    @property
    def points(self) -> Iterator[tuple[float, float | None, float | None, float | None, Setup]]:
        """Every combination but the mode's."""
        for rtt, mbit, verify, (tau, accepts) in product(
            self.rtt_ms, self.mbit, self.verify_ms, self.acceptance
        ):
            link = self.link.override(rtt_ms=rtt, up_mbit=mbit, down_mbit=mbit)
            setup = Setup(
                device=replace(self.device, acceptance=accepts),
                cost=VerifierCost(curve=scaled(self.curve, verify)),
                link=link,
                schedule=self.schedule,
                answer=self.answer,
            )
            yield rtt, mbit, verify, tau, setup


def scaled(curve: CostCurve, verify_ms: float | None) -> CostCurve:
    """The curve with a pass of one row at ``verify_ms``."""
    if verify_ms is None:
        return curve
    factor = 1e3 * verify_ms / curve.costs_us[0]
    costs = tuple(max(round(cost * factor), 1) for cost in curve.costs_us)
    return replace(curve, costs_us=costs, prefill_us_per_token=round(curve.prefill_us_per_token * factor))


def answers(setup: Setup, mode: Mode, count: int) -> Outcome:
    """So many answers with seeds counting up, taken together."""
    first = setup.answer.seed
    return together([simulate(setup.seeded(seed), mode) for seed in range(first, first + count)])


def sweep(grid: Grid) -> dict[str, Any]:
    """All cells with their figures, each held against streaming at the same point, and the break-even round trips."""
    cells: list[dict[str, Any]] = []
    for rtt, mbit, verify, tau, setup in grid.points:
        base = answers(setup, MODES[BASELINE], grid.answers)
        rate = base.tokens / base.seconds if base.seconds else 0.0
        for mode in grid.modes:
            outcome = base if mode.name == BASELINE else answers(setup, mode, grid.answers)
            told = outcome.figures()
            # Rounded before it is compared: equal rates must not win by their last digits.
            gain = round(told["tokens_per_s"] / rate, 6) if rate and told["tokens_per_s"] else None
            place = {"rtt_ms": rtt, "mbit": mbit, "verify_ms": verify, "tau_asked": tau, "mode": mode.name}
            against = {
                "streaming_per_s": round(rate, 6),
                "gain": gain,
                "beats_streaming": gain is not None and mode.name != BASELINE and gain > 1,
            }
            cells.append(place | told | against)
    return {"seed": grid.answer.seed, "cells": cells, "break_even": break_even(cells)}


def break_even(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per line of cells that differ in their round trip alone: where the gain over streaming crosses 1.

    Linear between neighbours; ``rtt_ms`` has every crossing. Without one, ``always`` says which side the line is on.
    """
    lines: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for cell in cells:
        if cell["mode"] != BASELINE and cell["gain"] is not None:
            key = (cell["mbit"], cell["verify_ms"], cell["tau_asked"], cell["mode"])
            lines.setdefault(key, []).append((cell["rtt_ms"], cell["gain"]))
    found = []
    for (mbit, verify, tau, mode), points in lines.items():
        points.sort()
        crossings = [
            round(left + (right - left) * (1 - low) / (high - low), 3)
            for (left, low), (right, high) in zip(points, points[1:], strict=False)
            if (low > 1) is not (high > 1)
        ]
        always = None if crossings else ("faster" if points[0][1] > 1 else "not faster")
        place = {"mbit": mbit, "verify_ms": verify, "tau_asked": tau, "mode": mode}
        found.append(place | {"rtt_ms": crossings, "always": always})
    return found


def read_curve(path: Path) -> CostCurve:
    """A measured cost curve: JSON with widths, costs_us and prefill_us_per_token. Raises `BadConfig`."""
    told = read_json(path, "cost")
    try:
        curve = CostCurve(
            tuple(int(width) for width in told["widths"]),
            tuple(int(cost) for cost in told["costs_us"]),
            int(told.get("context_tokens", 0)),
            int(told["prefill_us_per_token"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{path}: expected widths, costs_us and prefill_us_per_token in whole numbers ({error})"
        raise BadConfig("cost", why) from error
    fine = curve.widths and len(curve.widths) == len(curve.costs_us) and curve.widths[0] == 1
    rising = list(curve.widths) == sorted(set(curve.widths))
    if not (fine and rising and min(curve.costs_us) > 0 and curve.prefill_us_per_token >= 0):
        raise BadConfig("cost", f"{path}: expected rising widths from 1 on, each with a cost above 0")
    return curve


def read_json(path: Path, setting: str) -> Any:
    """What is in a JSON file. Raises `BadConfig` naming ``setting``, with line and column of a fault."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadConfig(setting, f"cannot read {path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise BadConfig(
            setting, f"{path}, line {error.lineno}, column {error.colno}: expected JSON, {error.msg}"
        ) from error
    except ValueError as error:
        raise BadConfig(setting, f"{path}: expected JSON in UTF-8") from error


def numbers(setting: str, text: str, *, low: float, open_low: bool = False) -> tuple[float, ...]:
    """Numbers with commas between, none below ``low``. Raises `BadConfig` naming ``setting``."""
    found = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError as error:
            raise BadConfig(setting, f"expected numbers with commas between, got {part.strip()!r}") from error
        if not math.isfinite(value) or value < low or (open_low and value == low):
            raise BadConfig(
                setting, f"expected numbers {'above' if open_low else 'from'} {low:g}, got {value:g}"
            )
        found.append(value)
    return tuple(found)
