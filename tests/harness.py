"""A real verifier on a free loopback port, in this process, for tests of either side.

::

    with running_verifier() as verifier:                       # a toy target: fast, no torch
        ...verifier.address...
    with running_verifier(target_dir=folder, bundle=path) as verifier:   # a real one
        ...
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from outrider.cloud.listener import ListenerSettings
from outrider.cloud.metrics import Metrics
from outrider.cloud.runner import Engine
from outrider.cloud.serve import Loaded, Verifier
from tests.toy_engine import ToyEngine
from tests.toy_verifier import toy_loaded

T = TypeVar("T")
_PATIENCE_S = 120.0


class Handle:
    """A running verifier as seen from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, verifier: Verifier, host: str) -> None:
        self._loop = loop
        self._verifier = verifier
        self.address = f"{host}:{verifier.port}"
        self.port = verifier.port

    @property
    def engine(self) -> Any:
        """The engine inside, for instance a `ToyEngine`."""
        return self._verifier.loaded.engine

    @property
    def metrics(self) -> Metrics:
        """Its counters."""
        return self._verifier.metrics

    @property
    def loaded(self) -> Loaded:
        """What it serves."""
        return self._verifier.loaded

    def call(self, act: Callable[[Verifier], T]) -> T:
        """Run ``act`` on the verifier's own event loop and give its result."""
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(act(self._verifier))
            except Exception as error:
                result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return result.result(_PATIENCE_S)

    def run(self, act: Callable[[Verifier], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the verifier's own event loop and give its result."""
        return asyncio.run_coroutine_threadsafe(act(self._verifier), self._loop).result(_PATIENCE_S)


@contextmanager
def running_verifier(
    target_dir: Path | None = None,
    bundle: Path | None = None,
    *,
    drafter: Path | None = None,
    engine: Engine | None = None,
    loaded: Loaded | None = None,
    listener: ListenerSettings | None = None,
    port: int = 0,
    **start: Any,
) -> Iterator[Handle]:
    """A verifier that serves until the block ends.

    What it serves: ``loaded`` as given; else the target in ``target_dir`` (with ``drafter`` weights and the ``bundle``
    made from them); else a toy target over ``engine``. ``port`` fixes the port, to restart a verifier in its place.
    """
    if loaded is None:
        loaded = _load(target_dir, bundle, drafter, engine)
    settings = listener or ListenerSettings()
    settings = replace(settings, listen=f"127.0.0.1:{port}")
    with _loop_thread() as loop:
        started = asyncio.run_coroutine_threadsafe(Verifier.start(loaded, settings, **start), loop)
        verifier = started.result(_PATIENCE_S)
        try:
            yield Handle(loop, verifier, "127.0.0.1")
        finally:
            asyncio.run_coroutine_threadsafe(verifier.stop(), loop).result(_PATIENCE_S)


def _load(
    target_dir: Path | None, bundle: Path | None, drafter: Path | None, engine: Engine | None
) -> Loaded:
    if target_dir is None:
        return toy_loaded(engine if isinstance(engine, ToyEngine) else ToyEngine())
    from outrider.cloud.config import ServeConfig
    from outrider.cloud.load import load

    return load(
        ServeConfig(
            target=str(target_dir),
            bundle=bundle,
            drafters=(drafter,) if drafter else (),
            threads=1,
            kv_budget_mib=64,
        )
    )


def _quietly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """gRPC's completion queue is one per process: this loop also gets the last events of loops that have closed."""
    if "PollerCompletionQueue" not in str(context.get("message")):
        loop.default_exception_handler(context)


@contextmanager
def _loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs on a thread of its own until the block ends."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_quietly)
    thread = threading.Thread(target=loop.run_forever, name="verifier-loop", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_PATIENCE_S)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
