"""`--events FILE`: a session's configuration that is recorded while it lasts."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

from outrider.client.eventlog import Run
from outrider.client.eventlog_file import EventFile
from outrider.client.recorder import Recorder
from outrider.client.session import SessionConfig
from outrider.shared.program import version


def header(*, draft: str, pacing: str, drafter: str, seed: int | None = None, link: str = "") -> Run:
    """The first line of a real run: what was asked for, by which versions, and the wall clock."""
    versions = {"outrider": version(), "python": platform.python_version()}
    for name in ("onnxruntime", "grpcio"):
        try:
            versions[name] = installed(name)
        except PackageNotFoundError:
            continue
    return Run(
        mode="stream" if draft == "none" else "auto" if pacing == "auto" else draft,
        link=link,
        drafter="none" if draft == "none" else drafter,
        seed=seed,
        started=datetime.now(UTC).isoformat(timespec="milliseconds"),
        versions=versions,
    )


@contextmanager
def recorded(
    config: SessionConfig, path: Path | None, run: Run, *, text: bool = False
) -> Iterator[tuple[SessionConfig, EventFile | None]]:
    """``config`` with a recorder as its listener, and the log; the same ``config`` where there is no ``path``.

    Raises ConfigError when the file cannot be opened.
    """
    if path is None:
        yield config, None
        return
    log = EventFile(path)
    try:
        log.put(run)
        yield replace(config, listener=Recorder(log.put, time.monotonic(), text=text)), log
    finally:
        log.close()
