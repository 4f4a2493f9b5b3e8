"""`ControlServer`: a line protocol beside a proxy, so that another process can report tokens and begin faults.

One command a line, one JSON object back: `{"ok": true, …}` or `{"ok": false, "why": …}`.

    token 20                     the controller has seen token number 20
    trigger outage for=3s        begin a fault now; answers its id
    end 1                        end fault 1 now
    stats                        counts and the faults that are on

Loopback only: who reaches it may cut the link.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from dataclasses import asdict
from typing import Any, Self

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import parse_fault
from outrider.netsim.proxy import Proxy


class ControlServer:
    """Serves commands for `proxy` on a loopback address. An async context manager.

    Raises `BadConfig` for an address that is not loopback or cannot be had.
    """

    def __init__(self, proxy: Proxy, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        host = listen[0]
        if host != "localhost" and not _is_loopback(host):
            raise BadConfig("control", f"{host} is not a loopback address; use 127.0.0.1 or ::1")
        self._proxy = proxy
        self._listen = listen
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(self._serve, *self._listen)
        except OSError as error:
            raise BadConfig(
                "control", "cannot listen on {}:{}: ".format(*self._listen) + str(error)
            ) from error
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.close()
        await asyncio.sleep(0)

    @property
    def address(self) -> str:
        """`host:port` of the control socket. Raises `RuntimeError` before the start."""
        if self._server is None:
            raise RuntimeError("the control server has not started: enter its context first")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while line := await reader.readline():
                writer.write(json.dumps(self.answer(line.decode(errors="replace"))).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass  # the controller is gone, or sent an endless line: the proxy goes on without it
        finally:
            self._writers.discard(writer)
            writer.close()

    def answer(self, line: str) -> dict[str, Any]:
        """Carry out one command line; bad ones are answered, never raised."""
        try:
            return {"ok": True, **self._run(line.split())}
        except BadConfig as error:
            return {"ok": False, "why": str(error)}

    def _run(self, words: list[str]) -> dict[str, Any]:
        match words:
            case ["token", number] if number.isdecimal():
                self._proxy.on_token(int(number))
                return {}
            case ["trigger", kind, *fields]:
                fault, for_s = parse_fault(kind, ",".join(fields))
                return {"id": self._proxy.trigger(fault, for_s)}
            case ["end", key] if key.isdecimal():
                self._proxy.end(int(key))
                return {}
            case ["stats"]:
                return {**asdict(self._proxy.stats), "faults": list(self._proxy.open_faults)}
        raise BadConfig("command", "expected token N, trigger KIND [for=3s …], end ID or stats")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
