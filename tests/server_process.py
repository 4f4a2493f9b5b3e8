"""A verifier in a process of its own, started by a command that prints where it listens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 120
_LINE = "outrider-cloud listening on "


class ServerProcess:
    """A running command. ``errors`` is what it has written to stderr so far."""

    def __init__(self, command: Sequence[str], errors: Path) -> None:
        self._errors = errors
        with errors.open("wb") as sink:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=sink, text=True
            )
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line.startswith(_LINE):
            self.kill()
            raise AssertionError(f"no line about listening but {line!r}; stderr: {self.errors()}")
        self.address = line.removeprefix(_LINE).strip()

    def errors(self) -> str:
        """Everything on stderr."""
        return self._errors.read_text()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit code."""
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        """End it whatever it does, and free what it holds here."""
        self._process.kill()
        self._process.wait(PATIENCE_S)
        if self._process.stdout:
            self._process.stdout.close()


def environment() -> dict[str, str]:
    """The environment of a child that imports the source tree, installed or not."""
    paths = [str(ROOT / part) for part in ("", "client", "cloud", "shared", "netsim", "proto")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


@contextmanager
def server_process(*arguments: str, module: str = "tests.toy_serve") -> Iterator[ServerProcess]:
    """``python -m module arguments`` until the block ends."""
    with tempfile.TemporaryDirectory() as scratch:
        process = ServerProcess([sys.executable, "-m", module, *arguments], Path(scratch) / "stderr")
        try:
            yield process
        finally:
            process.kill()
