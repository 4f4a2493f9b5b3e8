"""What every test may rely on: one thread per engine, the same examples each time, and where the shared data lies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

# Before numpy, torch or gRPC are first imported: they read these when they load.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import settings

# A shell that starts this in the background makes it ignore Ctrl-C, and programs under test would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with ``prompts/`` and ``traces/`` (OUTRIDER_SHARED, default ../shared). Its absence is a failure."""
    folder = Path(os.environ.get("OUTRIDER_SHARED") or ROOT.parent / "shared")
    if not folder.is_absolute():
        folder = ROOT / folder
    if not (folder / "prompts").is_dir():
        pytest.fail(f"{folder} holds no prompts; set OUTRIDER_SHARED to the folder with prompts/ and traces/")
    return folder
