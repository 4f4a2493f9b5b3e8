"""`outrider-sim`: what it prints, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.netsim.profiles import PROFILES

PATIENCE_S = 60


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "outrider.netsim.cli", *arguments]


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(),
        check=False,
    )


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str], word: str) -> tuple[str, int]:
    """The address on the next line, which must begin with `word`."""
    line = (process.stdout.readline() if process.stdout else "").split()
    assert line[:1] == [word]
    host, _, port = line[1].rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def upstream() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        yield server


def name(server: socket.socket) -> str:
    return "{}:{}".format(*server.getsockname())


def test_profiles_lists_every_preset() -> None:
    """The table names all of them; `--json` gives one object a line with the numbers."""
    table, lines = run("profiles"), run("profiles", "--json")
    assert table.returncode == lines.returncode == 0
    assert all(preset in table.stdout for preset in PROFILES)
    objects = [json.loads(line) for line in lines.stdout.splitlines()]
    assert [o["name"] for o in objects] == list(PROFILES)
    assert objects[0]["link"]["down"]["rate_mbit"] == 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--profile", "6g"], ["profile", "4g-medium", "6g"]),
        (["--outage", "at=2,for=3s"], ["at", "'2'", "unit"]),
        (["--outage", "token=20,for=3s"], ["sees no tokens", "--control"]),
        (["--profile", "flight", "--outages"], ["sees no tokens", "--control"]),
        (["--profile", "wifi", "--outages"], ["no outages of its own"]),
        (["--reset", "at=1s,for=2s"], ["for", "no duration"]),
        (["--listen", "nowhere"], ["listen", "host:port", "nowhere"]),
        (["--up-mbit", "0"], ["rate_mbit", "above 0"]),
        (["--from", "noon"], ["from", "noon"]),
        (["--control", "0.0.0.0:0"], ["control", "loopback"]),
        (["--log", "/nonexistent/folder/log"], ["log", "/nonexistent/folder/log"]),
        (["--trace", "/nonexistent/trace"], ["trace", "cannot read /nonexistent/trace"]),
        (["--trace", "a.csv", "--down-mbit", "3"], ["down_mbit", "--trace"]),
        (["--trace-up", "a.csv", "--up-mbit", "3"], ["up_mbit", "--trace-up"]),
    ],
)
def test_bad_configuration_exits_78_with_its_reason(arguments: list[str], words: list[str]) -> None:
    """Each refusal is one line that names the field and says what to do, and no traceback."""
    done = run("proxy", "--upstream", "127.0.0.1:1", *arguments)
    assert done.returncode == 78
    assert all(word in done.stderr for word in words)
    assert "Traceback" not in done.stderr


def test_a_bad_trace_exits_78_by_line_and_column(tmp_path: Path) -> None:
    """File, line, column and what was expected; nothing listens, and no log is begun."""
    ride, log = tmp_path / "ride.tsv", tmp_path / "log"
    ride.write_text("0\t5\n1\tfast\n")
    done = run("proxy", "--upstream", "127.0.0.1:1", "--trace", str(ride), "--log", str(log))
    assert done.returncode == 78
    assert f"{ride}, line 2, column 2: expected Mbit/s" in done.stderr
    assert "Traceback" not in done.stderr and "listening" not in done.stdout
    assert not log.exists()


def test_the_proxy_follows_a_trace(tmp_path: Path) -> None:
    """Traces of both directions by path; what it follows is told, and bytes pass."""
    down, up = tmp_path / "down", tmp_path / "up.csv"
    down.write_text("1\n2\n4\n")
    up.write_text("time,mbit\n0,8\n3,2\n")
    options = ["--rtt-ms", "2", "--trace", f"mahimahi:{down}", "--trace-up", f"{up}?from=1s"]
    with upstream() as server, running("proxy", "--upstream", name(server), *options) as process:
        with socket.create_connection(told(process, "listening"), timeout=PATIENCE_S) as client:
            client.sendall(b"hello")
            accepted, _ = server.accept()
            with accepted:
                assert accepted.recv(5, socket.MSG_WAITALL) == b"hello"
                accepted.sendall(bytes(6000))
                assert client.recv(6000, socket.MSG_WAITALL) == bytes(6000)
        words = process.stderr.readline() if process.stderr else ""
    assert "trace of 0.004 s, mean 9/trace of 6 s, mean 5 Mbit/s" in words


def test_a_taken_port_exits_78() -> None:
    """Listening where somebody listens names the address."""
    with upstream() as server:
        taken = name(server)
        done = run("proxy", "--upstream", taken, "--listen", taken)
    assert done.returncode == 78
    assert f"cannot listen on {taken}" in done.stderr


def test_wrong_usage_exits_2() -> None:
    """A missing or unknown option is a usage error."""
    assert run("proxy").returncode == 2
    assert run("proxy", "--upstream", "127.0.0.1:1", "--nonsense").returncode == 2


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_the_proxy_forwards_until_it_is_told_to_stop(sent: signal.Signals, code: int, tmp_path: Path) -> None:
    """It says where it listens, forwards, logs its command first, and stops cleanly on a signal."""
    log = tmp_path / "log.jsonl"
    options = ["--profile", "wifi", "--rtt-ms", "2", "--seed", "7", "--log", str(log)]
    with upstream() as server, running("proxy", "--upstream", name(server), *options) as process:
        with socket.create_connection(told(process, "listening"), timeout=PATIENCE_S) as client:
            client.sendall(b"hello")
            accepted, _ = server.accept()
            with accepted:
                assert accepted.recv(5, socket.MSG_WAITALL) == b"hello"
            process.send_signal(sent)
            assert process.wait(PATIENCE_S) == code
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert "--seed 7" in records[0]["command"]
    assert [r["event"] for r in records[1:3]] == ["listening", "connected"]
    assert records[-1]["event"] == "stopped"


def test_a_controller_reports_tokens_and_triggers_faults() -> None:
    """With `--control` a fault may wait for a token; commands are answered in JSON, bad ones with a reason."""
    options = ["--control", "127.0.0.1:0", "--outage", "token=20,for=100s"]
    with upstream() as server, running("proxy", "--upstream", name(server), *options) as process:
        told(process, "listening")
        with socket.create_connection(told(process, "control"), timeout=PATIENCE_S) as control:
            lines = control.makefile("rw", encoding="utf-8")

            def ask(line: str) -> dict[str, object]:
                lines.write(line + "\n")
                lines.flush()
                answer: dict[str, object] = json.loads(lines.readline())
                return answer

            assert ask("token 19") == {"ok": True}
            assert ask("stats")["faults"] == []
            assert ask("token 20") == {"ok": True}
            assert ask("trigger blackhole dir=up for=100s") == {"ok": True, "id": 2}
            faults = ask("stats")["faults"]
            assert isinstance(faults, list) and [f["fault"] for f in faults] == ["outage", "blackhole"]
            assert ask("end 2") == {"ok": True}
            assert ask("trigger outage for=3")["ok"] is False
            assert ask("dance")["ok"] is False
            lines.close()
