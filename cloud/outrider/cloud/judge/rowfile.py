"""JSON lines that can be stopped and resumed anywhere: a header with the settings, then rows as they are ready."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.shared.errors import ConfigError


class RowFile:
    """Appends rows, and first reads those that an earlier run of the same settings wrote."""

    def __init__(self, path: Path, header: Mapping[str, Any], option: str) -> None:
        """Raises ConfigError (``option``) naming what differs if the file was begun with other settings."""
        self._path = path
        self.rows: list[dict[str, Any]] = []
        """All rows of the file."""
        wanted = json.loads(json.dumps(header))
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = whole_lines(path) if path.exists() else []
        try:
            found = [json.loads(line) for line in lines]
        except ValueError as error:
            raise ConfigError(option, f"{path.name} is no file of this kind: {error}") from error
        if found:
            _compare(found[0], wanted, path, option)
            self.rows = found[1:]
        else:
            lines = [_line(wanted)]
        # A row that was being written when the process ended is dropped.
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a row through to the file."""
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(_line(row) + "\n")
        self.rows.append(dict(row))


def whole_lines(path: Path) -> list[str]:
    """Lines that end; the rest of a broken last one is not among them. Raises OSError."""
    text = path.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1].split("\n")[:-1]


def _compare(found: Any, wanted: Mapping[str, Any], path: Path, option: str) -> None:
    begun = found if isinstance(found, dict) else {}
    for name in sorted(begun.keys() | wanted.keys()):
        if begun.get(name) != wanted.get(name):
            raise ConfigError(
                option,
                f"{path.name}: {name}: begun with {begun.get(name)!r}, now {wanted.get(name)!r}",
                remedy="name another file, or repeat the settings it was begun with",
            )


def _line(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
