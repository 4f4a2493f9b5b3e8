"""`outrider` as scripts and people run it: a process, its stdin, stdout, stderr, signals and exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outrider.cloud.export.bundle import export_bundle
from outrider.netsim.faults import Blackhole
from outrider.netsim.settings import LinkSettings
from outrider.netsim.threaded import ThreadedProxy
from outrider.shared.textstream import printable
from tests.harness import Handle, running_verifier
from tests.server_process import environment
from tests.tiny import make_target
from tests.tiny_weights import make_weights

COMMAND = [sys.executable, "-c", "from outrider.client.cli import main; main()"]
NOBODY = "127.0.0.1:1"
PROMPT = "hello there, draft me a line"
PATIENCE_S = 90


@dataclass(frozen=True)
class World:
    """A verifier of a tiny target, the bundle of its drafter, and a cache that knows both."""

    verifier: Handle
    bundle: Path
    cache: Path

    def environ(self, **more: str) -> Mapping[str, str]:
        """A child's environment with this cache."""
        plain = {k: v for k, v in environment().items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
        return {
            **plain,
            "OUTRIDER_CACHE": str(self.cache),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            **more,
        }

    def run(self, *arguments: str, text: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """Run to the end with ``text`` as stdin."""
        return subprocess.run(
            [*COMMAND, *arguments],
            env=self.environ(**more),
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start with nothing on stdin."""
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self, *arguments: str, text: str = "") -> dict[str, Any]:
        """The JSON object of `generate --json`, which is all there is on stdout."""
        done = self.run("generate", *arguments, "--server", self.verifier.address, "--json", text=text)
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One for all tests: starting a verifier is the slow part."""
    folder = tmp_path_factory.mktemp("cli")
    target = make_target(folder / "target", seed=3)
    weights = make_weights(folder / "weights", target)
    export_bundle(weights, target, folder / "tiny.onnx")
    with running_verifier(target, folder / "tiny.onnx", drafter=weights) as verifier:
        yield World(verifier, folder / "tiny.onnx", folder / "cache")


def test_the_same_answer_in_every_form(world: World) -> None:
    """Argument, pipe and `-`, chain, tree and no drafts, JSON and plain text: one text."""
    options = ("--max-tokens", "24")
    base = world.answer(PROMPT, "--draft", "none", *options)
    assert len(base["ids"]) == 24 or base["finish"] == "stop"
    for arguments, text in (
        ((PROMPT, "--draft", "chain", "--pacing", "edge"), ""),
        ((PROMPT, "--draft", "tree", "--pacing", "edge"), ""),
        (("-",), PROMPT),
        ((), PROMPT),
    ):
        found = world.answer(*arguments, *options, text=text)
        assert found["ids"] == base["ids"] and found["verified"] is True
    plain = world.run("generate", PROMPT, "--server", world.verifier.address, *options)
    assert (plain.returncode, plain.stdout) == (0, printable(base["text"]) + "\n")
    joined = world.answer(PROMPT, *options, text="and more\n")
    assert joined["ids"] == world.answer(f"{PROMPT}\nand more", *options)["ids"]


def test_seeds_fix_sampled_text(world: World) -> None:
    """The same seed gives the same text; the seed that was drawn is told, and gives it again."""
    sampled = ("--max-tokens", "16", "--temperature", "0.9", "--top-k", "40", "--top-p", "0.95")
    first = world.answer(PROMPT, *sampled)
    again = world.answer(PROMPT, *sampled, "--seed", str(first["seed"]))
    assert again["ids"] == first["ids"]
    assert world.answer(PROMPT, *sampled, "--seed", str(first["seed"] + 1))["ids"] != first["ids"]


def test_warps_and_log_probs_are_options(world: World) -> None:
    """With every warp on, drafting changes neither ids nor log-probabilities; in a pipe these go to stderr."""
    options = [
        "--max-tokens",
        "16",
        "--temperature",
        "0.8",
        "--seed",
        "3",
        "--min-p",
        "0.02",
        "--min-tokens",
        "8",
    ]
    options += ["--repetition-penalty", "1.2", "--presence-penalty", "0.4", "--frequency-penalty", "0.2"]
    options += ["--logit-bias", "9=2.5", "--logit-bias", "30=-4"]
    base = world.answer(PROMPT, "--draft", "none", "--logprobs", *options)
    told = base["log_probs"]
    assert len(told["raw"]) == len(told["warped"]) == len(base["ids"]) and max(told["warped"]) <= 0
    found = world.answer(PROMPT, "--draft", "tree", "--pacing", "edge", "--logprobs", *options)
    assert (found["ids"], found["log_probs"]) == (base["ids"], told)
    plain = world.run("generate", PROMPT, "--server", world.verifier.address, "--logprobs", *options)
    assert plain.stdout == printable(base["text"]) + "\n" and f"{told['raw'][0]:8.3f}" in plain.stderr
    assert "log_probs" not in world.answer(PROMPT, *options)


def test_a_stop_string_is_not_printed(world: World) -> None:
    """The text ends right before it, in a pipe as in JSON."""
    whole = world.answer(PROMPT, "--max-tokens", "24")["text"]
    stop = next(whole[n : n + 2] for n in range(3, len(whole) - 2) if whole[n : n + 2].isprintable())
    found = world.answer(PROMPT, "--max-tokens", "24", "--stop", stop)
    assert found["text"] == whole[: whole.index(stop)] and found["finish"] == "stop"
    plain = world.run(
        "generate", PROMPT, "--server", world.verifier.address, "--max-tokens", "24", "--stop", stop
    )
    assert plain.stdout == printable(found["text"]) + "\n"


def test_text_and_words_about_it_are_apart(world: World) -> None:
    """Figures and notes go to stderr; stdout of a pipe has no escape sequence, also with colours forced off."""
    arguments = ("generate", PROMPT, "--server", world.verifier.address, "--max-tokens", "8")
    done = world.run(*arguments, "--stats", NO_COLOR="1")
    assert "tokens/s" in done.stderr and "tokens/s" not in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    coloured = world.run(*arguments, "--color", "always")
    assert "\x1b[" in coloured.stdout


@pytest.mark.parametrize(
    ("term", "no_color", "colours"), [("xterm", "", True), ("xterm", "1", False), ("dumb", "", False)]
)
def test_a_terminal_gets_labels_in_colour(world: World, term: str, no_color: str, colours: bool) -> None:
    """On a terminal labels have colours, unless NO_COLOR or a dumb terminal says otherwise."""
    ours, theirs = pty.openpty()
    arguments = (
        "generate",
        PROMPT,
        "--server",
        world.verifier.address,
        "--max-tokens",
        "8",
        "--pacing",
        "edge",
    )
    more = {"NO_COLOR": no_color} if no_color else {}
    process = subprocess.Popen(
        [*COMMAND, *arguments], env=world.environ(TERM=term, **more), stdin=subprocess.DEVNULL, stdout=theirs
    )
    os.close(theirs)
    written = read_all(ours)
    assert process.wait(PATIENCE_S) == 0
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]m", written)) == colours
    if term == "dumb":
        assert "\x1b" not in written


def read_all(terminal: int) -> str:
    """Everything written to the other end of a pseudo-terminal."""
    written = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            piece = b""
        if not piece:
            os.close(terminal)
            return written.decode()
        written += piece


def test_standalone_needs_a_bundle_and_nothing_else(world: World, tmp_path: Path) -> None:
    """With one, the answer is all provisional; with none anywhere, code 78 and what to do; a cached one is found."""
    alone = ("generate", PROMPT, "--offline", "always", "--max-tokens", "8")
    done = world.run(*alone, "--bundle", str(world.bundle), "--json")
    found = json.loads(done.stdout)
    assert set(found["labels"]) == {"provisional"} and found["verified"] is False
    empty = world.run(*alone, OUTRIDER_CACHE=str(tmp_path))
    assert empty.returncode == 78 and "--bundle" in empty.stderr and empty.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("generate", PROMPT, "--offline", "never", "--server", NOBODY), 69, NOBODY),
        (("generate", PROMPT), 78, "--server"),
        (("generate", PROMPT, "--server", "no port"), 78, "no port"),
        (("generate", PROMPT, "--draft", "bush"), 2, "--draft"),
        (("generate", "", "--server", NOBODY), 2, "PROMPT"),
        (("generate", PROMPT, "--server", NOBODY, "--temperature", "-1"), 2, "temperature"),
        (("generate", PROMPT, "--server", NOBODY, "--logit-bias", "x=1"), 2, "sampling.logit_bias"),
        (("generate", PROMPT, "--server", NOBODY, "--repetition-penalty", "0"), 2, "repetition_penalty"),
        (("generate", PROMPT, "--server", NOBODY, "--bundle", "/nowhere.onnx"), 78, "/nowhere.onnx"),
        (("generate", "--resume", "/nowhere.journal", "--server", NOBODY), 78, "/nowhere.journal"),
    ],
)
def test_exit_codes(world: World, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    """Every way to fail has its code, one line on stderr that names what was wrong, and nothing on stdout."""
    done = world.run(*arguments, OUTRIDER_CACHE=str(tmp_path))
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("rule", "code", "said"),
    [
        ("overaccept", 78, "use one of greedy, coupled, residual"),
        ("wishful", 78, "use one of greedy, coupled, residual"),
        ("greedy", 78, "use coupled"),
        ("coupled:epsilon=0.5", 2, "coupled takes no parameters"),
        ("=", 78, "'='"),
    ],
)
def test_a_rule_that_cannot_be_had(world: World, rule: str, code: int, said: str) -> None:
    """One that is forbidden, unknown or not for this temperature is a setting that cannot work; a parameter that the
    rule does not take is wrong usage. Either way one line says what can be had."""
    command = ("generate", PROMPT, "--server", world.verifier.address, "--temperature", "0.7")
    done = world.run(*command, "--rule", rule)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr and rule.partition(":")[0] in done.stderr and "Traceback" not in done.stderr


