"""`Link`: how long bytes take, as a pure stepping model.

`admit(now, nbytes) -> release time` is all of it: no sockets, no sleeping, the clock passed in. The TCP proxy drives
it with the loop's clock, a simulator with a virtual one.

A lane (one direction, shared by all connections) is a rate server behind a bounded queue, then a delay line:

    departure = max(now, end of the previous departure) + bytes / rate   (a trace: `Capacity.departure`)
    release   = max(previous release of the connection, departure + delay + what TCP needs to repair losses)

Time is *lane time*. An outage stops it (`LaneClock`): what was queued or in flight waits and comes out afterwards
with its old spacing, as behind a stalled radio. Everything random comes from the seed, and the delay is a function of
seed and lane time only, whatever the traffic.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from outrider.netsim.settings import DIRECTIONS, MSS_BYTES, Direction, LaneSettings, LinkSettings

MIN_RTO_S = 0.2
"""Linux waits at least this long beyond the smoothed round trip (RFC 6298 with a floor under 4 x RTTVAR)."""
MAX_RTO_S = 60.0
DUPLICATE_ACKS = 3
"""Packets that must follow a lost one before TCP resends it without waiting for the time-out."""
ROUNDING_BYTES = 2e-3
"""More than a trace's inverse may be off where a gap begins: the time `room_at` names does have the room."""
BURST_MEMORY_S = 0.05
"""After this much silence the loss chain starts from its stationary state: bursts last in time, not in packets."""
_UNUSED = random.Random(0)
"""Of lanes that leave nothing to chance."""


class LaneClock:
    """Lane time: real time minus all the time the lane stood still. Stalls nest."""

    def __init__(self) -> None:
        self._stalls = 0
        self._since = 0.0
        self._lost = 0.0

    @property
    def stalled(self) -> bool:
        """Whether the lane stands still."""
        return self._stalls > 0

    def stall(self, now: float) -> None:
        """Stop lane time at real time `now`."""
        if self._stalls == 0:
            self._since = now
        self._stalls += 1

    def resume(self, now: float) -> None:
        """End one stall; lane time runs again when the last one ends. Raises `RuntimeError` if none is open."""
        if self._stalls == 0:
            raise RuntimeError("resume without a stall")
        self._stalls -= 1
        if self._stalls == 0:
            self._lost += now - self._since

    def lane_time(self, now: float) -> float:
        """The lane time at real time `now`."""
        return (self._since if self.stalled else now) - self._lost

    def real_time(self, lane_time: float) -> float | None:
        """When the lane reaches `lane_time` if nothing stalls it again; `None` while it stands still."""
        return None if self.stalled else lane_time + self._lost


class _Delay:
    """One-way delay as a function of lane time: log-normal around the median, constant between redraws."""

    def __init__(
        self, settings: LaneSettings, redraw_s: tuple[float, float], rng: random.Random, since: float
    ) -> None:
        self._median_s = settings.delay_ms / 1000
        self._sigma = settings.sigma
        self._spike = settings.spike
        self._steps = settings.delays_ms
        self._redraw_s = redraw_s
        self._rng = rng
        self._since = since
        self._until = -math.inf
        self._factor = 1.0
        self.steady_s = (
            self._median_s if self._sigma == 0 and self._spike is None and self._steps is None else None
        )
        """The delay, where it is always the same."""

    def at(self, time: float) -> float:
        """Seconds of delay for what enters the line at `time`; times never go back."""
        if time < self._until and self._spike is None and self._steps is None:
            return self._median_s * self._factor
        if self._sigma > 0:
            if self._until == -math.inf:
                self._until = self._since
            while time >= self._until:
                self._until += self._rng.uniform(*self._redraw_s)
                self._factor = math.exp(self._sigma * self._rng.gauss(0.0, 1.0))
        median_s = self._median_s if self._steps is None else self._steps.at(time - self._since) / 1000
        current = median_s * self._factor
        spike = self._spike
        if spike is not None and time % spike.period_s < spike.width_s:
            return current + spike.extra_ms / 1000
        return current


