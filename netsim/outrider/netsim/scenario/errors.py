"""What a scenario file gets wrong, with its place."""

from __future__ import annotations

from pathlib import Path

from outrider.netsim.errors import BadConfig


class BadScenario(BadConfig):
    """A scenario (or a file it names) that cannot be used: where, and what was expected there.

    Lines and columns count from 1, columns in characters. The command line turns it into exit code 78.
    """

    def __init__(self, path: Path, line: int, column: int, expected: str) -> None:
        super().__init__(f"{path}:{line}:{column}", expected)
        self.path = path
        self.line = line
        self.column = column
        self.expected = expected
