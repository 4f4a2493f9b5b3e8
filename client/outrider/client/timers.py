"""When to stop waiting: round-trip estimation after RFC 6298, the three deadlines, and back-off. Seconds throughout.

``soft``: further drafts are shown as provisional. ``probe``: a second connection is tried beside the silent one.
``dead``: the silent stream is given up. Late verdicts are sampled too: round numbers tell which draft they answer, and
without them the deadline would never learn that the link has become slower.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_GAIN = 1 / 8
_GAIN_DEVIATION = 1 / 4
_PATIENCE_STEP = 1.5
_PATIENCE_ROUNDS = 8


@dataclass(slots=True)
class Deadlines:
    """Estimates of one path to the verifier."""

    first_s: float = 1.0
    """Soft deadline before anything was measured."""
    srtt_s: float | None = None
    rttvar_s: float = 0.0
    queue_s: float = 0.0
    busy_s: float = 0.0
    busy_deviation_s: float = 0.0
    _patience: float = 1.0
    _on_time: int = 0

    def sample(self, elapsed_s: float, queue_us: int, compute_us: int) -> None:
        """One answer: time since its request was handed over, and what the verifier says it spent."""
        queue, compute = queue_us / 1e6, compute_us / 1e6
        rtt = max(elapsed_s - queue - compute, 0.0)
        if self.srtt_s is None:
            self.srtt_s, self.rttvar_s = rtt, rtt / 2
            self.busy_s = queue + compute
        else:
            self.rttvar_s += _GAIN_DEVIATION * (abs(self.srtt_s - rtt) - self.rttvar_s)
            self.srtt_s += _GAIN * (rtt - self.srtt_s)
        self.busy_deviation_s += _GAIN_DEVIATION * (
            abs(self.busy_s - queue - compute) - self.busy_deviation_s
        )
        self.busy_s += _GAIN * (queue + compute - self.busy_s)
        self.queue_s += _GAIN * (queue - self.queue_s)

    def soft(self, cost_s: float = 0.0) -> float:
        """How long a verdict may take; ``cost_s`` is the target pass it needs."""
        if self.srtt_s is None:
            return self.first_s
        service = max(cost_s + self.queue_s, self.busy_s) + 2 * self.busy_deviation_s
        wait = self.srtt_s + max(4 * self.rttvar_s, 0.040) + service
        return min(max(wait * self._patience, 0.250), 2.0)

    def probe(self, cost_s: float = 0.0) -> float:
        """Silence after which a second connection is tried."""
        return max(1.0, 2 * self.soft(cost_s))

    def dead(self) -> float:
        """Silence after which a stream is given up."""
        return max(3.0, 6 * (self.srtt_s or 0.0))

    def late(self) -> None:
        """A verdict came after its soft deadline: be more patient for a while."""
        self._patience, self._on_time = min(self._patience * _PATIENCE_STEP, 8.0), 0

    def on_time(self) -> None:
        """A verdict came in time; eight of them and patience is as before."""
        self._on_time += 1
        if self._on_time >= _PATIENCE_ROUNDS:
            self._patience, self._on_time = 1.0, 0

    def unsettle(self) -> None:
        """The network changed or was idle: the old estimate is worth less."""
        if self.srtt_s is not None:
            self.rttvar_s = max(self.rttvar_s, self.srtt_s / 2)


@dataclass(slots=True)
class Backoff:
    """Full jitter: each wait is uniform between 0 and a bound that doubles from 0.1 s to 5 s."""

    rng: random.Random
    first_s: float = 0.1
    most_s: float = 5.0
    tries: int = 0

    def next(self, at_least_s: float = 0.0) -> float:
        """How long to wait before the next attempt."""
        bound = min(self.first_s * 2**self.tries, self.most_s)
        self.tries = min(self.tries + 1, 16)
        return at_least_s + self.rng.uniform(0.0, bound)

    def reset(self) -> None:
        """An attempt worked, or the network changed."""
        self.tries = 0
