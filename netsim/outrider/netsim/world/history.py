"""What happened in one run: the only thing the checker reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened: when, to whom ("device 0", "replica 1", "world"), what, and its particulars."""

    at: float
    who: str
    what: str
    data: dict[str, Any]


@dataclass(slots=True)
class History:
    """Entries in order."""

    entries: list[Entry] = field(default_factory=list)

    def add(self, at: float, who: str, what: str, **data: Any) -> None:
        """Append an entry."""
        self.entries.append(Entry(at, who, what, data))

    def lines(self) -> list[str]:
        """For people: one line each."""
        return [
            f"{e.at:9.4f}  {e.who:10}  {e.what:12} "
            + " ".join(f"{name}={value}" for name, value in e.data.items())
            for e in self.entries
        ]
