"""A scenario's text, and typed access to its tables: every refusal names file, line, column and what was expected."""

from __future__ import annotations

import contextlib
import difflib
import math
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults.parse import duration
from outrider.netsim.scenario.errors import BadScenario
from outrider.netsim.scenario.places import Path as KeyPath
from outrider.netsim.scenario.places import Places

_AT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_MISSING: Any = object()
DURATION = 'a duration with its unit, e.g. "300ms", "45s" or "1.5m"'


class Source:
    """A file's text, its content and the places of everything in it. Raises `BadScenario` where it is no TOML."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        text = text.replace("\r\n", "\n")
        try:
            self.content: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise self._no_toml(text, str(error)) from None
        self._places = Places(text)

    @classmethod
    def read(cls, path: Path) -> Source:
        """The source of a file. Raises `BadScenario` also where it cannot be read or is not UTF-8."""
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise BadScenario(path, 1, 1, f"expected a file that can be read: {error.strerror}") from None
        try:
            return cls(path, raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            before = raw[: error.start]
            line = before.count(b"\n") + 1
            column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8")) + 1
            raise BadScenario(path, line, column, "expected UTF-8 text") from None

    def table(self, known: Collection[str]) -> Table:
        """The top table, which may have the `known` keys."""
        return Table(self, self.content, (), known)

    def fail(self, path: KeyPath, expected: str, *, key: bool = False) -> NoReturn:
        """Raise `BadScenario` at a value (or its key): `expected` says what should stand there."""
        place = self._places.key(path) if key else self._places.value(path)
        raise BadScenario(self.path, place.line, place.column, expected)

    def first(self, paths: Collection[KeyPath]) -> KeyPath:
        """Of several keys the one that comes first in the text."""
        return min(paths, key=self._places.key)

    def _no_toml(self, text: str, message: str) -> BadScenario:
        match = _AT.search(message)
        why = "expected TOML: " + _AT.sub("", message)
        if match is not None and match[1]:
            return BadScenario(self.path, int(match[1]), int(match[2]), why)
        return BadScenario(self.path, text.count("\n") + 1, len(text) - text.rfind("\n"), f"{why} at the end")


class Table:
    """One table of a source. Raises `BadScenario` at once for a key that is not `known`, naming the nearest one."""

    def __init__(
        self, source: Source, content: Mapping[str, Any], path: KeyPath, known: Collection[str]
    ) -> None:
        self.source = source
        self.path = path
        self._content = content
        unknown = [(*path, name) for name in content if name not in known]
        if unknown:
            self._refuse(source.first(unknown), known)

    def _refuse(self, path: KeyPath, known: Collection[str]) -> NoReturn:
        name = str(path[-1])
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        self.source.fail(path, f"expected one of {', '.join(known)}, got {name}{meant}", key=True)

    def __contains__(self, name: str) -> bool:
        return name in self._content

    def fail(self, name: str, expected: str, *, key: bool = False) -> NoReturn:
        """Raise `BadScenario` at the value of `name` (or its key)."""
        self.source.fail((*self.path, name), expected, key=key)

    def raw(self, name: str, default: Any = _MISSING) -> Any:
        """The value as TOML has it; without a default it must be there."""
        if name in self._content:
            return self._content[name]
        if default is _MISSING:
            self.source.fail(self.path, f"expected a key {name} in this table", key=True)
        return default

    def text(self, name: str, default: Any = _MISSING) -> Any:
        """A string that is not empty."""
        value = self.raw(name, default)
        if name in self and not (isinstance(value, str) and value):
            self.fail(name, f"expected text in quotes, got {shown(value)}")
        return value

    def choice(self, name: str, choices: Collection[str], default: Any = _MISSING) -> Any:
        """One of some words."""
        value = self.raw(name, default)
        if name in self and not (isinstance(value, str) and value in choices):
            near = difflib.get_close_matches(str(value), choices, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            self.fail(name, f"expected one of {', '.join(choices)}, got {shown(value)}{meant}")
        return value

    def number(self, name: str, default: Any = _MISSING, *, low: float = 0.0, high: float = math.inf) -> Any:
        """A finite number from `low` to `high`, as a float."""
        value = self.raw(name, default)
        if name not in self:
            return value
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not (good and low <= value <= high):
            span = f"of at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
            self.fail(name, f"expected a number {span}, got {shown(value)}")
        return float(value)

    def whole(self, name: str, default: Any = _MISSING, *, low: int = 0, high: int = 2**63 - 1) -> Any:
        """A whole number from `low` to `high`."""
        value = self.raw(name, default)
        if name in self and not (
            isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        ):
            span = f"of at least {low}" if high == 2**63 - 1 else f"from {low} to {high}"
            self.fail(name, f"expected a whole number {span}, got {shown(value)}")
        return value

    def seconds(self, name: str, default: Any = _MISSING) -> Any:
        """Seconds of a duration written with its unit."""
        value = self.raw(name, default)
        if name not in self:
            return value
        if isinstance(value, str):
            with contextlib.suppress(BadConfig):
                return duration(name, value)
        self.fail(name, f"expected {DURATION}, got {shown(value)}")

    def table(self, name: str, known: Collection[str]) -> Table:
        """A table below this one; an empty one where it is left out."""
        value = self.raw(name, {})
        if not isinstance(value, dict):
            self.fail(name, f"expected a table with {', '.join(known)}, got {shown(value)}")
        return Table(self.source, value, (*self.path, name), known)

    def tables(self, name: str, known: Collection[str]) -> Iterator[Table]:
        """The tables of an array of tables, in their order."""
        value = self.raw(name, [])
        if not (isinstance(value, list) and all(isinstance(each, dict) for each in value)):
            self.fail(name, f"expected tables: [[{name}]], once for each, got {shown(value)}")
        for index, each in enumerate(value):
            yield Table(self.source, each, (*self.path, name, index), known)


def shown(value: Any, most: int = 40) -> str:
    """A value as an error message shows it, cut where it is long."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= most else text[:most] + "…"
