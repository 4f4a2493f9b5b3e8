"""Which files FetchBundle serves, found by their SHA-256 and read piecewise.

A store is filled at start-up and never changes. A digest only ever selects an entry of the store: no path is made from
what a device sends.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from outrider.shared.errors import BundleError, InvalidField

DEFAULT_CHUNK_BYTES = 65_536
MAX_CHUNK_BYTES = 262_144

_HASH_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class ServedFile:
    """One file: its digest, size, and where its bytes are (a path, or memory)."""

    sha256: bytes
    size_bytes: int
    path: Path | None = None
    content: bytes = b""

    def read(self, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes from ``offset``. Raises BundleError if the file on disk has been cut or removed."""
        expected = min(count, self.size_bytes - offset)
        if self.path is None:
            return self.content[offset : offset + expected]
        try:
            with self.path.open("rb") as file:
                data = os.pread(file.fileno(), expected, offset)
        except OSError as error:
            raise BundleError("a served file can no longer be read") from error
        if len(data) != expected:
            raise BundleError("a served file has changed on disk")
        return data


class BundleStore:
    """The files served, by digest."""

    def __init__(self) -> None:
        self._files: dict[bytes, ServedFile] = {}

    def add_path(self, path: Path) -> ServedFile:
        """Serve a file on disk. Raises BundleError if it cannot be read."""
        try:
            digest, size = file_digest(path)
        except OSError as error:
            raise BundleError(f"cannot read {path}: {error.strerror}") from error
        return self._add(ServedFile(digest, size, path))

    def add_bytes(self, content: bytes) -> ServedFile:
        """Serve bytes held in memory (the tokenizer file)."""
        return self._add(ServedFile(hashlib.sha256(content).digest(), len(content), content=content))

    def _add(self, file: ServedFile) -> ServedFile:
        self._files[file.sha256] = file
        return file

    def find(self, sha256: bytes) -> ServedFile | None:
        """The file with this digest, or None. Raises InvalidField unless it has exactly 32 bytes."""
        if len(sha256) != 32:
            raise InvalidField("sha256", f"{len(sha256)} bytes, expected 32")
        return self._files.get(bytes(sha256))


def chunk_size(wanted: int) -> int:
    """Bytes a chunk. Raises InvalidField above the largest."""
    if wanted > MAX_CHUNK_BYTES:
        raise InvalidField("chunk_bytes", f"{wanted} is more than {MAX_CHUNK_BYTES}")
    return wanted or DEFAULT_CHUNK_BYTES


def file_digest(path: Path) -> tuple[bytes, int]:
    """SHA-256 and size of a file, read in blocks."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK):
            digest.update(block)
            size += len(block)
    return digest.digest(), size
