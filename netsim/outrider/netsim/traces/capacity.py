"""`Capacity`: how many bytes a lane may carry, as a function of time, and its exact inverse.

Kept as the cumulative curve B(t): bytes that could have passed from time 0 to t. It is linear between its corners,
flat where there is no capacity, and repeats: B(t + period) = B(t) + total. A trace of measured rates and one of packet
deliveries are both such curves, and both questions a lane asks are exact on it, with no stepping through time:

    bytes between a and b       B(b) - B(a)
    end of n bytes begun at a   the least t >= a with B(t) >= B(a) + n
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from outrider.netsim.errors import BadConfig

BYTES_PER_MBIT = 1e6 / 8
SLACK_BYTES = 1e-3
"""Where a gap begins, this much counts as nothing: a rounding error must not make bytes wait until the gap's end."""
PEAK_S = 1.0
NEARLY_S = 1e-9
"""Corners are further apart than this."""


@dataclass(frozen=True, slots=True, repr=False)
class Capacity:
    """A repeating capacity. Corners of the curve B: times in seconds from 0 to the period, and the bytes by then.

    Raises `BadConfig` if they are no such curve: times that do not rise from 0, bytes that fall, no bytes at all.
    """

    times_s: tuple[float, ...]
    bytes_at: tuple[float, ...]
    _rates: tuple[float, ...] = field(init=False, compare=False)
    _slack: float = field(init=False, compare=False)

    def __post_init__(self) -> None:
        times, sums = self.times_s, self.bytes_at
        if len(times) < 2 or len(times) != len(sums) or times[0] != 0 or sums[0] != 0:
            raise BadConfig("trace", "expected as many times as sums of bytes, at least two, both from 0 on")
        if not (math.isfinite(times[-1]) and all(a < b for a, b in zip(times, times[1:], strict=False))):
            raise BadConfig("trace", "expected finite times, each later than the one before")
        if not (math.isfinite(sums[-1]) and all(a <= b for a, b in zip(sums, sums[1:], strict=False))):
            raise BadConfig("trace", "expected finite sums of bytes that never fall")
        if sums[-1] <= 0:
            raise BadConfig("trace", "expected some capacity: with none at all no byte would ever arrive")
        rates = tuple(
            (sums[i + 1] - sums[i]) / (times[i + 1] - times[i]) if sums[i + 1] > sums[i] else 0.0
            for i in range(len(times) - 1)
        )
        object.__setattr__(self, "_rates", rates)
        object.__setattr__(self, "_slack", SLACK_BYTES if 0.0 in (rates[0], rates[-1]) else 0.0)

    @classmethod
    def steps(cls, steps: Iterable[tuple[float, float]]) -> Self:
        """From (seconds, Mbit/s) pairs, one after the other; they repeat. Raises `BadConfig` as the class does."""
        times, sums, before = [0.0], [0.0], math.nan
        for seconds, mbit in steps:
            end, total = times[-1] + seconds, sums[-1] + seconds * mbit * BYTES_PER_MBIT
            if mbit == before:
                times[-1], sums[-1] = end, total
            else:
                times.append(end)
                sums.append(total)
            before = mbit
        return cls(tuple(times), tuple(sums))

    @classmethod
    def constant(cls, mbit: float) -> Self:
        """The same Mbit/s all the time."""
        return cls.steps([(1.0, mbit)])

    @property
    def period_s(self) -> float:
        """After this many seconds the trace begins again."""
        return self.times_s[-1]

    @property
    def bytes_per_period(self) -> float:
        """Bytes that one run of the trace may carry."""
        return self.bytes_at[-1]

    @property
    def mean_bytes_per_s(self) -> float:
        """The mean over the period."""
        return self.bytes_at[-1] / self.times_s[-1]

    @property
    def mean_mbit(self) -> float:
        """The mean over the period, Mbit/s."""
        return self.mean_bytes_per_s / BYTES_PER_MBIT

    def __repr__(self) -> str:
        corners = len(self.times_s)
        return f"Capacity(period_s={self.period_s:g}, mean_mbit={self.mean_mbit:g}, {corners} corners)"

    def bytes_per_s(self, time: float) -> float:
        """The capacity at `time`."""
        return self._rates[self._segment(self._split(time)[1])]

    def bytes_by(self, time: float) -> float:
        """B(time): bytes that could have passed since time 0."""
        turn, phase = self._split(time)
        return turn * self.bytes_per_period + self._local(phase)

    def between(self, start: float, end: float) -> float:
        """Bytes that may pass from `start` to `end`; 0 if the end is not after the start."""
        if end <= start:
            return 0.0
        (turn, phase), (last, stop) = self._split(start), self._split(end)
        return max(0.0, (last - turn) * self.bytes_per_period + self._local(stop) - self._local(phase))

    def departure(self, start: float, nbytes: float) -> float:
        """When the last of `nbytes` bytes has passed if they begin at `start` and nothing else passes meanwhile."""
        if nbytes <= 0:
            return start
        turn, phase = self._split(start)
        i = self._segment(phase)
        rate = self._rates[i]
        passed = self.bytes_at[i] + rate * (phase - self.times_s[i])
        if nbytes <= self.bytes_at[i + 1] - passed:  # within one straight piece, the usual case
            return start + nbytes / rate
        need = passed + nbytes
        total = self.bytes_per_period
        turns = max(0, math.ceil((need - self._slack) / total) - 1)
        local = self._inverse(min(max(need - turns * total, 0.0), total))
        return max(start, (turn + turns) * self.period_s + local)

    def open_at(self, start: float) -> float:
        """The first time from `start` on at which there is capacity."""
        turn, phase = self._split(start)
        first = self._segment(phase)
        if self._rates[first] > 0:
            return start
        for i in range(first + 1, len(self._rates)):
            if self._rates[i] > 0:
                return turn * self.period_s + self.times_s[i]
        opening = next(t for t, rate in zip(self.times_s, self._rates, strict=False) if rate > 0)
        return (turn + 1) * self.period_s + opening

    def peak_bytes_per_s(self, window_s: float = PEAK_S) -> float:
        """The best mean rate over consecutive windows of `window_s` (the mean, if the period is shorter)."""
        count = int(self.period_s // window_s)
        found = (self.between(i * window_s, (i + 1) * window_s) / window_s for i in range(count))
        return max(found, default=self.mean_bytes_per_s)

    def shifted(self, by_s: float) -> Capacity:
        """The same trace begun `by_s` seconds later in it."""
        phase = self._split(by_s)[1]
        if phase < NEARLY_S:
            return self
        here = self._local(phase)
        later = [(t - phase, b - here) for t, b in zip(self.times_s, self.bytes_at, strict=True) if t > phase]
        rest, left = later[-1]
        earlier = [
            (t + rest, b + left) for t, b in zip(self.times_s, self.bytes_at, strict=True) if 0 < t < phase
        ]
        earlier = [(t, b) for t, b in earlier if t < self.period_s]  # rounding may reach the end
        corners = [(0.0, 0.0), *later, *earlier, (self.period_s, self.bytes_per_period)]
        return Capacity(
            tuple(t for t, _ in corners), tuple(min(b, self.bytes_per_period) for _, b in corners)
        )

    def _split(self, time: float) -> tuple[int, float]:
        """Whole periods before `time`, and the time since the last of them, below the period."""
        turn = math.floor(time / self.period_s)
        phase = time - turn * self.period_s
        if phase < 0:
            turn, phase = turn - 1, phase + self.period_s
        if phase >= self.period_s:
            turn, phase = turn + 1, 0.0
        return turn, phase

    def _segment(self, phase: float) -> int:
        return min(bisect_right(self.times_s, phase), len(self._rates)) - 1

    def _local(self, phase: float) -> float:
        i = self._segment(phase)
        return self.bytes_at[i] + self._rates[i] * (phase - self.times_s[i])

    def _inverse(self, need: float) -> float:
        """The least time of one period by which `need` bytes may have passed, 0 <= need <= the period's bytes."""
        i = bisect_left(self.bytes_at, need)
        if i == 0:
            return 0.0
        corner = i - 1
        over = need - self.bytes_at[corner]
        if over > SLACK_BYTES or corner == 0 or self._rates[corner - 1] > 0.0:
            return self.times_s[corner] + over / self._rates[corner]
        while corner > 0 and self._rates[corner - 1] == 0.0:  # back to where the gap before begins
            corner -= 1
        return self.times_s[corner]
