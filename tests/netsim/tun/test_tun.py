"""A command behind TUN devices: real packets, the kernel's TCP. Needs root and `/dev/net/tun`, so it is `long`.

No upper bound on any time: what is proven is that the link is never faster than it says, and that all bytes come.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

PATIENCE_S = 120
CONTENT = bytes(range(256)) * 800
CLIENT = """
import hashlib, json, socket, sys, time
host, _, port = sys.argv[1].rpartition(":")
start = time.perf_counter()
with socket.create_connection((host, int(port))) as sock:
    connected = time.perf_counter() - start
    content = b""
    while data := sock.recv(65536):
        content += data
took = time.perf_counter() - start
print(json.dumps({"connected": connected, "took": took, "sha256": hashlib.sha256(content).hexdigest()}))
sys.exit(7)
"""


@pytest.fixture
def server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.sendall(CONTENT)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield "{}:{}".format(*listening.getsockname())


def tun(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "NO_COLOR": "1"}
    if path is not None:
        environment["PATH"] = path
    return subprocess.run(
        [sys.executable, "-m", "outrider.netsim.cli", "tun", *arguments],
        capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=False,
    )  # fmt: skip


@pytest.mark.long
def test_a_command_behind_a_lossy_link(server: str) -> None:
    """All bytes come although packets are lost, no faster than delay and rate allow; the exit code is the command's."""
    link = ["--rtt-ms", "300", "--down-mbit", "4", "--loss", "0.05", "--seed", "3"]
    done = tun(*link, "--forward", server, "--", sys.executable, "-c", CLIENT, "{server}")
    assert done.returncode == 7, done.stderr
    found, counts = json.loads(done.stdout), json.loads(done.stderr.splitlines()[-1])
    assert found["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert found["connected"] >= 0.295
    assert found["took"] >= 0.295 + len(CONTENT) * 8 / 4e6
    assert counts["down"]["lost"] > 0 and counts["down"]["passed"] > len(CONTENT) // 1500


@pytest.mark.long
def test_nothing_else_is_reachable(server: str) -> None:
    """Behind the link there is no way to the host's own loopback, and a failing command says so itself."""
    done = tun("--", sys.executable, "-c", CLIENT, server)
    assert done.returncode == 1
    assert "ConnectionRefusedError" in done.stderr
    missing = tun("--", "no-such-command")
    assert missing.returncode == 127
    assert "cannot run no-such-command" in missing.stderr


def test_missing_tools_exit_78(tmp_path: Path) -> None:
    """Without `ip` and `unshare` it says which packages have them, before anything is made."""
    done = tun("--", "true", path=str(tmp_path))
    assert done.returncode == 78
    assert "ip and unshare" in done.stderr and "iproute2" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--forward", "nowhere"], "host:port"),
        (["--outage", "token=3,for=2s"], "by time"),
        (["--profile", "6g"], "4g-medium"),
        (["--trace", "/nonexistent/trace"], "cannot read"),
    ],
)
def test_bad_configuration_exits_78(arguments: list[str], word: str) -> None:
    """Refused before anything is made."""
    done = tun(*arguments, "--", "true")
    assert done.returncode == 78
    assert word in done.stderr and "Traceback" not in done.stderr
