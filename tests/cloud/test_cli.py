"""`outrider-cloud` as a user runs it: a process, its exit code, stdout and stderr."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.cloud.config import ServeConfig
from outrider.shared.errors import ConfigError
from tests.raw_device import streamed
from tests.server_process import PATIENCE_S, ServerProcess, environment, server_process
from tests.tiny import END_ID, make_target

MODULE = "outrider.cloud.cli"
PROMPT = tuple(range(10, 40))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny real target on disk."""
    return make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def server(target: Path) -> Iterator[ServerProcess]:
    """`outrider-cloud serve` on the tiny target, on a port of our choice as an operator would start it."""
    with server_process(
        "serve", "--target", str(target), "--port", str(free_port()), "--threads", "1", "--drafter", "none",
        "--kv-budget-mib", "64", "--metrics-port", "0", module=MODULE,
    ) as process:  # fmt: skip
        yield process


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A command to its end."""
    return subprocess.run(
        [sys.executable, "-m", MODULE, *arguments],
        env=environment(), input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("command", [[], ["serve"], ["generate"], ["train"], ["export"], ["fetch-target"]])
def test_help_is_there_and_loads_nothing_heavy(command: list[str]) -> None:
    """Every command explains itself without importing torch, transformers or onnx."""
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from outrider.cloud.cli import app\n"
        "result = CliRunner().invoke(app, sys.argv[1:])\n"
        "print(result.exit_code, [m for m in ('torch', 'transformers', 'onnx', 'grpc') if m in sys.modules])\n"
        "print(result.output)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command, "--help"],
        env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    first, _, text = done.stdout.partition("\n")
    assert first == "0 []", first
    assert "Usage" in text


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["serve", "--dtype", "float8"], 78, "--dtype"),
        (["serve", "--padding", "lots"], 78, "--padding"),
        (["serve", "--kv-budget-mib", "1"], 78, "--kv-budget-mib"),
        (["serve", "--metrics-port", "99999"], 78, "--metrics-port"),
        (["serve", "--drafter", "/nowhere"], 78, "--drafter"),
        (["serve", "--drafter", "none", "--drafter", "/nowhere"], 78, "none alone"),
        (["serve", "--host", "0.0.0.0", "--drafter", "none"], 78, "--insecure"),
        (["serve", "--tls-cert", "/nowhere", "--drafter", "none"], 78, "--tls-key"),
        (["serve", "--token-file", "/nowhere", "--drafter", "none"], 78, "--token-file"),
        (["serve", "--coin-secret-file", "/nowhere", "--drafter", "none"], 78, "--coin-secret-file"),
        (["serve", "--port", "0", "--target", "/nowhere", "--drafter", "none"], 78, "--target"),
        (["serve", "--no-such-option"], 2, "--no-such-option"),
        (["fetch-target", "--target", "/nowhere"], 78, "--target"),
    ],
)
def test_settings_that_cannot_work_are_told_by_name(arguments: list[str], code: int, named: str) -> None:
    """One line, the option's name, no traceback, the right exit code, and nothing on stdout."""
    done = run(*arguments)
    assert done.returncode == code, done.stderr
    assert named in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


