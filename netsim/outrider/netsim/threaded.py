"""`ThreadedProxy`: the proxy with an event loop and a thread of its own, for synchronous tests and benchmarks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Self, TextIO, TypeVar

from outrider.netsim.faults import Fault, Schedule, Scheduled
from outrider.netsim.proxy import ClockStart, Proxy
from outrider.netsim.settings import LinkSettings
from outrider.netsim.state import StateLog, Stats

T = TypeVar("T")


class ThreadedProxy:
    """As `Proxy`, with an ordinary `with`; every method may be called from any thread."""

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
    ) -> None:
        # First, so that bad settings raise here with nothing else begun.
        self._proxy = Proxy(
            upstream, link=link, faults=faults, seed=seed, listen=listen, clock=clock, log=log
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="netsim-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._proxy.__aenter__(), self._loop).result()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._proxy.__aexit__(*exc), self._loop).result()
        finally:
            self._stop()

    @property
    def address(self) -> str:
        """`host:port`, as gRPC takes it."""
        return self._proxy.address

    @property
    def host_port(self) -> tuple[str, int]:
        """Where clients connect."""
        return self._proxy.host_port

    @property
    def state(self) -> StateLog:
        """Every change of state."""
        return self._proxy.state

    @property
    def stats(self) -> Stats:
        """The counts now, or at the end."""
        return self._proxy.stats if self._loop.is_closed() else self._call(lambda: self._proxy.stats)

    @property
    def open_faults(self) -> tuple[dict[str, Any], ...]:
        """The faults that are on now."""
        return self._call(lambda: self._proxy.open_faults)

    def on_token(self, token: int) -> None:
        """Report that the controller has seen token number `token`."""
        self._call(lambda: self._proxy.on_token(token))

    def trigger(self, fault: Fault, for_s: float | None = None) -> int:
        """Begin a fault now; it has taken effect when this returns. Returns its number for `end`."""
        return self._call(lambda: self._proxy.trigger(fault, for_s))

    def end(self, key: int) -> None:
        """End a fault now."""
        self._call(lambda: self._proxy.end(key))

    def _call(self, function: Callable[[], T]) -> T:
        """Run `function` in the proxy's thread and wait for what it returns."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
