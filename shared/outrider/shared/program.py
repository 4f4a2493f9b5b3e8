"""What the three command lines have in common: version, error messages, exit codes.

Text that was asked for goes to stdout; what is written here goes to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import NoReturn

import typer

from outrider.shared.errors import ConfigError, ExitCode, OutriderError, exit_code

_EXTRA_OF_MODULE = {
    "accelerate": "cloud",
    "gguf": "cloud",
    "grpc_health": "cloud",
    "grpc_reflection": "cloud",
    "prometheus_client": "cloud",
    "safetensors": "cloud",
    "torch": "cloud",
    "transformers": "cloud",
    "onnx": "export",
    "onnx_ir": "export",
    "onnxscript": "export",
    "matplotlib": "sim",
    "scipy": "sim",
}


def version() -> str:
    """Version of the installed distribution; "0+source" when run from a checkout that is not installed."""
    try:
        return installed_version("outrider")
    except PackageNotFoundError:
        return "0+source"


def version_option(name: str) -> Callable[[bool], None]:
    """The callback of a program's eager ``--version`` option."""

    def show(wanted: bool) -> None:
        if wanted:
            print(f"{name} {version()}")
            raise typer.Exit

    return show


def run(app: typer.Typer, name: str) -> NoReturn:
    """Run a program to its end: every way out has its exit code, and every known error one line on stderr.

    An error of no known kind keeps its traceback: it is a bug, and its reader will need it.
    """
    try:
        app(prog_name=name)
    except OutriderError as error:
        _say(f"{name}: {error}")
        raise SystemExit(int(exit_code(error))) from None
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF_MODULE.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        missing = ConfigError(
            name, f"{error.name} is not installed", remedy=f"pip install 'outrider[{extra}]'"
        )
        _say(str(missing))
        raise SystemExit(int(ExitCode.CONFIG)) from None
    except KeyboardInterrupt:
        raise SystemExit(int(ExitCode.INTERRUPTED)) from None
    except BrokenPipeError:
        # The reader of a pipe has seen enough. Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(int(ExitCode.ERROR)) from None
    raise SystemExit(int(ExitCode.DONE))


def _say(line: str) -> None:
    print(line, file=sys.stderr)
