"""One direction of one connection, without sockets: bytes in, bytes out when their time has come.

The proxy's pump and a simulator both drive it: `push` what was read, `pull` what may be written now, `wake_at` says
when to call again. The laws: what comes out is a prefix of what went in; held bytes come out later, intact and in
order; once a byte was swallowed, nothing follows it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from outrider.netsim.link import Lane
from outrider.netsim.settings import MSS_BYTES

CutThen = Literal["hold", "reset"]


class Mark(Enum):
    """What travels besides bytes, in order with them."""

    OPEN = "open"
    """The handshake: the SYN on its way up, its answer on the way down."""
    END = "end"
    """The sender has closed its side (FIN)."""
    ABORT = "abort"
    """The sender has reset the connection, or could not be reached."""
    CUT = "cut"
    """Made here: a cut that ends in a reset has fired; reset both sides now."""


class Mode(Enum):
    """What a pipe does with its bytes."""

    FORWARD = "forward"
    HOLD = "hold"
    SWALLOW = "swallow"


@dataclass(slots=True, eq=False)
class CutArm:
    """A cut waiting to fire: after `remaining` more bytes of its direction, over all its connections."""

    remaining: int
    then: CutThen
    connection: int | None = None
    """The connection it fired on; `None` while it waits."""


@dataclass(slots=True)
class _Item:
    release: float  # lane time
    content: bytes | Mark


class Pipe:
    """Bytes of one direction of one connection. All times are real (or virtual) time, never lane time."""

    def __init__(self, lane: Lane, *, connection: int = 0, cuts: list[CutArm] | None = None) -> None:
        self.mode = Mode.FORWARD
        self.bytes_in = 0
        self.bytes_out = 0
        self.swallowed = 0
        self.unreleased = 0
        """Bytes taken in and neither passed on nor swallowed."""
        self._lane = lane
        self._flow = lane.flow()
        self._connection = connection
        self._cuts = cuts if cuts is not None else []
        self._items: deque[_Item] = deque()

    def push(self, now: float, data: bytes) -> None:
        """Take in `data`, split so that a big write is spread over the time its rate gives it."""
        self.bytes_in += len(data)
        if self.mode is Mode.SWALLOW:
            self.swallowed += len(data)
            return
        time = self._lane.clock.lane_time(now)
        size = self._lane.settings.segment_bytes
        for start in range(0, len(data), size):
            part = data[start : start + size]
            release = self._flow.admit(time, len(part), behind=len(data) - start - len(part))
            self._items.append(_Item(release, part))
        self.unreleased += len(data)

    def push_mark(self, now: float, mark: Mark) -> None:
        """Send a mark after everything pushed so far. A swallowing pipe swallows it as well."""
        if self.mode is not Mode.SWALLOW:
            time = self._lane.clock.lane_time(now)
            self._items.append(_Item(self._flow.admit(time, 0), mark))

    def pull(self, now: float) -> list[bytes | Mark]:
        """What is to be passed on at `now`, in order; adjacent pieces are joined."""
        out: list[bytes | Mark] = []
        if self._lane.clock.stalled:
            return out
        time = self._lane.clock.lane_time(now)
        ready: list[bytes] = []
        while self.mode is Mode.FORWARD and self._items and self._items[0].release <= time:
            content = self._items.popleft().content
            if isinstance(content, bytes):
                passed, fired = self._through_cuts(content)
                ready.append(passed)
                if fired is not None:
                    self._fire(fired, content[len(passed) :])
                    if fired.then == "reset":
                        return [*self._passed(ready), Mark.CUT]
            else:
                out.extend(self._passed(ready))
                ready = []
                out.append(content)
        out.extend(self._passed(ready))
        return out

    def _passed(self, pieces: list[bytes]) -> list[bytes]:
        data = b"".join(pieces)
        self.unreleased -= len(data)
        self.bytes_out += len(data)
        return [data] if data else []

    def _through_cuts(self, data: bytes) -> tuple[bytes, CutArm | None]:
        if not self._cuts:
            return data, None
        first = min(self._cuts, key=lambda arm: arm.remaining)
        passed = data[: first.remaining]
        for arm in self._cuts:
            arm.remaining -= len(passed)
        return passed, first if first.remaining == 0 else None

    def _fire(self, arm: CutArm, rest: bytes) -> None:
        self._cuts.remove(arm)
        arm.connection = self._connection
        if rest:
            self._items.appendleft(_Item(0.0, rest))
        self.mode = Mode.HOLD

    def hold(self) -> None:
        """Forward nothing any more; what comes is kept (a swallowing pipe stays one)."""
        if self.mode is Mode.FORWARD:
            self.mode = Mode.HOLD

    def swallow(self) -> None:
        """Drop everything in hand and everything that comes, for good."""
        self.mode = Mode.SWALLOW
        self.swallowed += self.unreleased
        self.unreleased = 0
        self._items.clear()

    def room(self, now: float) -> int:
        """Bytes that may be read at `now`; below one packet the reader should stop until `wake_at`."""
        if self.mode is Mode.SWALLOW:
            return 64 * 1024
        backlog_room = self._lane.room_bytes(self._lane.clock.lane_time(now))
        return max(0, min(backlog_room, self._lane.window_bytes - self.unreleased))

    def wake_at(self, now: float, *, can_write: bool = True, want_room: bool = False) -> float | None:
        """When `pull` may have more or (with `want_room`) a packet's room may be free; `None`: not by itself."""
        clock = self._lane.clock
        times = []
        if can_write and self.mode is Mode.FORWARD and self._items:
            times.append(self._items[0].release)
        if want_room and self._lane.window_bytes - self.unreleased >= MSS_BYTES:
            size = max(MSS_BYTES, min(self._lane.settings.segment_bytes, self._lane.settings.queue))
            times.append(self._lane.room_at(clock.lane_time(now), size))
        return clock.real_time(min(times)) if times else None
