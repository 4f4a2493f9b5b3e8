"""The device's connections: security, credentials, options. The only module of the device that opens one.

A session dials a second connection while the first may be dying, and a bundle travels on one of its own, so every
`Channel` is a TCP connection to itself and nothing is pooled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from outrider.shared.errors import ConfigError, ConnectTimeout
from outrider.shared.transport import (
    COMMON_OPTIONS,
    ChannelOptions,
    is_loopback,
    read_file,
    read_tokens,
    split_address,
)
from outrider.v1 import verifier_pb2_grpc

if TYPE_CHECKING:
    from outrider.v1.verifier_pb2_grpc import VerifierAsyncStub

CLIENT_OPTIONS: ChannelOptions = (
    *COMMON_OPTIONS,
    # A dead connection must not be handed to the stream that was opened because of it.
    ("grpc.use_local_subchannel_pool", 1),
    # No pings between turns: they would keep a phone's radio awake.
    ("grpc.keepalive_permit_without_calls", 0),
    # gRPC's own waiting between attempts, kept short: how long to wait is the session's decision.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Also the time one attempt may take: TCP and TLS need three round trips, which is 2 s over a satellite.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # gRPC's retries stop at the first response header, so they can never resume Decode; one place retries, not two.
    ("grpc.enable_retries", 0),
    # Policy comes from the command line, not from a DNS TXT record.
    ("grpc.service_config_disable_resolution", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSettings:
    """How to reach a verifier.

    Loopback addresses are dialled in plain text unless ``tls`` or one of the certificate options says otherwise; every
    other address is dialled with TLS unless ``insecure`` is set.
    """

    server: str
    """``host:port``."""
    tls: bool = False
    """TLS even on loopback, against the system's certificate authorities unless ``tls_ca`` is given."""
    tls_ca: Path | None = None
    """PEM file of the authorities that may have signed the verifier's certificate."""
    tls_cert: Path | None = None
    """PEM file of this device's certificate chain; needs ``tls_key``."""
    tls_key: Path | None = None
    """PEM file of this device's private key; needs ``tls_cert``."""
    token_file: Path | None = None
    """File with one bearer token (see `outrider.shared.transport.read_tokens`)."""
    insecure: bool = False
    """Plain text to an address that is not loopback. Never together with a token."""
    extra_options: ChannelOptions = field(default=())
    """Channel arguments that override this module's."""

    @property
    def secure(self) -> bool:
        """Whether the connection will use TLS."""
        wanted = self.tls or bool(self.tls_ca or self.tls_cert or self.tls_key)
        return wanted or not (self.insecure or is_loopback(self.server))


class Channel:
    """One connection to one verifier.

    Call it as ``channel.verifier.Decode(metadata=channel.metadata)``: the metadata carries the credential.
    """

    __slots__ = ("_channel", "metadata", "server", "verifier")

    def __init__(self, channel: grpc.aio.Channel, server: str, metadata: tuple[tuple[str, str], ...]) -> None:
        self._channel = channel
        self.server = server
        self.metadata = metadata
        self.verifier: VerifierAsyncStub = verifier_pb2_grpc.VerifierStub(channel)

    async def ready(self, timeout_s: float) -> None:
        """Wait until connected (TCP and TLS done). Raises ConnectTimeout after ``timeout_s`` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._channel.channel_ready()
        except TimeoutError as error:
            raise ConnectTimeout(f"no connection to {self.server} within {timeout_s:g} s") from error

    async def close(self, grace_s: float | None = None) -> None:
        """Close the connection, cancelling what still runs after ``grace_s`` seconds (None: at once)."""
        await self._channel.close(grace_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def open_channel(settings: ChannelSettings) -> Channel:
    """A new connection, dialled at the first call. Call inside a running event loop.

    Raises ConfigError for an address that is not host:port, unreadable or incomplete certificate files, or a token that
    would cross the network in plain text.
    """
    split_address(settings.server)
    local = is_loopback(settings.server)
    metadata = _metadata(settings, local=local)
    options = dict(CLIENT_OPTIONS)
    if local:
        # An http_proxy variable is meant for the world outside, not for this machine.
        options["grpc.enable_http_proxy"] = 0
    options.update(settings.extra_options)
    if settings.secure:
        channel = grpc.aio.secure_channel(
            settings.server,
            _credentials(settings),
            tuple(options.items()),
            compression=grpc.Compression.NoCompression,
        )
    else:
        channel = grpc.aio.insecure_channel(
            settings.server, tuple(options.items()), compression=grpc.Compression.NoCompression
        )
    return Channel(channel, settings.server, metadata)


def _metadata(settings: ChannelSettings, *, local: bool) -> tuple[tuple[str, str], ...]:
    if settings.token_file is None:
        return ()
    if not settings.secure and not local:
        raise ConfigError(
            "--token-file",
            f"the token would cross the network to {settings.server} in plain text",
            remedy="use TLS",
        )
    tokens = read_tokens(settings.token_file)
    if len(tokens) > 1:
        raise ConfigError(
            "--token-file", f"{settings.token_file} holds {len(tokens)} tokens, a device shows one"
        )
    # As metadata of each call and not as gRPC call credentials: those refuse a plain loopback connection.
    return tuple(("authorization", f"Bearer {token}") for token in tokens.values())


def _credentials(settings: ChannelSettings) -> grpc.ChannelCredentials:
    if settings.insecure:
        raise ConfigError(
            "--insecure", "asks for plain text while other options ask for TLS", remedy="drop one of the two"
        )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        given, missing = ("--tls-cert", "--tls-key") if settings.tls_cert else ("--tls-key", "--tls-cert")
        raise ConfigError(given, f"needs {missing} as well")
    return grpc.ssl_channel_credentials(
        root_certificates=read_file(settings.tls_ca, setting="--tls-ca") if settings.tls_ca else None,
        private_key=read_file(settings.tls_key, setting="--tls-key") if settings.tls_key else None,
        certificate_chain=read_file(settings.tls_cert, setting="--tls-cert") if settings.tls_cert else None,
    )
