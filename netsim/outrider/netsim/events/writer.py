"""Writes files whole or not at all: what fails midway leaves what was there before."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from outrider.netsim.errors import BadConfig
from outrider.netsim.events.order import Order
from outrider.netsim.events.schema import Line, Run, dumps
from outrider.netsim.events.values import Unfit


def write(path: Path, run: Run, lines: Iterable[Line], *, setting: str = "events") -> None:
    """Write a log at once, as virtual runs do. A run that may be killed writes line by line instead: `EventFile`.

    Raises ValueError where the lines cannot follow each other (nobody could read them), `BadConfig` naming ``setting``
    where the file cannot be written.
    """
    order = Order()
    rows = [dumps(run)]
    for line in lines:
        try:
            order.check(line)
        except Unfit as error:
            raise ValueError(f"line {len(rows) + 1}, {error.name}: {error.expected}") from error
        rows.append(dumps(line))
    replace_file(path, ("\n".join(rows) + "\n").encode(), setting=setting)


def replace_file(path: Path, content: bytes, *, setting: str) -> None:
    """Write beside the place, then rename. Raises `BadConfig` naming ``setting``."""
    try:
        partial = path.with_name(f".writing-{os.getpid()}-{path.name}")
        try:
            partial.write_bytes(content)
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise BadConfig(setting, f"cannot write {path}: {error.strerror}") from error
