"""Faults as text: `at=2s,for=3s`, `token=20,for=3s`, `at=0s,dir=up,bytes=120,then=hold`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults.base import Fault
from outrider.netsim.faults.blackhole import Blackhole
from outrider.netsim.faults.cut import Cut
from outrider.netsim.faults.halfopen import HalfOpen
from outrider.netsim.faults.outage import Outage
from outrider.netsim.faults.refuse import Refuse
from outrider.netsim.faults.reset import Reset
from outrider.netsim.faults.schedule import Scheduled, check_duration
from outrider.netsim.settings import Direction

Fields = dict[str, str]
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ms|s|m|h)")


def duration(field: str, text: str) -> float:
    """Seconds of `300ms`, `2s`, `1.5s`, `2m`, `1h`. Raises `BadConfig` naming `field`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise BadConfig(
            field, f"{text!r} is not a duration; write a number with its unit, e.g. 300ms, 2s, 1.5m"
        )
    return float(match[1]) * _UNITS[match[2]]


def _direction(fields: Fields) -> Direction | None:
    text = fields.pop("dir", "both")
    if text == "up":
        return "up"
    if text == "down":
        return "down"
    if text == "both":
        return None
    raise BadConfig("dir", f"expected up, down or both, got {text!r}")


def _cut(fields: Fields) -> Fault:
    direction = _direction(fields)
    if direction is None:
        raise BadConfig("dir", "a cut counts the bytes of one direction: write dir=up or dir=down")
    if "bytes" not in fields:
        raise BadConfig("bytes", "a cut needs bytes=<number of bytes that still pass>")
    text = fields.pop("then", "reset")
    if text not in ("hold", "reset"):
        raise BadConfig("then", f"expected hold or reset, got {text!r}")
    then: Literal["hold", "reset"] = "hold" if text == "hold" else "reset"
    return Cut(direction, _whole("bytes", fields.pop("bytes")), then)


_KINDS: dict[str, Callable[[Fields], Fault]] = {
    Outage.kind: lambda fields: Outage(_direction(fields)),
    Blackhole.kind: lambda fields: Blackhole(_direction(fields)),
    HalfOpen.kind: lambda fields: HalfOpen(_direction(fields)),
    Reset.kind: lambda fields: Reset(),
    Refuse.kind: lambda fields: Refuse(),
    Cut.kind: _cut,
}
KINDS = tuple(_KINDS)
"""The names of all fault kinds."""


def parse_scheduled(kind: str, text: str) -> Scheduled:
    """A fault of `kind` with its moment, from e.g. `at=2s,for=3s`. Raises `BadConfig` with the exact reason."""
    fields = _fields(kind, text)
    at = fields.pop("at", None)
    token = fields.pop("token", None)
    fault, for_s = _fault(kind, fields)
    return Scheduled(
        fault,
        at_s=None if at is None else duration("at", at),
        token=None if token is None else _whole("token", token),
        for_s=for_s,
    )


def parse_fault(kind: str, text: str = "") -> tuple[Fault, float | None]:
    """A fault without a moment, and its duration, from e.g. `for=3s`. Raises `BadConfig`."""
    return _fault(kind, _fields(kind, text))


def _fault(kind: str, fields: Fields) -> tuple[Fault, float | None]:
    for_s = duration("for", fields.pop("for")) if "for" in fields else None
    fault = _KINDS[kind](fields)
    if fields:
        raise BadConfig(kind, f"does not know {', '.join(sorted(fields))}")
    check_duration(fault, for_s)
    return fault, for_s


def _fields(kind: str, text: str) -> Fields:
    if kind not in _KINDS:
        raise BadConfig("fault", f"expected one of {', '.join(KINDS)}, got {kind!r}")
    fields: Fields = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise BadConfig(
                kind, f"expected name=value pairs with commas between, e.g. at=2s,for=3s, got {part!r}"
            )
        if name in fields:
            raise BadConfig(kind, f"{name} is given twice")
        fields[name] = value
    return fields


def _whole(field: str, text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise BadConfig(field, f"expected a whole number >= 0, got {text!r}")
    return int(text)
