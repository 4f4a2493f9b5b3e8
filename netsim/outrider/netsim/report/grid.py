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
class Point:
    """Throughput of a mode at a round trip."""

    mode: str
    rtt_ms: float
    tokens_per_s: float
    tau: float | None = None
    """What the sweep asked for, where it says so."""
    where: str = ""
    """What else was varied, in words: points with other words belong into another figure."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One mode: tokens/s at ascending round trips (ms)."""

    name: str
    rtt_ms: tuple[float, ...]
    tokens_per_s: tuple[float, ...]

    @property
    def is_baseline(self) -> bool:
        """Whether it is plain remote streaming."""
        return self.name == STREAM


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Where a curve crosses that of streaming."""

    name: str
    rtt_ms: float
    tokens_per_s: float
    """Of streaming there."""
    wins_below: bool
    """The mode is faster at shorter round trips than this; else at longer ones."""


@dataclass(frozen=True, slots=True)
class Panel:
    """What belongs into one figure."""

    where: str
    curves: tuple[Curve, ...]
    even: tuple[BreakEven, ...]


def panels(points: Iterable[Point]) -> list[Panel]:
    """The points by what else was varied, in their order."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.where, []).append(point)
    made = []
    for where, found in groups.items():
        lines = curves(found)
        made.append(Panel(where, tuple(lines), tuple(crossings(lines))))
    return made


def curves(points: Sequence[Point]) -> list[Curve]:
    """One curve per mode, and per τ where several were asked for; the baseline first, which does not depend on τ.

    Several points of a curve at one round trip become their mean.
    """
    several = len({point.tau for point in points}) > 1
    sums: dict[tuple[str, float], dict[float, list[float]]] = {}
    for point in points:
        apart = several and point.tau is not None and point.mode != STREAM
        key = (point.mode, point.tau if apart and point.tau is not None else -1.0)
        sums.setdefault(key, {}).setdefault(point.rtt_ms, []).append(point.tokens_per_s)
    made = []
    for mode, tau in sorted(sums, key=lambda key: (key[0] != STREAM, key)):
        found = sums[mode, tau]
        rates = tuple(math.fsum(found[rtt]) / len(found[rtt]) for rtt in sorted(found))
        made.append(Curve(mode if tau < 0 else f"{mode}, τ {tau:g}", tuple(sorted(found)), rates))
    return made


def crossings(found: Sequence[Curve]) -> list[BreakEven]:
    """Every place where a curve's gain over streaming crosses 1, linear between round trips that both curves have."""
    base = next((curve for curve in found if curve.is_baseline), None)
    if base is None:
        return []
    known = {rtt: rate for rtt, rate in zip(base.rtt_ms, base.tokens_per_s, strict=True) if rate > 0}
    made = []
    for curve in found:
        if curve.is_baseline:
            continue
        pairs = zip(curve.rtt_ms, curve.tokens_per_s, strict=True)
        gains = [(rtt, rate / known[rtt]) for rtt, rate in pairs if rtt in known]
        for (left, low), (right, high) in zip(gains, gains[1:], strict=False):
            if (low > 1) is not (high > 1):
                share = (1 - low) / (high - low)
                rate = known[left] + share * (known[right] - known[left])
                made.append(BreakEven(curve.name, left + share * (right - left), rate, low > 1))
    return made


def points_of_logs(logs: Iterable[Counted]) -> list[Point]:
    """One point per mode and round trip of the logs that know theirs, over all their turns."""
    turns: dict[tuple[str, float], list[Turn]] = {}
    for each in logs:
        if each.rtt_ms is not None:
            turns.setdefault((each.run.mode or "unnamed", each.rtt_ms), []).extend(each.tally.turns)
    rates = {key: Tally(tuple(found)).tokens_per_s for key, found in turns.items()}
    return [Point(mode, rtt, rate) for (mode, rtt), rate in sorted(rates.items()) if rate is not None]


VARIED = (("mbit", "{:g} Mbit/s", "unlimited rate"), ("verify_ms", "pass of {:g} ms", "measured passes"))
"""Other fields of a sweep's cell, and how they are told with a value and without."""


def read_grid(path: Path) -> list[Point]:
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
    told_apart = [varied for varied in VARIED if _varies(cells, varied[0])]
    return [_point(f"{path}, cell {number}", cell, told_apart) for number, cell in enumerate(cells, 1)]


def _varies(cells: list[Any], name: str) -> bool:
    return len({repr(cell.get(name)) for cell in cells if isinstance(cell, dict)}) > 1


def _point(place: str, cell: Any, told_apart: Sequence[tuple[str, str, str]]) -> Point:
    if not isinstance(cell, dict):
        raise BadConfig(place, "expected an object")
    mode = cell.get("mode")
    if not isinstance(mode, str) or not mode:
        raise BadConfig(f"{place}, mode", f"expected a name, got {mode!r}")
    rtt, rate = (_number(place, cell, name) for name in ("rtt_ms", "tokens_per_s"))
    tau = None if cell.get("tau_asked") is None else _number(place, cell, "tau_asked")
    words = [
        without if cell.get(name) is None else with_.format(_number(place, cell, name))
        for name, with_, without in told_apart
    ]
    return Point(mode, rtt, rate, tau, ", ".join(words))


def _number(place: str, cell: dict[str, Any], name: str) -> float:
    value = cell.get(name)
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or not plain or not math.isfinite(value) or value < 0:
        raise BadConfig(f"{place}, {name}", f"expected a finite number from 0 on, got {value!r}")
    return float(value)
