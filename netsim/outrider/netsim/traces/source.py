"""A trace file's text, line by line, and how its loaders complain."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from outrider.netsim.errors import BadConfig

GZIP = b"\x1f\x8b"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LONGEST = 40
MAX_MBIT = 1e6
"""Above a terabit a second a number is in another unit, or damaged."""


class BadTrace(BadConfig):
    """A file that cannot be read as its format. Lines and columns count from 1; a column is a field of the line."""

    def __init__(self, path: str, line: int, column: int, expected: str, got: str | None = None) -> None:
        found = "" if got is None else f", got {got if len(got) <= _LONGEST else got[:_LONGEST] + '…'!r}"
        super().__init__("trace", f"{path}, line {line}, column {column}: expected {expected}{found}")
        self.path = path
        self.line = line
        self.column = column
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Source:
    """The lines of a file."""

    path: str
    lines: tuple[str, ...]

    @classmethod
    def open(cls, path: str) -> Source:
        """Read a file, gzipped or not. Raises `BadConfig` if that fails, `BadTrace` for a damaged one or no text."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise BadConfig("trace", f"cannot read {path}: {error.strerror or error}") from error
        if data.startswith(GZIP):
            try:
                data = gzip.decompress(data)
            except (OSError, EOFError, zlib.error) as error:
                raise BadTrace(path, 1, 1, f"a whole gzip file ({error})") from error
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise BadTrace(path, line, 1, f"text in UTF-8, found byte 0x{data[error.start]:02x}") from error
        return cls(path, tuple(line.rstrip("\r") for line in text.split("\n")))

    def filled(self) -> Iterator[tuple[int, str]]:
        """Number and text of every line that is not blank. Raises `BadTrace` if there is none."""
        found = False
        for number, line in enumerate(self.lines, start=1):
            if line.strip():
                found = True
                yield number, line
        if not found:
            raise self.bad(1, 1, "at least one line of data")

    def bad(self, line: int, column: int, expected: str, got: str | None = None) -> BadTrace:
        """The error for a place in this file."""
        return BadTrace(self.path, line, column, expected, got)

    def number(self, line: int, column: int, text: str, what: str, most: float = MAX_MBIT) -> float:
        """The number in a field, 0 <= number <= most. Raises `BadTrace` saying `what` was expected."""
        text = text.strip()
        value = float(text) if _NUMBER.fullmatch(text) else -1.0
        if not 0 <= value <= most:
            raise self.bad(line, column, f"{what}, a number from 0 to {most:g}", text)
        return value


def is_number(text: str) -> bool:
    """Whether a field looks like a number."""
    return _NUMBER.fullmatch(text.strip()) is not None
