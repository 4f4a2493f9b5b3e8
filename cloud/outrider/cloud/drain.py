"""Leaving in good order: finish rounds, tell devices, refuse new sessions, exit 0.

The first SIGTERM or SIGINT starts the drain; a second one ends the process at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable

import grpc

from outrider.cloud.events import DrainRequested
from outrider.cloud.hub import Hub
from outrider.cloud.logs import event

_log = logging.getLogger(__name__)

GRACE_S = 2.0
"""After the deadline, calls still open get this long to take their last frames."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Leaving:
    """Set by the first signal; the second one leaves at once through ``leave_now(exit code)``."""

    def __init__(self, leave_now: Callable[[int], object] = os._exit) -> None:
        self.asked = asyncio.Event()
        self._leave_now = leave_now

    def install(self) -> None:
        """Listen for SIGTERM and SIGINT on the running loop."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.ask, number)

    def remove(self) -> None:
        """Give the signals back."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def ask(self, number: int) -> None:
        """One signal has arrived."""
        name = signal.Signals(number).name
        if self.asked.is_set():
            event(_log, logging.WARNING, "second signal, leaving at once", signal=name)
            self._leave_now(128 + number)
            return
        event(_log, logging.INFO, "draining", signal=name)
        self.asked.set()


async def drain(hub: Hub, server: grpc.aio.Server, deadline_s: float, grace_s: float = GRACE_S) -> None:
    """Tell every stream, give them ``deadline_s`` to finish, then stop the server.

    Drain frames go out before gRPC's own GOAWAY, so that a device knows that its session is safe elsewhere.
    """
    hub.handle(DrainRequested(int(deadline_s * 1000)))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(hub.idle.wait(), deadline_s)
    event(_log, logging.INFO, "stopping", streams=hub.open_streams)
    await server.stop(grace_s)
