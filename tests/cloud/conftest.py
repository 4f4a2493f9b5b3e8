"""What several tests of the verifier ask for."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from outrider.cloud import logs


@pytest.fixture
def debug_log() -> Iterator[io.StringIO]:
    """Everything that anybody logs at debug level, as written; the root logger is put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.set_up("debug", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
