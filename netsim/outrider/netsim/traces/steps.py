"""`Steps`: a value that holds until the next one, and repeats: the round trip of a trace that has one."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from dataclasses import dataclass, field

from outrider.netsim.errors import BadConfig


@dataclass(frozen=True, slots=True)
class Steps:
    """`values[i]` from `starts_s[i]` on. Raises `BadConfig` unless the starts rise from 0 to below the period."""

    starts_s: tuple[float, ...] = field(repr=False)
    values: tuple[float, ...] = field(repr=False)
    period_s: float

    def __post_init__(self) -> None:
        starts = (*self.starts_s, self.period_s)
        if not self.values or len(self.values) != len(self.starts_s) or starts[0] != 0:
            raise BadConfig("trace", "expected as many values as starts, at least one, from 0 on")
        if not all(a < b for a, b in zip(starts, starts[1:], strict=False)) or not math.isfinite(starts[-1]):
            raise BadConfig("trace", "expected starts that rise, and a finite period after the last")

    def at(self, time: float) -> float:
        """The value at `time` seconds."""
        return self.values[bisect_right(self.starts_s, time % self.period_s) - 1]

    @property
    def median(self) -> float:
        """The median of the values, each counted once."""
        return statistics.median(self.values)

    def scaled(self, by: float) -> Steps:
        """Every value times `by`."""
        return Steps(self.starts_s, tuple(v * by for v in self.values), self.period_s)

    def shifted(self, by_s: float) -> Steps:
        """The same steps begun `by_s` seconds later in them."""
        phase = by_s % self.period_s
        first = bisect_right(self.starts_s, phase) - 1
        pairs = list(zip(self.starts_s, self.values, strict=True))
        moved = [(0.0, pairs[first][1]), *((t - phase, v) for t, v in pairs[first + 1 :])]
        rest = self.period_s - phase
        moved += [(t + rest, v) for t, v in pairs[: first + 1] if t < phase]
        return Steps(tuple(t for t, _ in moved), tuple(v for _, v in moved), self.period_s)
