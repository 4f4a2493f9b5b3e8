"""Reads an event log and believes none of it: what cannot be is refused with file, line and field.

Only one thing is forgiven: a last line cut short, which is what a killed run leaves. It is reported, the rest is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from outrider.netsim.errors import BadConfig
from outrider.netsim.events.order import Order
from outrider.netsim.events.schema import KINDS, MAJOR, MINOR, NAME, Line, Run
from outrider.netsim.events.values import CONVERTERS, Unfit

_SCHEMA = re.compile(rf"{re.escape(NAME)}/(\d+)(?:\.(\d+))?", re.ASCII)


class BadLog(BadConfig):
    """Where a log is wrong: `path`, `line` (from 1), `name` of the field, and what was `expected` there."""

    def __init__(self, path: str, line: int, name: str, expected: str) -> None:
        super().__init__(f"{path}, line {line}, {name}", expected)
        self.path, self.line, self.name, self.expected = path, line, name, expected


@dataclass(frozen=True, slots=True)
class EventLog:
    """A log as read: its head, its other lines in order, and what could not be used."""

    path: str
    run: Run
    lines: tuple[Line, ...]
    truncated: bool = False
    """The last line was cut short and left out."""
    ignored: int = 0
    """Lines of kinds that a newer minor version brought."""

    @property
    def complete(self) -> bool:
        """Whether nothing is missing at its end: the last turn that began has ended."""
        last = next((line.KIND for line in reversed(self.lines) if line.KIND in ("turn", "end")), None)
        return not self.truncated and last == "end"


def read(path: Path) -> EventLog:
    """The log in a file. Raises `BadLog`, or `BadConfig` where the file cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror}") from error
    return parse(data, str(path))


def parse(data: bytes, path: str = "log") -> EventLog:
    """The log in ``data``; ``path`` is its name in errors. Raises `BadLog`."""
    rows = data.split(b"\n")
    whole = rows[-1] == b""
    if whole:
        del rows[-1]
    if not rows:
        raise BadLog(path, 1, "kind", 'expected a line of kind "run", but the file is empty')
    reading = _Reading(path)
    truncated = False
    for number, row in enumerate(rows, 1):
        last = number == len(rows) and not whole
        told = reading.decode(number, row, forgive=last and number > 1)
        if told is None:
            truncated = True
        else:
            reading.take(number, told)
    if reading.run is None:
        raise BadLog(path, 1, "kind", 'expected a line of kind "run"')
    return EventLog(path, reading.run, tuple(reading.lines), truncated, reading.ignored)


class _Reading:
    """A log under way."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.run: Run | None = None
        self.lines: list[Line] = []
        self.ignored = 0
        self._newer = False
        self._order = Order()

    def fail(self, number: int, name: str, expected: str) -> NoReturn:
        raise BadLog(self.path, number, name, expected) from None

    def decode(self, number: int, row: bytes, *, forgive: bool) -> dict[str, Any] | None:
        """The object of a line; None for one that was cut short, where that is forgiven."""
        try:
            told = json.loads(row, object_pairs_hook=_once, parse_constant=_no_constant)
        except Unfit as error:
            self.fail(number, error.name, error.expected)
        except (ValueError, RecursionError) as error:
            if forgive:
                return None
            place = f"column {error.colno}" if isinstance(error, json.JSONDecodeError) else "text"
            self.fail(number, place, "expected one JSON object in UTF-8")
        if not isinstance(told, dict):
            self.fail(number, "text", "expected a JSON object, {…}")
        return told

    def take(self, number: int, told: dict[str, Any]) -> None:
        """Check a line by itself and against those before it."""
        kind = told.pop("kind", None)
        if number == 1:
            if kind != Run.KIND:
                self.fail(1, "kind", f'expected "run" in the first line, got {kind!r}')
            self._check_version(told)
        elif kind == Run.KIND:
            self.fail(number, "kind", 'expected one line of kind "run" only; one file holds one run')
        if not isinstance(kind, str) or kind not in KINDS:
            if self._newer and isinstance(kind, str):
                self.ignored += 1
                return
            self.fail(number, "kind", f"expected one of {', '.join(KINDS)}, got {kind!r}")
        line = self._build(number, KINDS[kind], told)
        if isinstance(line, Run):
            self.run = line
            return
        try:
            self._order.check(line)
        except Unfit as error:
            self.fail(number, error.name, error.expected)
        self.lines.append(line)

    def _check_version(self, told: dict[str, Any]) -> None:
        found = _SCHEMA.fullmatch(told["schema"]) if isinstance(told.get("schema"), str) else None
        if found is None:
            self.fail(1, "schema", f'expected "{NAME}/{MAJOR}.{MINOR}", got {told.get("schema")!r}')
        if int(found[1]) != MAJOR:
            self.fail(1, "schema", f"expected major version {MAJOR}, got {found[1]}: use another Outrider")
        self._newer = int(found[2] or 0) > MINOR

    def _build(self, number: int, cls: type[Line], told: dict[str, Any]) -> Line:
        values: dict[str, Any] = {}
        known = {each.name: each for each in fields(cls)}
        for name in told.keys() - known.keys():
            if not self._newer:
                self.fail(number, name, f"expected no such field in a line of kind {cls.KIND!r}")
        for name, each in known.items():
            if name in told:
                try:
                    values[name] = CONVERTERS[cls.KIND][name](told[name])
                except Unfit as error:
                    self.fail(number, name, f"expected {error.expected}, got {_short(told[name])}")
            elif each.default is MISSING and each.default_factory is MISSING:
                self.fail(number, name, f"expected this field in a line of kind {cls.KIND!r}")
        return cls(**values)


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise Unfit("expected each field once", name)
        made[name] = value
    return made


def _no_constant(name: str) -> NoReturn:
    raise Unfit("expected JSON, which has no NaN or Infinity", name)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:40] + "…"
