"""How a benchmark ends that was given what cannot work: one line on stderr and exit code 78, as the commands do.

Words that argparse itself does not understand end with its usage and 2. A traceback is a bug.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from outrider.shared.errors import ConfigError, ExitCode, OutriderError


def run(program: Callable[[], object]) -> None:
    """Run a program to its end. What it was asked and cannot do is told without a traceback."""
    try:
        program()
    except OutriderError as error:
        why = str(error)
    except OSError as error:
        if error.filename is None:  # nobody named a file: not something a user can mend by another name
            raise
        why = f"{error.filename}: {error.strerror}"
    else:
        return
    print(f"{Path(sys.argv[0]).stem}: {why}", file=sys.stderr)
    raise SystemExit(int(ExitCode.CONFIG))


def count(option: str) -> Callable[[str], int]:
    """For ``type=``: a whole number of at least 1. Raises ConfigError with the option's name."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(option, f"expected a whole number from 1, got {text!r}")
        return int(text)

    return read


def known(option: str, asked: Iterable[str] | None, there: Iterable[str]) -> None:
    """Refuse names that there are not. Raises ConfigError with those there are."""
    names = list(there)
    for name in asked or ():
        if name not in names:
            raise ConfigError(option, f"there is no {name!r}; choose from {', '.join(names)}")


def writable(path: Path, option: str = "--out") -> Path:
    """``path``, once a file can be put there: better known before the work than after. Raises ConfigError."""
    folder = path.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(option, f"cannot make the folder of {path}: {error.strerror}") from None
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(option, f"cannot write {path}")
    return path


def earlier(path: Path, option: str = "--out") -> dict[str, Any]:
    """What an earlier start wrote into a file of results; {} without one. Raises ConfigError."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(option, f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(option, f"{path} is there, and is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(option, f"{path} is there, and holds no results")
    return found
