"""The secret that every coin of every rule comes from: drawn for a process, or shared by replicas in a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from secrets import token_bytes

from outrider.shared.errors import ConfigError
from outrider.shared.transport import read_file

OPTION = "--coin-secret-file"
LEAST_BYTES, MOST_BYTES = 16, 64
"""Fewer could be guessed; BLAKE2b takes no longer key."""


def coin_secret(path: Path | None) -> bytes:
    """The secret in ``path``, hexadecimal digits on one line; without a file 32 bytes that nobody else has.

    Raises ConfigError ("--coin-secret-file") for a file that cannot be read, that everybody on this machine can read or
    write, or that holds anything but 16 to 64 bytes in hexadecimal. No message quotes what is in it.
    """
    if path is None:
        return token_bytes(32)
    text = read_file(path, setting=OPTION)
    if os.name == "posix" and path.stat().st_mode & stat.S_IRWXO:
        raise ConfigError(OPTION, f"{path} is open to everybody on this machine", remedy=f"chmod o= {path}")
    try:
        secret = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        raise ConfigError(
            OPTION, f"{path} is not one line of hexadecimal digits", remedy="openssl rand -hex 32"
        ) from None
    if not LEAST_BYTES <= len(secret) <= MOST_BYTES:
        raise ConfigError(OPTION, f"{path} holds {len(secret)} bytes, expected {LEAST_BYTES} to {MOST_BYTES}")
    return secret
