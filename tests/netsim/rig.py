"""What the proxy's tests stand on: an echo server that remembers, clients, and bounded waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from outrider.netsim.faults import Schedule
from outrider.netsim.proxy import Proxy
from outrider.netsim.settings import LinkSettings

PATIENCE_S = 30.0
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class EchoServer:
    """Echoes; remembers what it got, connection by connection, and how each ended."""

    def __init__(self) -> None:
        self.received: list[bytearray] = []
        self.ended: list[str] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> EchoServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._tasks)

    @property
    def address(self) -> tuple[str, int]:
        if self._server is None:
            raise RuntimeError("not started")
        host, port = self._server.sockets[0].getsockname()
        return host, port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        number = len(self.received)
        self.received.append(bytearray())
        self.ended.append("")
        try:
            while data := await reader.read(65536):
                self.received[number] += data
                writer.write(data)
                await writer.drain()
            self.ended[number] = "end"
        except ConnectionError:
            self.ended[number] = "reset"
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def rig(
    link: LinkSettings | None = None, faults: Schedule | None = None, seed: int = 0
) -> AsyncIterator[tuple[EchoServer, Proxy]]:
    async with EchoServer() as server, asyncio.timeout(PATIENCE_S):
        async with Proxy(server.address, link=link, faults=faults or Schedule(), seed=seed) as proxy:
            yield server, proxy


@contextlib.asynccontextmanager
async def client(proxy: Proxy) -> AsyncIterator[Pair]:
    reader, writer = await asyncio.open_connection(*proxy.host_port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the proxy offers no events, and needs none but here
        await asyncio.sleep(0.002)


async def echo(pair: Pair, data: bytes) -> bytes:
    pair[1].write(data)
    return await pair[0].readexactly(len(data))


async def ending(reader: asyncio.StreamReader) -> str:
    """How the connection ends for a reader that expects no more bytes."""
    try:
        return "end" if await reader.read(1) == b"" else "bytes"
    except ConnectionResetError:
        return "reset"


async def rest(reader: asyncio.StreamReader) -> tuple[bytes, str]:
    """All further bytes, and how the connection ended."""
    data = b""
    try:
        while part := await reader.read(65536):
            data += part
    except ConnectionResetError:
        return data, "reset"
    return data, "end"
