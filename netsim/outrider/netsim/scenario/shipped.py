"""The scenarios that come with the program: files to ride as they are, and to copy."""

from __future__ import annotations

import tomllib
from pathlib import Path

from outrider.netsim.errors import BadConfig
from outrider.netsim.scenario.model import Scenario
from outrider.netsim.scenario.parse import read

FOLDER = Path(__file__).with_name("rides")


def names() -> tuple[str, ...]:
    """Their names, in order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def shipped(name: str) -> Path:
    """The file of one. Raises `BadConfig` listing the names if there is none."""
    if name not in names():
        raise BadConfig("scenario", f"expected a file or one of {', '.join(names())}, got {name!r}")
    return FOLDER / f"{name}.toml"


def find(text: str) -> Scenario:
    """The scenario of a file, or a shipped one. Raises `BadScenario`, `BadConfig` if it is neither."""
    path = Path(text)
    return read(path if path.exists() or path.suffix else shipped(text))


def summary_of(name: str) -> str:
    """What one is about."""
    told = tomllib.loads(shipped(name).read_text(encoding="utf-8"))
    return str(told.get("summary", ""))
