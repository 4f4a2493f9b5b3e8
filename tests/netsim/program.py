"""`outrider-sim` as a user starts it: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


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
