"""What a proxy reports: counts, and a log of every change of state."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

KEPT_RECORDS = 10_000
"""Records kept in memory; a file gets all of them."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the start. Bytes are those passed on to the other socket."""

    connections: int
    open: int
    resets: int
    bytes_up: int
    bytes_down: int
    swallowed_up: int
    swallowed_down: int
    held_up: int
    """Taken in and not passed on yet: queued, in flight, or held by a fault."""
    held_down: int


class StateLog:
    """JSON lines: `t` (seconds since the proxy's start, monotonic), `wall` (UTC), `event`, and the event's fields."""

    def __init__(
        self, sink: TextIO | None = None, watch: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self._records: deque[dict[str, Any]] = deque(maxlen=KEPT_RECORDS)
        self._sink = sink
        self._watch = watch
        """Called with every record."""

    @property
    def records(self) -> tuple[dict[str, Any], ...]:
        """The last 10,000 records, oldest first."""
        return tuple(self._records)

    def events(self) -> tuple[str, ...]:
        """The names of the recorded events, in order."""
        return tuple(record["event"] for record in self._records)

    def jsonl(self) -> str:
        """The kept records, one JSON object a line."""
        return "".join(json.dumps(record) + "\n" for record in self._records)

    def add(self, time: float, event: str, fields: dict[str, Any]) -> None:
        """Record an event at `time` seconds."""
        wall = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = {"t": round(time, 6), "wall": wall, "event": event, **fields}
        self._records.append(record)
        if self._sink is not None:
            self._sink.write(json.dumps(record) + "\n")
            self._sink.flush()
        if self._watch is not None:
            self._watch(record)
