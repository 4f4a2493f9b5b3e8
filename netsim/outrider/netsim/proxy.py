"""A TCP proxy that makes loopback behave like a link, in front of a real port.

    async with Proxy(("127.0.0.1", 50051), link=profile("4g-medium").link, seed=7) as p:
        channel = grpc.aio.insecure_channel(p.address)
        p.trigger(Outage(), for_s=3)

It reads no protocol: HTTP/2, TLS, anything passes. It cannot drop packets; a loss becomes the time TCP needs to
repair it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from typing import Any, Literal, Self, TextIO

from outrider.netsim.board import Board
from outrider.netsim.connection import Connection, Side
from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import Fault, Injector, Schedule, Scheduled
from outrider.netsim.link import Link
from outrider.netsim.settings import LinkSettings
from outrider.netsim.state import StateLog, Stats

DIAL_TIMEOUT_S = 10.0
SOCKET_BUFFER_BYTES = 64 * 1024
"""Kernel buffers in front of a rated lane, small so that they do not hide the lane's own queue."""

ClockStart = Literal["start", "connection"]
"""What the schedule's seconds count from: the proxy's start, or its first connection."""


class Proxy:
    """Listens on `address` and forwards to `upstream` through `link`, with `faults`. An async context manager.

    Raises `BadConfig` on entry if the listening address cannot be had. An upstream that cannot be reached is no error
    here: each client sees its connection reset, as from a dead server.
    """

    def __init__(
        self,
        upstream: tuple[str, int],
        *,
        link: LinkSettings | None = None,
        faults: Schedule | Iterable[Scheduled] = (),
        seed: int = 0,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        clock: ClockStart = "start",
        log: TextIO | None = None,
        watch: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.upstream = upstream
        self.link = link if link is not None else LinkSettings()
        self.seed = seed
        self.state = StateLog(log, watch)
        """Every change of state, which `watch` is called with; see `StateLog`."""
        self._schedule = faults if isinstance(faults, Schedule) else Schedule(tuple(faults))
        self._clock = clock
        self._listen_at = listen
        self._origin = 0.0
        self._reservation: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._board = Board(Link(self.link, seed), self._moment, self._set_listening)
        self._injector = Injector(self._schedule, self._board, seed=seed, record=self._record)

    async def __aenter__(self) -> Self:
        self._origin = asyncio.get_running_loop().time()
        self._reservation = _reserve(*self._listen_at)
        await self._listen()
        self._record("listening", {"address": self.address, "upstream": "{}:{}".format(*self.upstream)})
        if self._clock == "start":
            self._injector.start(0.0)  # as in virtual time, however long it took to listen
        self._plan()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        self._board.reset()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets the transports close their sockets
        if self._reservation is not None:
            self._reservation.close()
        self._record("stopped", {})

    @property
    def host_port(self) -> tuple[str, int]:
        """Where clients connect. Raises `RuntimeError` before the proxy has started."""
        if self._reservation is None:
            raise RuntimeError("the proxy has not started: enter its context first")
        host, port = self._reservation.getsockname()[:2]
        return host, port

    @property
    def address(self) -> str:
        """`host:port`, as gRPC takes it."""
        host, port = self.host_port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def stats(self) -> Stats:
        """The counts now."""
        return self._board.stats()

    @property
    def open_faults(self) -> tuple[dict[str, Any], ...]:
        """The faults that are on now."""
        return self._injector.open_faults

    def now(self) -> float:
        """Seconds since the proxy's start, monotonic."""
        return asyncio.get_running_loop().time() - self._origin

    def _moment(self) -> float:
        planned = self._injector.moment
        return self.now() if planned is None else planned

    def on_token(self, token: int) -> None:
        """Report that the controller has seen token number `token`: faults scripted for it begin."""
        self._injector.on_token(token, self.now())
        self._plan()

    def trigger(self, fault: Fault, for_s: float | None = None) -> int:
        """Begin a fault now; returns its number for `end`. Without `for_s` it lasts until then, or for good."""
        key = self._injector.trigger(fault, self.now(), for_s)
        self._plan()
        return key

    def end(self, key: int) -> None:
        """End a fault now; one that is over already is left alone."""
        self._injector.end(key)
        self._plan()

    # connection.Network

    def dial(self, connection: Connection) -> None:
        """Connect to the upstream in the background."""
        self._spawn(self._dial(connection))

    def gone(self, connection: Connection) -> None:
        """Both sockets are closed."""
        self._board.remove(connection)
        self._record("closed", {"connection": connection.number})

    def note(self, event: str, connection: Connection, why: str) -> None:
        """Record a connection's change of state."""
        if event == "reset":
            self._board.count_reset()
        self._record(event, {"connection": connection.number, "why": why})

    def _record(self, event: str, fields: dict[str, Any]) -> None:
        self.state.add(self.now(), event, fields)

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._injector.wake_at()
        if at is not None and not self._closing:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - self.now()), self._due)

    def _due(self) -> None:
        self._injector.advance(self.now())
        self._plan()

    def _accepted(self) -> Side:
        number, pipes = self._board.pipes()
        connection = Connection(number, self, pipes)
        self._board.add(connection)
        self._record("connected", {"connection": number})
        self._injector.start(self.now())
        self._plan()
        return connection.client

    async def _dial(self, connection: Connection) -> None:
        host, port = self.upstream
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                transport, _ = await loop.create_connection(lambda: connection.server, host, port)
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no answer within {DIAL_TIMEOUT_S:g} s"
            connection.unreachable(f"upstream {host}:{port}: {why}")
            return
        if self.link.down.rated:
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        connection.dialled()

    def _set_listening(self, wanted: bool) -> None:
        if wanted and not self._closing:
            self._spawn(self._listen())
        elif self._server is not None:
            self._server.close()
            self._server = None

    async def _listen(self) -> None:
        """Listen on the reserved port, unless a refusal is on."""
        if self._server is not None or self._board.refusing or self._closing:
            return
        family = self._reservation.family if self._reservation is not None else socket.AF_INET
        sock = _bound(family, self.host_port)
        if self.link.up.rated:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        self._server = await asyncio.get_running_loop().create_server(self._accepted, sock=sock, backlog=512)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _bound(family: int, address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _reserve(host: str, port: int) -> socket.socket:
    """A bound socket that never listens: it keeps the port while a refusal has closed the listening one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return _bound(family, (str(address[0]), int(address[1])))
    except OSError as error:
        raise BadConfig("listen", f"cannot listen on {host}:{port}: {error.strerror or error}") from error
