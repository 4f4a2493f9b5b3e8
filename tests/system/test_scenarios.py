"""Scenarios with the real device and a real verifier of a tiny target, through the proxy."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from outrider.client.eventlog import Line
from outrider.netsim.events.schema import CapacityLine, EndLine, RoundLine, Run, TurnLine
from outrider.netsim.profiles import profile
from outrider.netsim.scenario import DeviceSpec, Question, parse
from outrider.netsim.scenario.cell import cell_of, run_cell
from outrider.netsim.scenario.device import Server
from outrider.netsim.scenario.drive import Watching, drive
from outrider.netsim.scenario.summary import figures
from tests.harness import Handle
from tests.server_process import environment

RIDE = """
name = "short ride"
seed = 5
after = "stay"
[device]
mode = "tree"
drafter = "ngram"
max_tokens = 40
patience = "2m"
[prompts]
inline = ["hello there, draft me a line", "again: hello there, draft me a line"]
[[phases]]
name = "bay"
for = "60ms"
link = { rtt_ms = 10, down_mbit = 50, up_mbit = 20 }
[[phases]]
name = "gap"
for = "200ms"
link = { rtt_ms = 40, down_mbit = 5, up_mbit = 2 }
faults = [{ kind = "reset", at = "20ms" }]
"""


def test_a_ride_ends_with_the_targets_own_text_and_a_log_of_what_happened(verifier: Handle) -> None:
    """Phases change and connections die while two prompts are answered; every token is the target's own."""
    lines: list[Line] = []
    notes: list[str] = []
    scenario = parse(RIDE)
    watching = Watching(put=lines.append, say=notes.append)
    told = figures(drive(scenario, Server(address=verifier.address), watching, check=True))
    assert told["identical"] is True
    assert (told["answers"], told["complete"], told["interrupted"]) == (2, 2, False)
    assert 0 < told["tokens"] <= 80
    assert told["kept"] + told["revised"] <= told["provisional"]
    assert told["bytes_up"] > 0 and told["wire_down"] > told["bytes_down"] > 0
    assert told["ttft_s"] > 0.01  # a handshake and a round trip at least
    head = lines[0]
    assert isinstance(head, Run)
    assert (head.mode, head.link, head.drafter, head.seed) == ("tree", "short ride", "ngram", 5)
    assert sum(isinstance(line, TurnLine) for line in lines) == 2
    assert sum(isinstance(line, EndLine) for line in lines) == 2
    rounds = [line for line in lines if isinstance(line, RoundLine) and line.start is not None]
    judged = [line for line in rounds if line.outcome == "verified" and not line.replayed]
    assert len(judged) == told["rounds"] > 0
    rates = {line.down_mbit for line in lines if isinstance(line, CapacityLine)}
    assert 50 in rates and 5 in rates


def test_one_call_a_token_is_what_unary_means_and_streaming_is_one_call(verifier: Handle) -> None:
    """The two ends of the range: a round a token with tau 1, and a stream of tokens for one request."""
    server = Server(address=verifier.address)
    asked = (Question("q", "hello there, draft me a line"),)
    unary, stream = (
        run_cell(
            cell_of(profile("loopback"), DeviceSpec(mode=mode, max_tokens=24), asked), server, check=True
        )
        for mode in ("unary", "stream")
    )
    assert unary["identical"] is stream["identical"] is True
    assert unary["tokens"] == stream["tokens"] > 2
    assert unary["tau"] == 1.0
    assert unary["calls_per_token"] >= 1.0 > stream["calls_per_token"]
    assert (unary["mode"], unary["link"]) == ("unary", "loopback")


def test_a_cut_for_good_ends_with_what_is_there(verifier: Handle) -> None:
    """After the device's patience the answer ends; what the target had decided is its own text."""
    spec = DeviceSpec(mode="chain", drafter="ngram", max_tokens=60, patience_s=0.5)
    ride = cell_of(profile("wifi"), spec, (Question("q", "hello there"),), cut_at_token=8)
    told = run_cell(ride, Server(address=verifier.address), check=True)
    assert (told["complete"], told["identical"]) == (0, True)
    assert 8 <= told["tokens"] <= 60


def sim(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "outrider.netsim.cli", *arguments]


def test_the_command_prints_text_table_and_json_and_leaves_a_log(verifier: Handle, tmp_path: Path) -> None:
    """What a user gets: exit code 0, the answer, the figures, the log."""
    ride, log = tmp_path / "ride.toml", tmp_path / "events.jsonl"
    ride.write_text(RIDE)
    done = subprocess.run(
        sim("run", str(ride), "--server", verifier.address, "--log", str(log), "--check", "--mode", "auto"),
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out = done.stdout.splitlines()
    told = json.loads(out[-1])
    assert (told["scenario"], told["mode"], told["identical"]) == ("short ride", "auto", True)
    assert any("> hello there" in line for line in out)
    assert any("tokens/s" in line for line in out)
    kinds = [json.loads(line)["kind"] for line in log.read_text().splitlines()]
    assert kinds[0] == "run" and kinds[-1] in ("end", "capacity", "link") and kinds.count("end") == 2


def test_ctrl_c_ends_with_what_was_measured(verifier: Handle, tmp_path: Path) -> None:
    """The first interrupt ends the ride in good order: figures on stdout, exit code 130."""
    ride = tmp_path / "ride.toml"
    ride.write_text('[device]\nmode = "unary"\nmax_tokens = 4000\n[[phases]]\nlink = { rtt_ms = 300 }\n')
    process = subprocess.Popen(
        sim("run", str(ride), "--server", verifier.address),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        stdout = process.stdout
        assert stdout is not None
        for line in stdout:  # the first words of the link: the answer is under way
            if "link:" in line:
                break
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    told = json.loads(out.splitlines()[-1])
    assert (told["interrupted"], told["complete"]) == (True, 0)
