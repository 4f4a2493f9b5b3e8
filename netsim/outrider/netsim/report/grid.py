"""Throughput against round trip: points from logs or from a sweep's JSON, and where two modes break even."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.netsim.errors import BadConfig
from outrider.netsim.report.tally import Counted, Tally, Turn

STREAM = "stream"
"""The mode that the others are held against: plain remote streaming."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One mode: tokens/s at ascending round trips (ms)."""

    mode: str
    rtt_ms: tuple[float, ...]
    tokens_per_s: tuple[float, ...]

    @property
    def is_baseline(self) -> bool:
        """Whether it is plain remote streaming."""
        return self.mode == STREAM


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Where a mode's curve crosses that of streaming."""

    mode: str
    rtt_ms: float
    tokens_per_s: float
    wins_below: bool
    """The mode is faster at shorter round trips than this; else at longer ones."""


def curves(points: Iterable[tuple[str, float, float]]) -> list[Curve]:
    """Points (mode, RTT in ms, tokens/s) by mode, the baseline first; several at one RTT become their mean."""
    sums: dict[str, dict[float, list[float]]] = {}
    for mode, rtt, rate in points:
        sums.setdefault(mode, {}).setdefault(rtt, []).append(rate)
    made = [
        Curve(
            mode,
            tuple(sorted(found)),
            tuple(math.fsum(found[rtt]) / len(found[rtt]) for rtt in sorted(found)),
        )
        for mode, found in sums.items()
    ]
    return sorted(made, key=lambda curve: (not curve.is_baseline, curve.mode))


def crossings(found: Sequence[Curve]) -> list[BreakEven]:
    """Every crossing with the first baseline, linear between points that both curves have."""
    base = next((curve for curve in found if curve.is_baseline), None)
    if base is None:
        return []
    known = dict(zip(base.rtt_ms, base.tokens_per_s, strict=True))
    made = []
    for curve in found:
        if curve.is_baseline:
            continue
        pairs = zip(curve.rtt_ms, curve.tokens_per_s, strict=True)
        shared = [(rtt, rate, rate - known[rtt]) for rtt, rate in pairs if rtt in known]
        for (rtt, rate, lead), (rtt2, rate2, lead2) in zip(shared, shared[1:], strict=False):
            if (lead > 0) is not (lead2 > 0):
                share = lead / (lead - lead2)
                at = rtt + share * (rtt2 - rtt)
                made.append(BreakEven(curve.mode, at, rate + share * (rate2 - rate), lead > 0))
    return made


def points_of_logs(logs: Iterable[Counted]) -> list[tuple[str, float, float]]:
    """One point per mode and round trip of the logs that know theirs, over all their turns."""
    turns: dict[tuple[str, float], list[Turn]] = {}
    for each in logs:
        if each.rtt_ms is not None:
            turns.setdefault((each.run.mode or "unnamed", each.rtt_ms), []).extend(each.tally.turns)
    rates = {key: Tally(tuple(found)).tokens_per_s for key, found in turns.items()}
    return [(mode, rtt, rate) for (mode, rtt), rate in sorted(rates.items()) if rate is not None]


def read_grid(path: Path) -> list[tuple[str, float, float]]:
    """The points of a sweep: JSON with a list ``cells`` of objects that have mode, rtt_ms and tokens_per_s.

    Raises `BadConfig` naming file, cell and field.
    """
    try:
        told = json.loads(path.read_bytes())
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        place = f"{path}, line {error.lineno}, column {error.colno}"
        raise BadConfig(place, "expected the JSON of a sweep") from error
    except ValueError as error:
        raise BadConfig(str(path), "expected the JSON of a sweep, in UTF-8") from error
    cells = told.get("cells") if isinstance(told, dict) else None
    if not isinstance(cells, list) or not cells:
        raise BadConfig(f"{path}, cells", "expected a list of at least one cell")
    return [_point(f"{path}, cell {number}", cell) for number, cell in enumerate(cells, 1)]


def _point(place: str, cell: Any) -> tuple[str, float, float]:
    if not isinstance(cell, dict):
        raise BadConfig(place, "expected an object")
    mode = cell.get("mode")
    if not isinstance(mode, str) or not mode:
        raise BadConfig(f"{place}, mode", f"expected a name, got {mode!r}")
    numbers = []
    for name in ("rtt_ms", "tokens_per_s"):
        value = cell.get(name)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not plain or not math.isfinite(value) or value < 0:
            raise BadConfig(f"{place}, {name}", f"expected a finite number from 0 on, got {value!r}")
        numbers.append(float(value))
    return mode, numbers[0], numbers[1]
