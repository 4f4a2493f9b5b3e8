"""Where things stand in a TOML text: line and column of every key and every value.

`tomllib` says where a text is no TOML and forgets positions afterwards. This walks over a text that it has accepted,
so nothing is checked here: every construct is the one its first characters announce.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Keys and indices from the top: `("phases", 2, "link")`."""

_BLANK = re.compile(r"(?:[ \t\r\n,]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BARE_VALUE = re.compile(r"[^,\]}#\n]*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})'  # may end in up to two quotes of its own
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Line and column, both from 1; columns in characters."""

    line: int
    column: int


def place(text: str, offset: int) -> Place:
    """The place of a character of a text."""
    start = text.rfind("\n", 0, offset) + 1
    return Place(text.count("\n", 0, start) + 1, offset - start + 1)


class Places:
    """Positions in a text that `tomllib` accepts."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._keys: dict[Path, int] = {(): 0}
        self._values: dict[Path, int] = {(): 0}
        self._counts: dict[Path, int] = {}
        """Elements so far of the arrays of tables."""
        self._walk()

    def key(self, path: Path) -> Place:
        """Where the key stands (an element of an array: the element); what is not there, where it would have been."""
        return place(self._text, self._found(self._keys, path))

    def value(self, path: Path) -> Place:
        """Where the value begins; of a table under a header, where its header's name stands."""
        return place(self._text, self._found(self._values, path))

    def _found(self, where: dict[Path, int], path: Path) -> int:
        while path not in where:
            path = path[:-1]
        return where[path]

    def _walk(self) -> None:
        prefix: Path = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                prefix = self._header()
            else:
                self._pair(prefix)
            self._skip(_BLANK)

    def _header(self) -> Path:
        """`[a.b]` or `[[a.b]]`; names on the way that are arrays of tables mean their last element."""
        array = self._text.startswith("[[", self._at)
        self._at += 2 if array else 1
        path: Path = ()
        parts = list(self._dotted())
        for number, (name, at) in enumerate(parts, 1):
            path = (*path, name)
            self._note(path, at)
            if number == len(parts) and array:
                self._counts[path] = self._counts.get(path, 0) + 1
            if path in self._counts:
                path = (*path, self._counts[path] - 1)
                self._note(path, at)
        self._at += 2 if array else 1
        return path

    def _pair(self, prefix: Path) -> None:
        path = prefix
        for name, at in self._dotted():
            path = (*path, name)
            self._note(path, at)
        self._at += 1  # =
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: Path) -> None:
        self._values[path] = self._at
        first = self._text[self._at]
        if first in "\"'":
            self._skip(_STRING)
        elif first == "[":
            self._array(path)
        elif first == "{":
            self._inline(path)
        else:
            self._skip(_BARE_VALUE)

    def _array(self, path: Path) -> None:
        self._at += 1
        self._skip(_BLANK)
        index = 0
        while self._text[self._at] != "]":
            element = (*path, index)
            self._keys[element] = self._at
            self._value(element)
            self._skip(_BLANK)
            index += 1
        self._at += 1

    def _inline(self, path: Path) -> None:
        self._at += 1
        self._skip(_BLANK)
        while self._text[self._at] != "}":
            self._pair(path)
            self._skip(_BLANK)
        self._at += 1

    def _dotted(self) -> Iterator[tuple[str, int]]:
        """The parts of a dotted key with their offsets, up to what follows the key."""
        while True:
            self._skip(_SPACE)
            at = self._at
            if self._text[at] in "\"'":
                self._skip(_STRING)
                yield self._text[at + 1 : self._at - 1], at
            else:
                self._skip(_BARE_KEY)
                yield self._text[at : self._at], at
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return
            self._at += 1

    def _note(self, path: Path, at: int) -> None:
        self._keys.setdefault(path, at)
        self._values.setdefault(path, at)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