class Bursts:
    """Gilbert-Elliott losses: which packets are lost (all of them in the bad state).

    With mean burst b and share L: r = 1/b leaves the bad state, p = L r / (1 - L) enters it.
    """

    def __init__(self, settings: LaneSettings, rng: random.Random) -> None:
        self._share = settings.loss
        self._leave = 1 / settings.burst
        self._enter = settings.loss * self._leave / (1 - settings.loss)
        self._rng = rng
        self._bad = False
        self._last = -math.inf

    def at(self, now: float) -> None:
        """Packets come at `now`; after a silence the chain has forgotten its state."""
        if now - self._last > BURST_MEMORY_S:
            self._bad = self._rng.random() < self._share
        self._last = now

    def lost(self) -> bool:
        """Whether the next packet is lost."""
        was_bad = self._bad
        self._bad = self._rng.random() < (1 - self._leave if was_bad else self._enter)
        return was_bad


class _Losses:
    """Lost packets turned into the seconds TCP needs to repair them."""

    def __init__(self, settings: LaneSettings, rtt_s: float, rng: random.Random) -> None:
        self._share = settings.loss
        self._rtt_s = rtt_s
        self._rng = rng
        self._bursts = Bursts(settings, rng)

    def repair_s(self, now: float, packets: int, followed: bool) -> float:
        """Extra seconds for a write of `packets` packets; `followed`: enough others come right behind it."""
        if self._share == 0 or packets == 0:
            return 0.0
        self._bursts.at(now)
        lost = False
        arrived_after = 0
        for _ in range(packets):
            if self._bursts.lost():
                lost, arrived_after = True, 0
            else:
                arrived_after += 1
        if not lost:
            return 0.0
        fast = followed or arrived_after >= DUPLICATE_ACKS
        return self._resend_s(fast)

    def _resend_s(self, fast: bool) -> float:
        """One round trip for a fast retransmit, else the time-out; it doubles while the resent packet is lost too.

        A resent packet is past its burst, so it is lost with the plain share.
        """
        rto = self._rtt_s + MIN_RTO_S
        total = self._rtt_s if fast else rto
        while self._rng.random() < self._share:
            rto = min(rto * 2, MAX_RTO_S)
            total += rto
        return total


