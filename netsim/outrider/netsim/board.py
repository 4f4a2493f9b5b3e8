"""`Board`: the handles faults pull, over the proxy's live connections and lanes."""

from __future__ import annotations

from collections.abc import Callable

from outrider.netsim.connection import Connection
from outrider.netsim.link import Lane, Link
from outrider.netsim.pipe import CutArm, CutThen, Mode, Pipe
from outrider.netsim.settings import DIRECTIONS, Direction, LinkSettings
from outrider.netsim.state import Stats


class Board:
    """Implements `faults.Controls`. `on_listen(wanted)` is called when refusing begins and ends.

    `now` is the time at which a fault takes effect: of a planned one the time of its plan, which may be a little past.
    """

    def __init__(self, link: Link, now: Callable[[], float], on_listen: Callable[[bool], None]) -> None:
        self._lanes: dict[Direction, Lane] = link.lanes()
        self._now = now
        self._on_listen = on_listen
        self._connections: dict[int, Connection] = {}
        self._cuts: dict[Direction, list[CutArm]] = {"up": [], "down": []}
        self._swallowing: dict[Direction, int] = {"up": 0, "down": 0}
        self._refusals = 0
        self._count = 0
        self._resets = 0
        self._past = {(what, d): 0 for what in ("out", "swallowed") for d in DIRECTIONS}

    def pipes(self) -> tuple[int, dict[Direction, Pipe]]:
        """The number and the pipes of a new connection, born into the faults that are on."""
        self._count += 1
        pipes = {d: Pipe(self._lanes[d], connection=self._count, cuts=self._cuts[d]) for d in DIRECTIONS}
        for direction in DIRECTIONS:
            if self._swallowing[direction]:
                pipes[direction].swallow()
        return self._count, pipes

    def add(self, connection: Connection) -> None:
        """A connection has come."""
        self._connections[connection.number] = connection

    def remove(self, connection: Connection) -> None:
        """A connection is gone: keep its counts."""
        if self._connections.pop(connection.number, None) is not None:
            for direction in DIRECTIONS:
                self._past["out", direction] += connection.pipe(direction).bytes_out
                self._past["swallowed", direction] += connection.pipe(direction).swallowed

    @property
    def refusing(self) -> bool:
        """Whether new connections are refused now."""
        return self._refusals > 0

    def stats(self) -> Stats:
        """The counts now."""
        live = self._connections.values()
        out = {d: self._past["out", d] + sum(c.pipe(d).bytes_out for c in live) for d in DIRECTIONS}
        lost = {d: self._past["swallowed", d] + sum(c.pipe(d).swallowed for c in live) for d in DIRECTIONS}
        held = {d: sum(c.pipe(d).unreleased for c in live) for d in DIRECTIONS}
        return Stats(
            connections=self._count,
            open=len(live),
            resets=self._resets,
            bytes_up=out["up"],
            bytes_down=out["down"],
            swallowed_up=lost["up"],
            swallowed_down=lost["down"],
            held_up=held["up"],
            held_down=held["down"],
        )

    # faults.Controls

    def stall(self, direction: Direction) -> None:
        """Stop the lane's time."""
        self._run_all()  # what is due leaves before the link stands still
        self._lanes[direction].clock.stall(self._now())
        self._run_all()

    def unstall(self, direction: Direction) -> None:
        """End one stall."""
        self._lanes[direction].clock.resume(self._now())
        self._run_all()

    def swallow(self, direction: Direction) -> None:
        """Drop this direction's bytes, now and of new connections."""
        self._swallowing[direction] += 1
        for connection in self._connections.values():
            connection.pipe(direction).swallow()
        self._run_all()

    def unswallow(self, direction: Direction) -> None:
        """End one swallow: reset what it touched."""
        self._swallowing[direction] -= 1
        if self._swallowing[direction] == 0:
            touched = [n for n, c in self._connections.items() if c.pipe(direction).mode is Mode.SWALLOW]
            self.reset(tuple(touched))

    def hold(self, directions: tuple[Direction, ...]) -> tuple[int, ...]:
        """Present connections forward nothing any more."""
        for connection in self._connections.values():
            for direction in directions:
                connection.pipe(direction).hold()
        self._run_all()
        return tuple(self._connections)

    def reset(self, connections: tuple[int, ...] | None = None) -> None:
        """Reset these connections, or all."""
        for number in tuple(self._connections) if connections is None else connections:
            connection = self._connections.get(number)
            if connection is not None:
                connection.reset("fault")

    def refuse(self) -> None:
        """Refuse new connections."""
        self._refusals += 1
        if self._refusals == 1:
            self._on_listen(False)

    def accept(self) -> None:
        """End one refusal."""
        self._refusals -= 1
        if self._refusals == 0:
            self._on_listen(True)

    def arm_cut(self, direction: Direction, nbytes: int, then: CutThen) -> CutArm:
        """Cut after `nbytes` more bytes of this direction."""
        arm = CutArm(nbytes, then)
        self._cuts[direction].append(arm)
        return arm

    def disarm_cut(self, arm: CutArm) -> None:
        """Take the cut back, or reset the connection it holds."""
        for cuts in self._cuts.values():
            if arm in cuts:
                cuts.remove(arm)
        if arm.connection is not None:
            self.reset((arm.connection,))

    def relink(self, link: LinkSettings, name: str) -> None:
        """Other settings from now on."""
        self._run_all()  # what is due leaves under the old ones
        for direction, lane in self._lanes.items():
            time = lane.clock.lane_time(self._now())
            lane.switch(time, link.lane(direction), rtt_s=link.rtt_s, redraw_s=link.redraw_s, name=name)
        self._run_all()

    def count_reset(self) -> None:
        """A connection was reset by us."""
        self._resets += 1

    def _run_all(self) -> None:
        for connection in tuple(self._connections.values()):
            connection.run()
