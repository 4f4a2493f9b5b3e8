"""Download of a bundle or tokenizer file by its digest: resumable, bounded, and checked before it gets its name.

It runs on a channel of its own (the caller's): a bundle is tens of megabytes and must not stand before verdicts.
What has arrived stays in a partial file, whose length is the offset at which the next attempt goes on.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import grpc

from outrider.client.cache import Cache, Kind
from outrider.client.channel import Channel
from outrider.shared.errors import BundleError, ConfigError, ProtocolViolation, RoundTimeout
from outrider.v1 import verifier_pb2 as pb

MAX_BYTES = 1 << 30
CHUNK_BYTES = 65_536
MIN_CHUNK_BYTES = 1024
"""A server that sends less at a time, but for the end, is playing for time."""
MAX_CHUNK_BYTES = 262_144
MESSAGE_S = 20.0
"""Longest wait for the next piece."""
TOTAL_S = 3600.0
"""Longest download in one go."""
_BLOCK = 1 << 20


async def fetch(
    channel: Channel, sha256: bytes, cache: Cache, *, message_s: float = MESSAGE_S, total_s: float = TOTAL_S
) -> Path:
    """The file of this digest, in the cache, downloaded as far as it is not there.

    Raises RoundTimeout when no piece comes for ``message_s`` seconds or the whole takes more than ``total_s``, and
    gRPC's own errors when the link ends; all leave the partial file for the next call. Raises ProtocolViolation for
    pieces that are not what was asked for, BundleError when the whole does not have the digest (it is then thrown
    away) or another process is at it, ConfigError when the cache cannot be written.
    """
    partial = cache.partial(sha256)
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("ab") as file:
            _lock(file)
            # Looked for under the lock: another process may have moved the very file that was opened here.
            found = cache.find_bundle(sha256) or cache.find_tokenizer(sha256)
            if found is not None:
                partial.unlink(missing_ok=True)
                return found
            await _download(channel, sha256, file, message_s, total_s)
            file.flush()
            kind, digest = await asyncio.to_thread(_inspect, partial)
            if digest != sha256:
                partial.unlink(missing_ok=True)
                raise BundleError(f"what was sent for {sha256.hex()[:12]} has another digest")
            return cache.adopt(kind, sha256, partial)
    except OSError as error:
        raise ConfigError("OUTRIDER_CACHE", f"cannot write {partial} ({error.strerror})") from error


def _lock(file: BinaryIO) -> None:
    """Two processes must not append to one file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BundleError("another process is fetching this file") from error


async def _download(
    channel: Channel, sha256: bytes, file: BinaryIO, message_s: float, total_s: float
) -> None:
    """Append what is missing."""
    offset = os.fstat(file.fileno()).st_size
    request = pb.FetchBundleRequest(sha256=sha256, offset_bytes=offset, chunk_bytes=CHUNK_BYTES)
    call = channel.verifier.FetchBundle(request, metadata=channel.metadata)
    try:
        async with asyncio.timeout(total_s):
            await _append(call.__aiter__(), offset, file, message_s)
    except TimeoutError as error:
        raise RoundTimeout(f"the file did not come within {total_s:g} s") from error
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            file.truncate(0)  # more is here than the file has: whatever it is, it is not that file
        raise
    finally:
        call.cancel()


async def _append(
    pieces: AsyncIterator[pb.FetchBundleResponse], offset: int, file: BinaryIO, message_s: float
) -> None:
    total: int | None = None
    while total is None or offset < total:
        piece = await _next(pieces, message_s)
        if piece is None:
            raise ProtocolViolation(f"the download ended after {offset} of {total or 'unknown'} bytes")
        _check(piece, offset, total)
        total = piece.total_bytes
        file.write(piece.data)
        offset += len(piece.data)


async def _next(
    pieces: AsyncIterator[pb.FetchBundleResponse], message_s: float
) -> pb.FetchBundleResponse | None:
    try:
        async with asyncio.timeout(message_s):
            return await anext(pieces, None)
    except TimeoutError as error:
        raise RoundTimeout(f"no piece of the file within {message_s:g} s") from error


def _check(piece: pb.FetchBundleResponse, offset: int, total: int | None) -> None:
    """Refuse a piece at another place, of another total, beyond the end, empty, or of a size nobody asked for."""
    size = len(piece.data)
    if piece.total_bytes > MAX_BYTES:
        raise ProtocolViolation(f"a file of {piece.total_bytes} bytes, at most {MAX_BYTES} are taken")
    if total is not None and piece.total_bytes != total:
        raise ProtocolViolation(f"the file's size changed from {total} to {piece.total_bytes}")
    if piece.offset_bytes != offset:
        raise ProtocolViolation(f"a piece at {piece.offset_bytes}, expected {offset}")
    if offset + size > piece.total_bytes:
        raise ProtocolViolation(f"a piece up to {offset + size} of a file of {piece.total_bytes} bytes")
    last = offset + size == piece.total_bytes
    if size > MAX_CHUNK_BYTES or (size < MIN_CHUNK_BYTES and not last):
        raise ProtocolViolation(f"a piece of {size} bytes, asked for {CHUNK_BYTES}")


def _inspect(path: Path) -> tuple[Kind, bytes]:
    """What the file is, by its first byte (an ONNX file never begins like JSON), and its digest."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        first = file.read(1)
        file.seek(0)
        while block := file.read(_BLOCK):
            digest.update(block)
    return ("tokenizer" if first == b"{" else "bundle"), digest.digest()
