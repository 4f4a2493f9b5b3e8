"""An event log on disk, line by line as the run goes: a kill leaves all but the last line whole."""

from __future__ import annotations

import os
from pathlib import Path

from outrider.client.eventlog import Line, dumps
from outrider.shared.errors import ConfigError


class EventFile:
    """Writes one file, readable by its owner alone: it may hold text of an answer. A log that is there is replaced.

    Raises ConfigError (naming ``setting``) when the file cannot be opened. A disk that fails later ends the log,
    never the run: see `failure`.
    """

    def __init__(self, path: Path, setting: str = "--events") -> None:
        self.failure = ""
        """Why the log stops before the run did; empty while it is whole."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
        try:
            self._fd: int | None = os.open(path, flags, 0o600)
        except OSError as error:
            raise ConfigError(setting, f"{path} cannot be written: {error.strerror}") from error

    def put(self, line: Line) -> None:
        """Append a line."""
        if self._fd is None:
            return
        rest = (dumps(line) + "\n").encode()
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            self.failure = f"the event log is incomplete: {error.strerror}"
            self.close()

    def close(self) -> None:
        """Close the file; later lines go nowhere."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
