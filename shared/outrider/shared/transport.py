"""What both ends of a connection must agree on: options, addresses, tokens, statuses.

The device's half is `outrider.client.channel`, the verifier's `outrider.cloud.listener`. Channel arguments are
described in gRPC's ``include/grpc/impl/channel_arg_names.h``; each one set here has its reason beside it.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from outrider.shared.errors import (
    ConfigError,
    ConnectTimeout,
    LinkDown,
    OutriderError,
    from_status,
    status_of,
)

if TYPE_CHECKING:
    from outrider.shared.frames import FailureReason

ChannelOptions = tuple[tuple[str, int | str], ...]

MAX_MESSAGE_BYTES = 1 << 20
"""Largest message either side takes, in bytes. Decode frames stay below 64 KiB, bundle chunks below 256 KiB."""

KEEPALIVE_TIME_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
MIN_PING_INTERVAL_MS = 5_000

COMMON_OPTIONS: ChannelOptions = (
    # A peer cannot make the other side hold more than this for one message.
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # The next two clean up connections that are dead but not closed. They are not how an outage is noticed: that is the
    # session's own timers and Ping/Pong, since HTTP/2 pings end at the first proxy.
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Without it a proxy that swallows bytes but acknowledges them keeps a dead connection for a minute: the keepalive
    # timeout works through TCP_USER_TIMEOUT, which such a proxy satisfies. A radio may stall for 1-2 s, so not less.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Pings are not data; without this the peer stops pinging after two.
    ("grpc.http2.max_pings_without_data", 0),
)


def is_loopback(address: str) -> bool:
    """Whether ``host:port`` is out of other machines' reach. Of names, only localhost is."""
    host = split_address(address)[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_address(address: str, *, setting: str = "--server") -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``. Raises ConfigError, naming ``setting``, for anything else."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        raise ConfigError(
            setting, f"{address!r} is not host:port", remedy="write for example 127.0.0.1:50051"
        )
    if not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(setting, f"{port!r} is not a port (0 to 65535)")
    return (host[1:-1] if bracketed else host), int(port)


def read_file(path: Path, *, setting: str) -> bytes:
    """Content of a certificate, key or token file. Raises ConfigError, naming ``setting``, if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(setting, f"cannot read {path}: {error.strerror}") from error


def read_tokens(path: Path, *, setting: str = "--token-file") -> dict[str, str]:
    """Bearer tokens by name. One ``name token`` a line, or the token alone (name "default"); ``#`` begins a comment.

    Raises ConfigError for an unreadable or empty file, a name used twice, or a token that cannot stand in a header. The
    message never quotes a token.
    """
    tokens: dict[str, str] = {}
    text = read_file(path, setting=setting).decode(errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, token = words if len(words) == 2 else ("default", words[-1])
        if len(words) > 2 or not token.isascii() or not token.isprintable():
            raise ConfigError(setting, f"{path}, line {number} is not a token or a name and a token")
        if name in tokens:
            raise ConfigError(setting, f"{path}, line {number}: the name {name!r} was used before")
        tokens[name] = token
    if not tokens:
        raise ConfigError(setting, f"{path} holds no token")
    return tokens


def status_code(reason: FailureReason) -> grpc.StatusCode:
    """The status that ends a stream for this reason."""
    return grpc.StatusCode[status_of(reason)]


def error_of(error: Exception) -> OutriderError:
    """The project's error for what a gRPC call raised. Raises TypeError for an exception that is not gRPC's."""
    if isinstance(error, OutriderError):
        return error
    if isinstance(error, TimeoutError):
        return ConnectTimeout("no answer in time")
    if isinstance(error, grpc.aio.AioRpcError):
        return _of_rpc(error.code(), error.details() or "")
    if isinstance(error, grpc.aio.UsageError | grpc.aio.InternalError | grpc.aio.AbortError):
        return LinkDown(f"the connection is closed ({type(error).__name__})")
    raise TypeError(f"not an error of a gRPC call: {type(error).__name__}") from error


_TLS_WORDS = ("ssl", "tls", "certificate", "hostname verification")


def _of_rpc(code: grpc.StatusCode, details: str) -> OutriderError:
    if code is grpc.StatusCode.UNAVAILABLE and any(word in details.lower() for word in _TLS_WORDS):
        # An outage can look like this too (a captive portal), so it stays a link error, with the likely cause told.
        return LinkDown(
            f"no secure connection: {details}",
            remedy="check --tls-ca, the host name in the verifier's certificate, and --tls-cert and --tls-key",
        )
    return from_status(code.name, details)
