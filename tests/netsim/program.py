"""`outrider-sim` as a user starts it: in a process of its own, or, where that is too slow, in this one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from outrider.netsim.cli import main


def simulator(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end, without colours, with this interpreter's path."""
    return subprocess.run(
        [sys.executable, "-m", "outrider.netsim.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "NO_COLOR": "1"},
        check=False,
    )


def exit_code(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["outrider-sim", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)
