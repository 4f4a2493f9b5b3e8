"""The journal on disk: one record a line, ``crc32 json``, mode 0600. What was verified survives a kill.

A torn last line is what a kill leaves behind: it is dropped, and what it said comes back from the verifier by
position. A broken line with whole ones after it is damage, and is refused.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

from outrider.client.journal import Record
from outrider.shared.errors import ConfigError


class JournalFile:
    """Appends records to one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        try:
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise ConfigError("--journal", f"{path} cannot be written: {error.strerror}") from error

    def append(self, record: Record) -> None:
        """Hand a record to the system. Raises OSError when the disk is full or gone."""
        text = json.dumps(record, separators=(",", ":"))
        line = f"{zlib.crc32(text.encode()):08x} {text}\n".encode()
        while line:
            line = line[os.write(self._fd, line) :]

    def flush(self) -> None:
        """Return once everything appended is durable. Raises OSError."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_journal(path: Path) -> list[Record]:
    """The records of a journal; a torn end is cut off the file so that appending can go on.

    Raises ConfigError when the file cannot be read or is damaged before its end.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError("--resume", f"{path} cannot be read: {error.strerror}") from error
    records: list[Record] = []
    good = 0
    lines = data.split(b"\n")
    for number, line in enumerate(lines):
        record = _parse(line)
        if record is None:
            if any(_parse(later) is not None for later in lines[number + 1 :]):
                raise ConfigError(
                    "--resume", f"{path}, line {number + 1}: damaged", remedy="use a copy of the journal"
                )
            break
        records.append(record)
        good += len(line) + 1
    if good < len(data):
        os.truncate(path, good)
    return records


def _parse(line: bytes) -> Record | None:
    """The record of a whole line, None for anything else."""
    crc, _, text = line.partition(b" ")
    if not text or crc != f"{zlib.crc32(text):08x}".encode():
        return None
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
