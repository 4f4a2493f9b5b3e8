"""The verifier's door: address, TLS, who may come in, and under which name.

Everything is denied unless it is allowed: with tokens configured, every method of every service (health and reflection
included, and methods that do not exist) answers UNAUTHENTICATED without one. Client certificates are demanded by the
TLS handshake itself.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from outrider.shared.errors import ConfigError
from outrider.shared.transport import (
    COMMON_OPTIONS,
    MIN_PING_INTERVAL_MS,
    ChannelOptions,
    is_loopback,
    read_file,
    read_tokens,
    split_address,
)

SERVER_OPTIONS: ChannelOptions = (
    *COMMON_OPTIONS,
    # Devices ping every 10 s; with gRPC's default of 5 minutes they would be thrown out for pinging too often.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two verifiers on one port would share devices at random and each would know half of a session.
    ("grpc.so_reuseport", 0),
    # A device needs a stream or two; one connection must not be able to open thousands.
    ("grpc.max_concurrent_streams", 32),
)

ANONYMOUS = "anonymous"
"""The principal where neither tokens nor client certificates are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Where to listen and whom to let in."""

    listen: str = "127.0.0.1:50051"
    """``host:port``; port 0 picks a free one."""
    tls_cert: Path | None = None
    """PEM file of the server's certificate chain; needs ``tls_key``."""
    tls_key: Path | None = None
    """PEM file of the server's private key; needs ``tls_cert``."""
    tls_client_ca: Path | None = None
    """PEM file of the authorities whose client certificates are let in; without one of them no connection is made."""
    token_file: Path | None = None
    """Bearer tokens (see `outrider.shared.transport.read_tokens`); without one of them no call is made."""
    insecure: bool = False
    """Plain text on an address that other machines can reach."""
    max_calls: int | None = None
    """Calls served at once over all connections; None is no limit. Above it: RESOURCE_EXHAUSTED."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A server that listens but does not serve yet: add services, then ``await server.start()``."""

    server: grpc.aio.Server
    port: int
    gate: Gate
    secure: bool


class Gate(grpc.aio.ServerInterceptor):
    """Lets a call in or denies it, and knows the caller's name.

    Tokens are kept as SHA-256 digests; a comparison takes the same time whichever token is shown.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._names = {_digest(token): name for name, token in tokens.items()}

    @property
    def wants_token(self) -> bool:
        """Whether calls need a bearer token."""
        return bool(self._names)

    def name_of(self, metadata: Mapping[str, str | bytes]) -> str | None:
        """Name of the token in the call's metadata, or None for a missing or unknown one."""
        value = metadata.get("authorization", "")
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        scheme, _, token = text.partition(" ")
        shown = _digest(token.strip())
        found = None
        for digest, name in self._names.items():  # all of them, also after a match
            if hmac.compare_digest(digest, shown):
                found = name
        return found if scheme.lower() == "bearer" else None

    def principal(self, context: grpc.aio.ServicerContext[Any, Any]) -> str:
        """Who calls: the token's name, else the client certificate's common name, else "anonymous".

        The three cannot be mistaken for each other: they carry the prefixes "token:" and "cert:".
        """
        name = self.name_of(_plain(context.invocation_metadata())) if self.wants_token else None
        if name is not None:
            return f"token:{name}"
        common = context.auth_context().get("x509_common_name")
        return f"cert:{next(iter(common)).decode(errors='replace')}" if common else ANONYMOUS

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """gRPC's hook, before any byte of a request is read."""
        if self.wants_token and self.name_of(_plain(handler_call_details.invocation_metadata)) is None:
            return _DENY
        return await continuation(handler_call_details)


async def _deny(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid bearer token is needed")


# As a stream handler it fits calls of every kind, and it reads no request.
_DENY: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(_deny)


def listen(settings: ListenerSettings) -> Listener:
    """Bind the address. Call inside a running event loop.

    Raises ConfigError for plain text on a public address without ``insecure``, incomplete or unreadable certificate
    files, client certificates without TLS, tokens in plain text on a public address, or an address that is taken.
    """
    split_address(settings.listen, setting="--listen")
    credentials = _credentials(settings)
    if credentials is None and not is_loopback(settings.listen):
        if not settings.insecure:
            raise ConfigError(
                "--listen",
                f"{settings.listen} can be reached by other machines and would be served in plain text",
                remedy="give --tls-cert and --tls-key, listen on 127.0.0.1, or say --insecure",
            )
        if settings.token_file is not None:
            raise ConfigError(
                "--token-file", "tokens would cross the network in plain text", remedy="use TLS"
            )
    gate = Gate(read_tokens(settings.token_file) if settings.token_file else {})
    server = grpc.aio.server(
        interceptors=(gate,),
        options=SERVER_OPTIONS,
        maximum_concurrent_rpcs=settings.max_calls,
        compression=grpc.Compression.NoCompression,
    )
    try:
        if credentials is None:
            port = server.add_insecure_port(settings.listen)
        else:
            port = server.add_secure_port(settings.listen, credentials)
    except RuntimeError as error:
        raise ConfigError(
            "--listen", f"cannot listen on {settings.listen}: is the address in use?"
        ) from error
    return Listener(server, port, gate, credentials is not None)


def _credentials(settings: ListenerSettings) -> grpc.ServerCredentials | None:
    cert, key, client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
    if cert is None or key is None:
        if cert is not None or key is not None:
            given, missing = ("--tls-cert", "--tls-key") if cert else ("--tls-key", "--tls-cert")
            raise ConfigError(given, f"needs {missing} as well")
        if client_ca is not None:
            raise ConfigError(
                "--tls-client-ca", "client certificates need TLS: give --tls-cert and --tls-key"
            )
        return None
    pair = (read_file(key, setting="--tls-key"), read_file(cert, setting="--tls-cert"))
    authorities = read_file(client_ca, setting="--tls-client-ca") if client_ca else None
    return grpc.ssl_server_credentials([pair], authorities, require_client_auth=authorities is not None)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _plain(metadata: object) -> dict[str, str | bytes]:
    return dict(metadata) if metadata else {}  # type: ignore[call-overload]
