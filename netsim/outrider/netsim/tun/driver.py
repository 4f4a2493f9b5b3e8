"""The real-time driver for packets: two TUN devices, a `PacketLink` between them, a command behind it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable

from outrider.netsim.errors import BadConfig
from outrider.netsim.settings import Direction
from outrider.netsim.tun.device import check_tools, open_tun, set_up
from outrider.netsim.tun.packets import PacketLink

PATTERN = "outrider%d"
READ_BYTES = 65536
START_S = 20.0
SERVER = "{server}"
"""In a command's arguments: the address at which the outside is reached."""


class Hop:
    """One direction: packets read from one device are written to the other in their time."""

    def __init__(
        self, direction: Direction, link: PacketLink, now: Callable[[], float], source: int, dest: int
    ) -> None:
        self._direction = direction
        self._link = link
        self._now = now
        self._source = source
        self._dest = dest
        self._queue: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        asyncio.get_running_loop().add_reader(source, self._read)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = os.read(self._source, READ_BYTES)
                if packet[0] >> 4 == 4:  # IPv6 only talks to itself here
                    self._take(packet)
        self._run()

    def _take(self, packet: bytes) -> None:
        arrival = self._link.arrival(self._direction, len(packet), self._now())
        if arrival is not None:
            self._queue.append((arrival, packet))

    def _run(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue and self._queue[0][0] <= self._now():
            with contextlib.suppress(BlockingIOError):  # a full device drops, as a full interface does
                os.write(self._dest, self._queue.popleft()[1])
        if self._queue and self._queue[0][0] < math.inf:
            delay = self._queue[0][0] - self._now()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, delay), self._run)

    def stop(self) -> None:
        """Read and write no more."""
        asyncio.get_running_loop().remove_reader(self._source)
        if self._timer is not None:
            self._timer.cancel()


async def run_behind(link: PacketLink, command: list[str], forward: tuple[str, int] | None) -> int:
    """Run `command` behind the link until it ends; its exit code.

    `forward` (host, port) is reachable from behind at the same port of the outer address, which takes the place of
    `{server}` in the command. Raises `BadConfig` where namespaces and TUN devices are not to be had.
    """
    check_tools()
    outer, name = open_tun(PATTERN)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, outer)
        net = f"10.213.{int(name.removeprefix(PATTERN[:-2])) % 256}"
        set_up(name, f"{net}.1/30")
        address = f"{net}.1:{forward[1]}" if forward else f"{net}.1"
        async with _relay(f"{net}.1", forward):
            process, inner = await _start([part.replace(SERVER, address) for part in command], f"{net}.2/30")
            stack.callback(os.close, inner)
            return await _carry(link, process, inner, outer)


async def _carry(link: PacketLink, process: asyncio.subprocess.Process, inner: int, outer: int) -> int:
    """Carry packets until the process ends; its exit code."""
    loop = asyncio.get_running_loop()
    origin = loop.time()

    def now() -> float:
        return loop.time() - origin

    hops = (Hop("up", link, now, inner, outer), Hop("down", link, now, outer, inner))
    try:
        return await process.wait()
    finally:
        for hop in hops:
            hop.stop()
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _start(command: list[str], address: str) -> tuple[asyncio.subprocess.Process, int]:
    """The command in its namespace, waiting for packets, and its end of the link. It starts as soon as it is ready."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inside = [sys.executable, "-m", "outrider.netsim.tun.inside", str(theirs.fileno()), address]
        process = await asyncio.create_subprocess_exec(
            "unshare", "--net", *inside, *command, pass_fds=[theirs.fileno()]
        )
        theirs.close()
        ours.settimeout(START_S)
        try:
            _, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, ours, 1, 1)
        except TimeoutError:
            descriptors = []
    if not descriptors:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise BadConfig("tun", "the namespace could not be set up (its reason is above); use proxy instead")
    os.set_blocking(descriptors[0], False)
    return process, descriptors[0]


@contextlib.asynccontextmanager
async def _relay(host: str, forward: tuple[str, int] | None) -> AsyncIterator[None]:
    """Connections to the outer address go on to `forward`."""
    if forward is None:
        yield
        return
    target = forward

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there = await asyncio.open_connection(*target)
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
        writer.close()

    try:
        server = await asyncio.start_server(serve, host, target[1])
    except OSError as error:
        raise BadConfig(
            "forward", f"cannot listen on {host}:{target[1]}: {error.strerror or error}"
        ) from error
    try:
        yield
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()  # a reset of one side ends the other