def test_a_port_in_use_is_told_before_the_target_is_loaded(target: Path) -> None:
    """An operator does not wait for a model to learn that the address is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run("serve", "--target", str(target), "--port", port, "--drafter", "none")
    assert done.returncode == 78 and "in use" in done.stderr and "phase" not in done.stderr


def test_serve_equals_generate(server: ServerProcess, target: Path) -> None:
    """What a device streams from the served target is what `outrider-cloud generate` prints for the same ids."""
    ids = ",".join(map(str, PROMPT))
    alone = run(
        "generate", "--target", str(target), "--threads", "1", "--prompt-ids", ids, "-n", "24", "--json"
    )
    assert alone.returncode == 0, alone.stderr
    answer = json.loads(alone.stdout)
    assert answer["prompt_ids"] == list(PROMPT)
    assert asyncio.run(streamed(server.address, PROMPT, 24)) == answer["ids"]
    assert answer["finish"] == ("stop_id" if answer["ids"][-1] == END_ID else "length")


def test_the_log_is_json_lines_without_ids(server: ServerProcess) -> None:
    """Start-up told its phases; every line is an object; a prompt leaves no trace."""
    asyncio.run(streamed(server.address, (101, 202, 211), 5))
    lines = [json.loads(line) for line in server.errors().splitlines()]
    assert {line.get("phase") for line in lines} >= {"target", "selfcheck", "cost"}
    serving = next(line for line in lines if line["event"] == "serving")
    assert serving["max_context"] > 0 and serving["widths"]
    assert "101, 202" not in server.errors()


def test_metrics_show_what_was_served(server: ServerProcess) -> None:
    """The port is in the log; counters move."""
    asyncio.run(streamed(server.address, PROMPT, 8))
    lines = [json.loads(line) for line in server.errors().splitlines()]
    address = next(line["address"] for line in lines if line["event"] == "metrics")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert "outrider_forwards_total" in text and 'outrider_committed_tokens_total{kind="run_ahead"}' in text


def test_serve_leaves_on_sigterm(target: Path) -> None:
    """The real thing exits 0 when asked to leave."""
    with server_process(
        "serve", "--target", str(target), "--port", "0", "--threads", "1", "--drafter", "none", "--no-selfcheck",
        "--kv-budget-mib", "64", module=MODULE,
    ) as process:  # fmt: skip
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


def test_generate_reads_prompts_from_arguments_and_pipes(target: Path) -> None:
    """The same text by argument and by stdin; sampling is reproducible by seed."""
    common = [
        "generate",
        "--target",
        str(target),
        "--threads",
        "1",
        "-n",
        "6",
        "--json",
        "--temperature",
        "0.8",
    ]
    by_argument = json.loads(run(*common, "--seed", "5", "hello there").stdout)
    by_pipe = json.loads(run(*common, "--seed", "5", stdin="hello there").stdout)
    assert by_argument == by_pipe and len(by_argument["ids"]) <= 6


def test_generate_takes_every_warp_and_tells_log_probs(target: Path) -> None:
    """The options reach the law, a stop string ends text and ids, and each id comes with both log-probabilities."""
    common = ["generate", "--target", str(target), "--threads", "1", "-n", "24", "--json", "hello there"]
    usual = json.loads(run(*common).stdout)
    warps = ["--repetition-penalty", "1.3", "--presence-penalty", "0.5", "--frequency-penalty", "0.5"]
    warps += ["--min-p", "0.05", "--min-tokens", "9", "--logit-bias", "9=4", "--logit-bias", "12=3.5"]
    done = run(*common, *warps, "--temperature", "0.7", "--seed", "4", "--logprobs")
    assert done.returncode == 0, done.stderr
    warped = json.loads(done.stdout)
    told = warped["log_probs"]
    assert warped["ids"] != usual["ids"] and "log_probs" not in usual
    assert len(told["raw"]) == len(told["warped"]) == len(warped["ids"])
    assert max(told["raw"] + told["warped"]) <= 0
    stop = re.findall("[!-~]{2}", usual["text"])[0]
    ended = json.loads(run(*common, "--stop", stop).stdout)
    assert ended["text"] == usual["text"][: usual["text"].index(stop)] and ended["finish"] == "stop"
    assert usual["ids"][: len(ended["ids"])] == ended["ids"] != usual["ids"]
    held = json.loads(run(*common, "--stop", stop, "--min-tokens", "24").stdout)
    assert len(held["ids"]) == 24 and held["finish"] == "length" and stop in held["text"]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--logit-bias", "5", "sampling.logit_bias"),
        ("--logit-bias", "999999=1", "vocabulary"),
        ("--min-p", "2", "sampling.min_p"),
        ("--presence-penalty", "3", "sampling.presence_penalty"),
    ],
)
def test_a_warp_out_of_range_is_a_usage_error(target: Path, option: str, value: str, said: str) -> None:
    """It is refused by name, in one line."""
    done = run("generate", "--target", str(target), "-n", "1", option, value, "hello")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("ids", ["", "1,x", "-1"])
def test_what_is_no_list_of_ids_is_a_usage_error(ids: str) -> None:
    """It is refused before a target is loaded."""
    done = run("generate", "--target", "/nowhere", "--prompt-ids", ids, "-n", "1")
    assert done.returncode == 2 and "--prompt-ids" in done.stderr and "Traceback" not in done.stderr


def test_an_id_of_another_vocabulary_is_a_usage_error(target: Path) -> None:
    """The target knows which ids there are."""
    done = run("generate", "--target", str(target), "--prompt-ids", "999999", "-n", "1")
    assert done.returncode == 2 and "vocabulary" in done.stderr and "Traceback" not in done.stderr


def test_config_is_checked_in_one_place(tmp_path: Path) -> None:
    """A bundle without weights, or a file that is none, cannot be served."""
    bundle = tmp_path / "x.onnx"
    bundle.write_bytes(b"x")
    for settings, named in (
        ({"bundle": bundle}, "--bundle"),
        ({"bundle": tmp_path / "absent", "drafters": (tmp_path,)}, "--bundle"),
        ({"drafters": (bundle,)}, "--drafter"),
        ({"drafters": (tmp_path, tmp_path / ".")}, "twice"),
        ({"max_sessions": 0}, "--max-sessions"),
        ({"threads": -1}, "--threads"),
        ({"max_context": 5}, "--max-context"),
    ):
        with pytest.raises(ConfigError, match=named):
            ServeConfig(**settings).check()
    ServeConfig(drafters=(tmp_path,), bundle=bundle).check()