def test_the_drafter_can_be_named(world: World, tmp_path: Path) -> None:
    """A kind on offer and copying give the same text; any other kind ends with 78 and the list of those on offer."""
    base = world.answer(PROMPT, "--max-tokens", "12")
    for name in ("auto", "moa", "ngram", "hybrid"):
        assert world.answer(PROMPT, "--max-tokens", "12", "--drafter", name)["ids"] == base["ids"]
    command = ("generate", PROMPT, "--server", world.verifier.address, "--drafter", "hydra")
    done = world.run(*command, OUTRIDER_CACHE=str(tmp_path))
    assert (done.returncode, done.stdout) == (78, "")
    assert "'hydra'" in done.stderr and "it offers moa" in done.stderr
    alone = world.run("generate", PROMPT, "--offline", "always", "--drafter", "eagle2")
    assert alone.returncode == 78 and "no 'eagle2' bundle" in alone.stderr


def test_a_reader_that_has_seen_enough(world: World) -> None:
    """A closed pipe ends the program without a traceback."""
    process = world.start(
        "generate", PROMPT, "--offline", "always", "--bundle", str(world.bundle), "--max-tokens", "400"
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.wait(PATIENCE_S)
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


def through(world: World) -> ThreadedProxy:
    """A slow way to the verifier, so that an answer can be interrupted."""
    return ThreadedProxy(("127.0.0.1", world.verifier.port), link=LinkSettings.of(rtt_ms=100))


def when_shown(process: subprocess.Popen[str]) -> str:
    """The first character of the answer, as soon as it is there."""
    assert process.stdout is not None
    return process.stdout.read(1)


def end(process: subprocess.Popen[str]) -> tuple[str, str, int]:
    """The rest of stdout, stderr and the exit code."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return out, err, process.returncode


def test_interrupted_and_resumed(world: World, tmp_path: Path) -> None:
    """Ctrl-C keeps the text so far and ends with 130; killed at any time, the journal finishes the same answer."""
    journal = str(tmp_path / "journal")
    options = ("--draft", "chain", "--pacing", "edge")
    whole = world.answer(PROMPT, "--max-tokens", "60")["ids"]
    with through(world) as proxy:
        arguments = ("generate", PROMPT, "--server", proxy.address, "--max-tokens", "60", *options)
        process = world.start(*arguments, "--color", "never")
        begun = when_shown(process)
        process.send_signal(signal.SIGINT)
        rest, said, code = end(process)
        assert code == 130 and "Traceback" not in said
        assert begun + rest
        process = world.start(*arguments, "--journal", journal)
        when_shown(process)
        process.kill()
        end(process)
    resumed = world.answer("--resume", journal)
    assert resumed["ids"] == whole and resumed["verified"] is True


def test_a_second_interrupt_leaves_at_once(world: World) -> None:
    """On a dead link the first Ctrl-C still stops cleanly, and nobody has to wait for the second."""
    with through(world) as proxy:
        process = world.start(
            "generate",
            PROMPT,
            "--server",
            proxy.address,
            "--max-tokens",
            "400",
            "--draft",
            "none",
            "--offline",
            "never",
        )
        when_shown(process)
        proxy.trigger(Blackhole(), 60.0)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, said, code = end(process)
        assert code == 130 and time.monotonic() - began < 30 and "Traceback" not in said


def test_a_conversation(world: World) -> None:
    """Questions from stdin, commands between them; the second answer continues the first, /clear forgets it."""
    arguments = ("chat", "--server", world.verifier.address, "--max-tokens", "6", "--stats")
    lines = [
        PROMPT,
        "/help",
        "/set temperature 0",
        "/set colour red",
        "/what",
        "and then?",
        "/clear",
        PROMPT,
        "/bye",
    ]
    done = world.run(*arguments, text="\n".join(lines) + "\nnever read\n")
    assert done.returncode == 0, done.stderr
    assert (
        "/set NAME VALUE" in done.stderr and "no command /what" in done.stderr and "forgotten" in done.stderr
    )
    assert done.stderr.count(" tokens in ") == 3
    first = printable(world.answer(PROMPT, "--max-tokens", "6")["text"]) + "\n"
    assert done.stdout.startswith(first) and done.stdout.endswith(first)


def test_help_is_not_kept_waiting() -> None:
    """The command line itself loads none of the heavy modules."""
    heavy = ("grpc", "numpy", "onnxruntime", "tokenizers", "torch", "transformers", "jinja2", "tenacity")
    code = f"import sys, outrider.client.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
