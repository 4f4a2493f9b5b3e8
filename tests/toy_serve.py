"""A verifier process over a toy target (``python -m tests.toy_serve [port]``): for tests of signals and restarts."""

from __future__ import annotations

import asyncio
import sys

from outrider.cloud import logs
from outrider.cloud.config import ServeConfig
from outrider.cloud.listener import ListenerSettings
from outrider.cloud.serve import serve
from tests.toy_verifier import toy_loaded


def main(port: int = 0) -> int:
    """Serve until a signal; the exit code."""
    logs.set_up("info")
    config = ServeConfig(listener=ListenerSettings(listen=f"127.0.0.1:{port}"), drain_s=20.0, metrics_port=0)
    return asyncio.run(serve(config, toy_loaded(), lambda line: print(line, flush=True)))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
