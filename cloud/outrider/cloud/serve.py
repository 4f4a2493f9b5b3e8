"""From settings to a verifier that listens, and back to nothing in good order."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from outrider.cloud.bundles import BundleStore
from outrider.cloud.config import ServeConfig
from outrider.cloud.drain import Leaving, drain
from outrider.cloud.hub import Hub, Table
from outrider.cloud.listener import Listener, ListenerSettings, listen
from outrider.cloud.logs import event
from outrider.cloud.metrics import Metrics, MetricsServer
from outrider.cloud.runner import Engine, RowMaker
from outrider.cloud.service import OPEN_TIMEOUT_S, VerifierService
from outrider.shared.errors import ConfigError
from outrider.shared.frames import Description
from outrider.shared.program import version
from outrider.shared.transport import split_address
from outrider.v1 import verifier_pb2, verifier_pb2_grpc

_log = logging.getLogger(__name__)

SERVICE = verifier_pb2.DESCRIPTOR.services_by_name["Verifier"].full_name
"""Name under which health is told, beside the empty name for the whole server."""

_HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A target ready to serve."""

    engine: Engine
    """Called from the engine's thread only, once serving."""
    table: Callable[[], Table]
    """Makes the session table."""
    description: Description
    """What Describe answers."""
    rows: RowMaker | None = None
    """Makes state rows; None: none are offered."""
    bundles: BundleStore
    """What FetchBundle serves."""
    kv_limit_bytes: int = 0
    """For the metric of that name."""


class Verifier:
    """One verifier in this process and event loop. `start` it, then `drain` or `stop` it."""

    def __init__(self, loaded: Loaded, listener: Listener, metrics: Metrics, hub: Hub) -> None:
        self.loaded = loaded
        self.metrics = metrics
        self.hub = hub
        self.port = listener.port
        self._server: grpc.aio.Server = listener.server
        self._health = health.aio.HealthServicer()

    @classmethod
    async def start(
        cls,
        loaded: Loaded,
        settings: ListenerSettings,
        *,
        reflection: bool = False,
        metrics: Metrics | None = None,
        open_timeout_s: float = OPEN_TIMEOUT_S,
    ) -> Verifier:
        """Listen and serve. Raises ConfigError for settings that cannot work or an address that is taken."""
        metrics = metrics or Metrics()
        listener = listen(settings)
        hub = Hub(loaded.table(), loaded.engine, loaded.rows, metrics)
        verifier = cls(loaded, listener, metrics, hub)
        service = VerifierService(
            hub, loaded.description, loaded.bundles, listener.gate, metrics, open_timeout_s
        )
        verifier_pb2_grpc.add_VerifierServicer_to_server(service, listener.server)
        health_pb2_grpc.add_HealthServicer_to_server(verifier._health, listener.server)
        if reflection:
            _add_reflection(listener.server)
        metrics.follow("kv_bytes", loaded.engine.kv_bytes)
        metrics.count("kv_limit_bytes", loaded.kv_limit_bytes)
        hub.start()
        await listener.server.start()
        await verifier._tell(health_pb2.HealthCheckResponse.SERVING)
        return verifier

    async def drain(self, deadline_s: float) -> None:
        """Refuse new sessions, let open streams finish within ``deadline_s``, then stop."""
        await self._tell(health_pb2.HealthCheckResponse.NOT_SERVING)
        await drain(self.hub, self._server, deadline_s)
        await self.stop()

    async def stop(self) -> None:
        """Cut everything that is still open and end the engine's thread."""
        await self._server.stop(None)
        await asyncio.to_thread(self.hub.stop)

    async def _tell(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", SERVICE):
            await self._health.set(name, status)


def _add_reflection(server: grpc.aio.Server) -> None:
    from grpc_reflection.v1alpha import reflection

    reflection.enable_server_reflection((SERVICE, _HEALTH_SERVICE, reflection.SERVICE_NAME), server)


async def probe(settings: ListenerSettings) -> None:
    """Try address and credentials. Raises ConfigError for what would only show after the target is loaded.

    The address is tried with a socket of our own: a gRPC server that was never started does not let go of its port.
    """
    host, port = split_address(settings.listen, setting="--listen")
    await listen(replace(settings, listen=f"[{host}]:0" if ":" in host else f"{host}:0")).server.stop(None)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ConfigError(
            "--listen", f"cannot listen on {settings.listen}: {error.strerror or error}"
        ) from error


async def serve(config: ServeConfig, loaded: Loaded, announce: Callable[[str], None]) -> int:
    """Serve until a signal asks to leave; the process's exit code.

    ``announce`` gets one line once devices can connect: ``outrider-cloud listening on HOST:PORT``.
    """
    metrics = Metrics()
    metrics.describe(build={"version": version()}, model=_model_info(loaded.description))
    leaving = Leaving()
    verifier = await Verifier.start(loaded, config.listener, reflection=config.reflection, metrics=metrics)
    exporter = None
    try:
        if config.metrics_port is not None:
            exporter = MetricsServer(metrics, config.metrics_host, config.metrics_port)
            event(_log, logging.INFO, "metrics", address=f"{config.metrics_host}:{exporter.port}")
        leaving.install()
        host = config.listener.listen.rpartition(":")[0]
        announce(f"outrider-cloud listening on {host}:{verifier.port}")
        return await _until_asked(verifier, leaving, config.drain_s)
    finally:
        if exporter is not None:
            exporter.close()


async def _until_asked(verifier: Verifier, leaving: Leaving, drain_s: float) -> int:
    """Wait for a signal, or for the session table to break; then leave."""
    waits = {
        asyncio.create_task(leaving.asked.wait()),
        asyncio.create_task(verifier.hub.broken.wait()),
    }
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    broken = verifier.hub.broken.is_set()
    await verifier.drain(0.0 if broken else drain_s)
    leaving.remove()
    return 1 if broken else 0


def _model_info(description: Description) -> dict[str, str]:
    return {
        "target": description.target_name,
        "dtype": description.dtype,
        "law": description.fingerprints.law.hex()[:16],
        "bundle": description.fingerprints.bundle.hex()[:16],
    }