class Lane:
    """One direction of a link, shared by all its connections. Every time is lane time, in seconds."""

    def __init__(
        self, settings: LaneSettings, *, rtt_s: float, redraw_s: tuple[float, float], seed: str
    ) -> None:
        self.clock = LaneClock()
        self._seed = seed
        self._busy_until = 0.0
        self._use(0.0, settings, rtt_s, redraw_s, seed)

    def switch(
        self, time: float, settings: LaneSettings, *, rtt_s: float, redraw_s: tuple[float, float], name: str
    ) -> None:
        """Other settings from lane time `time` on; what was admitted before keeps its release time.

        `name` marks this switch: with the seed it fixes the delays and losses that follow, whatever the traffic was.
        """
        self._use(time, settings, rtt_s, redraw_s, f"{self._seed}/{name}")

    def _use(
        self, time: float, settings: LaneSettings, rtt_s: float, redraw_s: tuple[float, float], seed: str
    ) -> None:
        self.settings = settings
        self.since = time
        """Lane time from which these settings hold; a trace begins here."""
        self.window_bytes = self._window(settings, rtt_s)
        """What one connection may have unreleased: the queue plus a round trip's worth, as a TCP window would."""
        # Seeding costs more than a hundred draws: only where something will be drawn.
        chance = settings.jitter_ms > 0, settings.loss > 0
        delays, losses = (
            random.Random(f"{seed}/{name}") if used else _UNUSED
            for name, used in zip(("delay", "loss"), chance, strict=True)
        )
        self._delay = _Delay(settings, redraw_s, delays, time)
        self._losses = _Losses(settings, rtt_s, losses)
        # Simulations admit millions of messages: what never changes is looked up once.
        self._rate = None if settings.trace is not None else settings.bytes_per_s
        self._steady_s = self._delay.steady_s
        self._lossless = settings.loss == 0

    @staticmethod
    def _window(settings: LaneSettings, rtt_s: float) -> int:
        if not settings.rated:
            return settings.queue
        best = settings.bytes_per_s if settings.trace is None else settings.trace.peak_bytes_per_s()
        return settings.queue + int(best * (rtt_s + MIN_RTO_S))

    def admit(self, now: float, nbytes: int, behind: int = 0) -> float:
        """When bytes that enter at `now` leave the lane; `behind` more bytes of the same write follow at once.

        Calls must come in the order of time. Order among the bytes of one connection is kept by its `Flow`.
        """
        start = self._busy_until if self._busy_until > now else now
        departure = self._departure(start, nbytes) if self._rate is None else start + nbytes / self._rate
        delay = self._steady_s
        release = departure + (self._delay.at(departure) if delay is None else delay)
        if not self._lossless:
            packets = math.ceil(nbytes / MSS_BYTES)
            busy = self._busy_until > now and self.backlog_bytes(now) >= DUPLICATE_ACKS * MSS_BYTES
            followed = busy or behind >= DUPLICATE_ACKS * MSS_BYTES
            release += self._losses.repair_s(start, packets, followed)
        self._busy_until = departure
        return release

    def _departure(self, start: float, nbytes: float) -> float:
        trace = self.settings.trace
        if trace is None:
            return start + nbytes / self.settings.bytes_per_s
        # A handshake or a FIN is no payload, but it does not pass while the link has no capacity at all.
        into = start - self.since
        return self.since + (trace.departure(into, nbytes) if nbytes else trace.open_at(into))

    def backlog_bytes(self, now: float) -> float:
        """Bytes that wait for the rate at `now`."""
        trace = self.settings.trace
        if trace is not None:
            return trace.between(now - self.since, self._busy_until - self.since)
        if self.settings.rate_mbit is None:
            return 0.0
        return max(0.0, self._busy_until - now) * self.settings.bytes_per_s

    def room_bytes(self, now: float) -> int:
        """Bytes the queue still takes at `now`; a full queue means: stop reading."""
        return max(0, math.floor(self.settings.queue - self.backlog_bytes(now) + ROUNDING_BYTES))

    def room_at(self, now: float, nbytes: int) -> float:
        """The first time from `now` on at which the queue takes `nbytes` (at most its size)."""
        allowed = max(0, self.settings.queue - nbytes)
        if self.settings.trace is not None:
            waits_for = self.backlog_bytes(now) - allowed
            return self._departure(now, waits_for) if waits_for > 0 else now
        return max(now, self._busy_until - allowed / self.settings.bytes_per_s)

    def flow(self) -> Flow:
        """A connection's own view of the lane."""
        return Flow(self)


class Flow:
    """One connection's bytes in a lane: they leave in the order they came (a loss holds up what is behind it)."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._last = 0.0

    def admit(self, now: float, nbytes: int, behind: int = 0) -> float:
        """As `Lane.admit`, never before what this connection sent earlier."""
        release = self._lane.admit(now, nbytes, behind)
        if release > self._last:
            self._last = release
        return self._last


@dataclass(frozen=True, slots=True)
class Link:
    """Frozen settings and a seed; `lanes()` starts a fresh model, always the same one."""

    settings: LinkSettings = LinkSettings()
    seed: int = 0

    def lanes(self) -> dict[Direction, Lane]:
        """A new model at lane time 0: `up` and `down`, independent, both from the one seed."""
        return {direction: self._lane(direction) for direction in DIRECTIONS}

    def _lane(self, direction: Direction) -> Lane:
        s = self.settings
        seed = f"outrider.netsim/{self.seed}/{direction}"
        return Lane(s.lane(direction), rtt_s=s.rtt_s, redraw_s=s.redraw_s, seed=seed)
