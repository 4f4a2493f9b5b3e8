"""The frozen numbers of a link. No state, no clock, no randomness: `link.py` turns them into behaviour."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from outrider.netsim.errors import BadConfig

if TYPE_CHECKING:
    from outrider.netsim.traces import Capacity, Steps, Trace

Direction = Literal["up", "down"]
"""`up` is device to cloud, `down` is cloud to device."""
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)

MSS_BYTES = 1448
"""Payload of one full TCP segment on a 1500-byte path with time stamps."""
QUEUE_S = 0.25
"""Default depth of a rated queue: mobile links keep hundreds of packets (bufferbloat)."""
MIN_QUEUE_BYTES = 32 * 1024
FREE_QUEUE_BYTES = 4 * 1024 * 1024
"""Default bound for a lane without a rate: it only bounds memory while bytes are held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A delay that comes back like clockwork, e.g. a satellite handover every 15 s."""

    period_s: float
    width_s: float
    extra_ms: float
    """Added to the one-way delay during the first `width_s` of every period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """One direction of a link. Raises `BadConfig` for numbers that cannot be a lane."""

    delay_ms: float = 0.0
    """Median one-way delay."""
    jitter_ms: float = 0.0
    """Standard deviation of the one-way delay, log-normal around the median."""
    rate_mbit: float | None = None
    """Megabits (1e6) per second; `None` is unlimited."""
    queue_bytes: int | None = None
    """Bytes that may wait for the rate; a full queue stops reading. `None`: 250 ms of the rate's mean, >= 32 KiB."""
    loss: float = 0.0
    """Share of packets lost, 0 <= loss < 0.5."""
    burst: float = 1.0
    """Mean number of packets lost in a row."""
    spike: Spike | None = None
    trace: Capacity | None = None
    """A capacity over lane time; it takes the place of `rate_mbit`."""
    delays_ms: Steps | None = None
    """A median one-way delay over lane time, in the place of `delay_ms`; the jitter keeps its ratio to `delay_ms`."""

    def __post_init__(self) -> None:
        for name in ("delay_ms", "jitter_ms"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise BadConfig(name, f"expected a finite number of milliseconds >= 0, got {value}")
        if self.jitter_ms > 0 and self.delay_ms == 0:
            raise BadConfig(
                "jitter_ms", "jitter is relative to the delay: give a delay above 0, or no jitter"
            )
        if self.rate_mbit is not None and not (math.isfinite(self.rate_mbit) and self.rate_mbit > 0):
            raise BadConfig(
                "rate_mbit", f"expected Mbit/s above 0, or none for unlimited, got {self.rate_mbit}"
            )
        if self.queue_bytes is not None and self.queue_bytes < MSS_BYTES:
            raise BadConfig(
                "queue_bytes", f"expected at least one packet ({MSS_BYTES}), got {self.queue_bytes}"
            )
        if not 0 <= self.loss < 0.5:
            raise BadConfig("loss", f"expected a share in [0, 0.5), got {self.loss}")
        if not (math.isfinite(self.burst) and self.burst >= 1):
            raise BadConfig("burst", f"expected a mean burst of at least 1 packet, got {self.burst}")

    @property
    def rated(self) -> bool:
        """Whether the lane has a rate, constant or by a trace."""
        return self.trace is not None or self.rate_mbit is not None

    @property
    def bytes_per_s(self) -> float:
        """The rate in bytes per second, a trace's mean; infinity without one."""
        if self.trace is not None:
            return self.trace.mean_bytes_per_s
        return math.inf if self.rate_mbit is None else self.rate_mbit * 1e6 / 8

    @property
    def queue(self) -> int:
        """The queue's bound in bytes, default filled in."""
        if self.queue_bytes is not None:
            return self.queue_bytes
        if not self.rated:
            return FREE_QUEUE_BYTES
        return max(MIN_QUEUE_BYTES, int(self.bytes_per_s * QUEUE_S))

    @property
    def sigma(self) -> float:
        """Log-scale of the delay: the log-normal with this median whose standard deviation is `jitter_ms`."""
        if self.jitter_ms == 0:
            return 0.0
        # sd^2 = m^2 x (x - 1) with x = exp(sigma^2)
        x = (1 + math.sqrt(1 + 4 * (self.jitter_ms / self.delay_ms) ** 2)) / 2
        return math.sqrt(math.log(x))

    @property
    def segment_bytes(self) -> int:
        """Largest piece released at once: about 5 ms of the rate, so that a big write does not arrive as a lump."""
        if not self.rated:
            return 64 * 1024
        return min(64 * 1024, max(MSS_BYTES, int(self.bytes_per_s * 0.005)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Both directions of a link, and how often its jitter is redrawn."""

    up: LaneSettings = LaneSettings()
    down: LaneSettings = LaneSettings()
    redraw_s: tuple[float, float] = (0.1, 1.0)
    """The delay is constant for a time drawn uniformly from here: correlated, since TCP would not reorder."""

    def __post_init__(self) -> None:
        low, high = self.redraw_s
        if not (0 < low <= high and math.isfinite(high)):
            raise BadConfig("redraw_s", f"expected 0 < low <= high seconds, got {self.redraw_s}")

    @classmethod
    def of(
        cls,
        *,
        rtt_ms: float = 0.0,
        jitter_ms: float = 0.0,
        down_mbit: float | None = None,
        up_mbit: float | None = None,
        loss: float = 0.0,
        burst: float = 1.0,
        spike: Spike | None = None,
    ) -> LinkSettings:
        """A link from figures of a round trip: half the delay each way, jitter split as independent deviations."""
        up = LaneSettings(
            delay_ms=rtt_ms / 2,
            jitter_ms=jitter_ms / math.sqrt(2),
            rate_mbit=up_mbit,
            loss=loss,
            burst=burst,
            spike=spike,
        )
        return cls(up=up, down=replace(up, rate_mbit=down_mbit))

    def override(
        self,
        *,
        rtt_ms: float | None = None,
        jitter_ms: float | None = None,
        down_mbit: float | None = None,
        up_mbit: float | None = None,
        loss: float | None = None,
    ) -> LinkSettings:
        """The same link with some figures replaced; `None` keeps one. A round trip of 0 also drops the jitter.

        A rate or a round trip given here takes the place of a trace's.
        """
        return replace(
            self,
            up=_changed(self.up, rtt_ms, jitter_ms, up_mbit, loss),
            down=_changed(self.down, rtt_ms, jitter_ms, down_mbit, loss),
        )

    def following(self, trace: Trace | None, up: Trace | None = None) -> LinkSettings:
        """The same link whose rates follow `trace` down and `up` up; `None` keeps that direction's rate.

        A joint `trace` also drives the up direction (unless `up` does) and the round trip, half of it each way. Raises
        `BadConfig` for a file that has nothing for the direction it is to drive.
        """
        if trace is not None and trace.joint and up is None:
            up = trace
        each_way = None if trace is None or trace.rtt_ms is None else trace.rtt_ms.scaled(0.5)
        return replace(
            self,
            up=_followed(_delayed(self.up, each_way), up, "up"),
            down=_followed(_delayed(self.down, each_way), trace, "down"),
        )

    @property
    def rtt_s(self) -> float:
        """The median round trip without load, in seconds."""
        return (self.up.delay_ms + self.down.delay_ms) / 1000

    def lane(self, direction: Direction) -> LaneSettings:
        """The settings of one direction."""
        return self.up if direction == "up" else self.down


def _delayed(lane: LaneSettings, delays_ms: Steps | None) -> LaneSettings:
    if delays_ms is None:
        return lane
    # The jitter keeps its ratio; a lane without delay had none.
    jitter = lane.jitter_ms * delays_ms.median / lane.delay_ms if lane.delay_ms else 0.0
    return replace(lane, delay_ms=delays_ms.median, jitter_ms=jitter, delays_ms=delays_ms)


def _followed(lane: LaneSettings, trace: Trace | None, direction: Direction) -> LaneSettings:
    if trace is None:
        return lane
    capacity = trace.capacity(direction)
    if capacity is None:
        raise BadConfig(
            "trace",
            f"{trace.source} has no column for the {direction} direction; name one: ?{direction}=COLUMN",
        )
    return replace(lane, trace=capacity, rate_mbit=None)


def _changed(
    lane: LaneSettings, rtt_ms: float | None, jitter_ms: float | None, mbit: float | None, loss: float | None
) -> LaneSettings:
    delay = lane.delay_ms if rtt_ms is None else rtt_ms / 2
    jitter = lane.jitter_ms if jitter_ms is None else jitter_ms / math.sqrt(2)
    if rtt_ms == 0 and jitter_ms is None:
        jitter = 0.0
    return replace(
        lane,
        delay_ms=delay,
        jitter_ms=jitter,
        rate_mbit=lane.rate_mbit if mbit is None else mbit,
        loss=lane.loss if loss is None else loss,
        trace=lane.trace if mbit is None else None,
        delays_ms=lane.delays_ms if rtt_ms is None else None,
    )
