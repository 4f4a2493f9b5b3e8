"""One proxied connection: two sockets, two pumps. The asyncio adapter around `Pipe`.

Nothing here waits: every callback takes in what came, passes on what is due, and sets one timer. So a fault takes
effect by changing a pipe or a lane and running the pumps again; no wait has to be interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Protocol

from outrider.netsim.pipe import Mark, Mode, Pipe
from outrider.netsim.settings import MSS_BYTES, Direction

READ_BYTES = 64 * 1024
TIMER_SLACK_S = 0.0005
"""The event loop's timers round up to a millisecond; aiming half of one early centres the error."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Network(Protocol):
    """What a connection needs from the proxy around it."""

    def now(self) -> float:
        """Seconds since the proxy's start."""

    def dial(self, connection: Connection) -> None:
        """Connect to the upstream; later `connection.dialled` or `connection.unreachable`."""

    def gone(self, connection: Connection) -> None:
        """Both sockets are closed."""

    def note(self, event: str, connection: Connection, why: str) -> None:
        """Record a state change."""


class Side(asyncio.BufferedProtocol):
    """One of the two sockets."""

    def __init__(self, connection: Connection, *, may_read: bool) -> None:
        self.connection = connection
        self.may_read = may_read
        self.alive = False
        self.ended = False  # its FIN has come
        self.writable = True
        self._reading = True
        self._view = memoryview(bytearray(READ_BYTES))
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is up: reading starts when the pump says so."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"expected a stream transport, got {type(transport).__name__}")
        self._transport = transport
        self.alive = True
        transport.set_write_buffer_limits(high=READ_BYTES)
        self.set_reading(False)
        self.connection.side_up(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """At most what the queue takes, so that a full queue pushes back as TCP does."""
        return self._view[: self.connection.pump_from(self).allowance()]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        self.connection.pump_from(self).take(bytes(self._view[:nbytes]))

    def eof_received(self) -> bool:
        """The sender has finished; the other direction goes on."""
        self.ended = True
        self.connection.pump_from(self).take_mark(Mark.END)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed: by us, or by the other end's reset, which then travels on."""
        was_alive, self.alive = self.alive, False
        self.connection.side_lost(self, reset_by_peer=was_alive)

    def pause_writing(self) -> None:
        """The receiver is slow: its pump stops passing on."""
        self.writable = False

    def resume_writing(self) -> None:
        """The receiver takes more."""
        self.writable = True
        self.connection.pump_into(self).run()

    def set_reading(self, wanted: bool) -> None:
        """Read on, or let TCP push back."""
        if self._transport is not None and self.alive and wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def write(self, data: bytes) -> None:
        """Pass bytes on; dropped if the socket is gone."""
        if self._transport is not None and self.alive:
            self._transport.write(data)

    def end(self) -> None:
        """Send FIN."""
        if self._transport is not None and self.alive and self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the other end may be gone already
                self._transport.write_eof()

    def close(self) -> None:
        """Close in order, after what is written."""
        if self._transport is not None and self.alive:
            self.alive = False
            self._transport.close()

    def abort(self) -> None:
        """Close with a reset (RST)."""
        if self._transport is not None and self.alive:
            self.alive = False
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()


class Pump:
    """Moves one direction: source socket → pipe → destination socket."""

    def __init__(self, connection: Connection, pipe: Pipe, source: Side, dest: Side) -> None:
        self.pipe = pipe
        self._connection = connection
        self._source = source
        self._dest = dest
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    def allowance(self) -> int:
        """Bytes the next read may bring: the queue's room, but at least one packet."""
        return min(READ_BYTES, max(MSS_BYTES, self.pipe.room(self._connection.network.now())))

    def take(self, data: bytes) -> None:
        """Bytes came from the source."""
        self.pipe.push(self._connection.network.now(), data)
        self.run()

    def take_mark(self, mark: Mark) -> None:
        """A mark came from the source."""
        self.pipe.push_mark(self._connection.network.now(), mark)
        self.run()

    def run(self) -> None:
        """Pass on what is due, decide about reading, set the timer."""
        now = self._connection.network.now()
        if self._dest.writable:
            for item in self.pipe.pull(now + TIMER_SLACK_S):
                if isinstance(item, bytes):
                    self._dest.write(item)
                else:
                    self._connection.arrived(self, item)
        full = self.pipe.room(now) < MSS_BYTES
        self._source.set_reading(self._source.may_read and not full)
        self._set_timer(self.pipe.wake_at(now, can_write=self._dest.writable, want_room=full))

    def stop(self) -> None:
        """Drop the timer."""
        self._set_timer(None)

    def _set_timer(self, at: float | None) -> None:
        if at == self._timer_at and at is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, at
        if at is not None:
            delay = at - self._connection.network.now() - TIMER_SLACK_S
            self._timer = asyncio.get_running_loop().call_later(max(0.0, delay), self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, None
        self.run()


class Connection:
    """A client's connection and its upstream half. The handshake travels through the link too: first bytes pass
    one round trip after the client connected, and the upstream is dialled half-way."""

    def __init__(self, number: int, network: Network, pipes: dict[Direction, Pipe]) -> None:
        self.number = number
        self.network = network
        self.client = Side(self, may_read=False)
        self.server = Side(self, may_read=True)
        self.up = Pump(self, pipes["up"], self.client, self.server)
        self.down = Pump(self, pipes["down"], self.server, self.client)
        self._ends = 0
        self._dialling = False
        self._closed = False

    def pipe(self, direction: Direction) -> Pipe:
        """The pipe of one direction."""
        return (self.up if direction == "up" else self.down).pipe

    def pump_from(self, side: Side) -> Pump:
        """The pump that reads this side."""
        return self.up if side is self.client else self.down

    def pump_into(self, side: Side) -> Pump:
        """The pump that writes to this side."""
        return self.down if side is self.client else self.up

    def run(self) -> None:
        """Run both pumps, after something about the link has changed."""
        if not self._closed:
            self.up.run()
            self.down.run()

    def side_up(self, side: Side) -> None:
        """A socket is up: send its half of the handshake."""
        if self._closed:  # reset while dialling
            side.abort()
            return
        self.pump_from(side).take_mark(Mark.OPEN)

    def side_lost(self, side: Side, *, reset_by_peer: bool) -> None:
        """A socket is closed; a reset by its peer travels on like everything else."""
        if self._closed:
            return
        if reset_by_peer:
            self.pump_from(side).take_mark(Mark.ABORT)
        self._forget_if_dead()

    def arrived(self, pump: Pump, mark: Mark) -> None:
        """A mark has come through the pump."""
        dest = self.server if pump is self.up else self.client
        if mark is Mark.OPEN and pump is self.up:
            self._dialling = True
            self.network.dial(self)
        elif mark is Mark.OPEN:
            self.client.may_read = True
            self.up.run()
        elif mark is Mark.CUT:
            self.reset("cut")
        elif mark is Mark.ABORT:
            dest.abort()
            self._forget_if_dead()
        else:
            self._ends += 1
            dest.end()
            if self._ends == 2:
                self.client.close()
                self.server.close()
                self._forget_if_dead()

    def dialled(self) -> None:
        """The upstream has accepted."""
        self._dialling = False

    def unreachable(self, why: str) -> None:
        """The upstream could not be reached: the client's reset comes back through the link."""
        self._dialling = False
        self.network.note("unreachable", self, why)
        if not self._closed:
            self.down.take_mark(Mark.ABORT)

    def reset(self, why: str) -> None:
        """Reset both sockets at once."""
        if not self._closed:
            self.network.note("reset", self, why)
            self.client.abort()
            self.server.abort()
            self._close()

    def _forget_if_dead(self) -> None:
        if not (self._closed or self._dialling or self.client.alive or self.server.alive):
            self._close()

    def _close(self) -> None:
        self._closed = True
        self.up.stop()
        self.down.stop()
        self.network.gone(self)

    @property
    def swallows(self) -> dict[Direction, bool]:
        """Which directions swallow."""
        return {"up": self.up.pipe.mode is Mode.SWALLOW, "down": self.down.pipe.mode is Mode.SWALLOW}
