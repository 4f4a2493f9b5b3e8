"""A recorded session: the log says what happened, never the prompt, and the text only where it was asked for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from outrider.client.answers import Finished
from outrider.client.drafters.noisy import NoisyDrafter
from outrider.client.drafters.oracle import OracleDrafter
from outrider.client.eventlog_file import EventFile
from outrider.client.events import Label, LinkState
from outrider.client.machine_settings import Offline
from outrider.client.plan import Plan
from outrider.client.recorder import Recorder, judged_path
from outrider.client.recording import header, recorded
from outrider.client.session import Session, SessionConfig
from outrider.netsim.events.reader import EventLog, read
from outrider.netsim.events.schema import EndLine, LinkLine, RoundLine, TokensLine, TurnLine
from outrider.netsim.faults import Reset
from outrider.netsim.settings import LinkSettings
from outrider.netsim.threaded import ThreadedProxy
from outrider.shared.draft import Draft
from outrider.shared.textstream import printable
from outrider.shared.tokenizer import Tokenizer
from tests.device import STREAM, Device, chain, tree
from tests.harness import Handle, running_verifier
from tests.tiny import VOCABULARY, write_tokenizer
from tests.toy_engine import ToyEngine
from tests.toy_verifier import toy_loaded

COUNT = 40
PATIENCE_S = 60
PROGRAM = [sys.executable, "-c", "from outrider.client.cli import main; main()"]
CANARY = "the secret of the prompt"


@dataclass(frozen=True, slots=True)
class Stage:
    """A toy verifier, and what it says to the canary."""

    verifier: Handle
    tokenizer: Tokenizer
    prompt: tuple[int, ...]
    alone: tuple[int, ...]

    def config(self, plan: Plan, address: str = "", rate: float = 0.3) -> SessionConfig:
        """A device that drafts right seven times out of ten."""
        ids = (*self.prompt, *self.alone)
        return Device(
            address=address or self.verifier.address,
            tokenizer=self.tokenizer,
            drafter=NoisyDrafter(ids, rate, 8, VOCABULARY),
            plan=plan,
            bundle=self.verifier.loaded.description.fingerprints.bundle,
            num_planes=1,
        ).config()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A toy target under a real tokenizer."""
    folder = tmp_path_factory.mktemp("recorder")
    write_tokenizer(folder)
    (folder / "config.json").write_text("{}")
    tokenizer = Tokenizer.from_folder(folder)
    prompt = tokenizer.encode(CANARY)
    engine = ToyEngine(VOCABULARY)
    loaded = toy_loaded(engine, stop_ids=tokenizer.stop_ids, tokenizer_file=tokenizer.artefact)
    alone = tuple(engine.generate(prompt, COUNT, stop=tokenizer.stop_ids))
    with running_verifier(loaded=loaded) as verifier:
        yield Stage(verifier, tokenizer, prompt, alone)


def run(stage: Stage, config: SessionConfig, path: Path, *, text: bool, turns: int = 1) -> list[Finished]:
    """Ask ``turns`` times in one session, recorded."""

    async def ask() -> list[Finished]:
        ends = []
        head = header(draft="chain", pacing="edge", drafter="noisy", seed=1)
        with recorded(config, path, head, text=text) as (watched, _):
            async with asyncio.timeout(PATIENCE_S), Session(watched) as session:
                for _ in range(turns):
                    async for event in session.generate(stage.prompt, keep=0, max_new=COUNT):
                        if isinstance(event, Finished):
                            ends.append(event)
        return ends

    return asyncio.run(ask())


def judged(log: EventLog) -> list[RoundLine]:
    """The rounds whose tokens count."""
    rounds = [line for line in log.lines if isinstance(line, RoundLine)]
    return [line for line in rounds if line.outcome == "verified" and line.kinds and not line.replayed]


def display(log: EventLog) -> tuple[list[Label], str]:
    """Labels and text of the last turn, as a reader of the log puts them together."""
    start = 0
    labels: list[Label] = []
    texts: list[str] = []
    for line in log.lines:
        if isinstance(line, TurnLine):
            start, labels, texts = line.start, [], []
        if isinstance(line, TokensLine):
            at = line.start - start
            if line.taken_back:
                del labels[at:], texts[at:]
            labels[at : at + len(line.labels)] = line.labels
            if line.pieces is not None:
                texts[at : at + len(line.pieces)] = line.pieces
    return labels, "".join(texts)


@pytest.mark.parametrize("plan", [chain(4), tree(10, 4)], ids=["chain", "tree"])
def test_the_log_agrees_with_the_figures(stage: Stage, plan: Plan, tmp_path: Path) -> None:
    """Rounds, tokens, accepted drafts, bytes and times of the log are those that the session counted itself."""
    (end,) = run(stage, stage.config(plan), tmp_path / "log", text=False)
    log = read(tmp_path / "log")
    stats, rounds = end.stats, judged(log)
    assert log.complete and end.verified and len(rounds) > 5
    assert len(rounds) == stats.rounds
    assert sum(len(line.kinds) for line in rounds) == stats.round_tokens > 0
    assert sum(line.nodes for line in rounds) >= stats.drafted
    assert sum(len(line.path) for line in rounds) == stats.accepted > 0
    assert 0 < sum(line.bytes_up for line in rounds) <= stats.bytes_up
    assert 0 < sum(line.bytes_down for line in rounds) <= stats.bytes_down
    assert all(line.got_s - line.sent_s >= line.server_queue_s + line.server_compute_s for line in rounds)
    last = log.lines[-1]
    assert isinstance(last, EndLine) and last.stats["tokens"] == COUNT == len(display(log)[0])


def test_commits_of_rounds_fit_together(stage: Stage, tmp_path: Path) -> None:
    """Without run-ahead every token after the first comes by a round, at the position where the one before ended."""
    run(stage, stage.config(tree(8, 3)), tmp_path / "log", text=False)
    log = read(tmp_path / "log")
    rounds = judged(log)
    for before, after in zip(rounds, rounds[1:], strict=False):
        assert before.start is not None and after.start == before.start + len(before.kinds)
    for line in rounds:
        assert line.kinds[: len(line.path)] == (Label.ACCEPTED,) * len(line.path)
        assert line.run_ahead == 0 and line.link in LinkState


def test_text_is_there_only_where_it_was_asked_for(stage: Stage, tmp_path: Path) -> None:
    """Without --events-text no line has text; with it the pieces make the answer; the prompt is in neither."""
    config = stage.config(chain(4))
    for text in (False, True):
        run(stage, replace(config, drafter=config.drafter), tmp_path / "log", text=text)
        log = read(tmp_path / "log")
        pieces = [line.pieces for line in log.lines if isinstance(line, TokensLine) and line.labels]
        shown = stage.tokenizer.decode(stage.alone)
        assert display(log)[1] == (shown if text else "")
        assert text or all(each is None for each in pieces)
        assert CANARY not in (tmp_path / "log").read_text()
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


def test_turns_are_numbered_and_streams_have_no_rounds(stage: Stage, tmp_path: Path) -> None:
    """Two questions in a session are two turns of one log; plain streaming is seen in its tokens alone."""
    ends = run(stage, stage.config(STREAM), tmp_path / "log", text=False, turns=2)
    log = read(tmp_path / "log")
    turns = [line for line in log.lines if isinstance(line, TurnLine)]
    assert [line.turn for line in turns] == [1, 2] and len(ends) == 2 and log.complete
    assert all(
        line.nodes == 0 and line.run_ahead is None for line in log.lines if isinstance(line, RoundLine)
    )
    assert display(log)[0].count(Label.RUN_AHEAD) >= COUNT - 2


def test_an_outage_is_in_the_log(stage: Stage, tmp_path: Path) -> None:
    """The link's states, the provisional tokens and what became of them are told in order."""
    with ThreadedProxy(("127.0.0.1", stage.verifier.port), link=LinkSettings.of(rtt_ms=40)) as proxy:
        config = stage.config(chain(3), proxy.address, rate=0.4)
        log_file = EventFile(tmp_path / "log")
        log_file.put(header(draft="chain", pacing="edge", drafter="noisy"))
        recorder = Recorder(log_file.put, time.monotonic())
        recorder.describe("code", "code-1")

        async def ask() -> None:
            async with asyncio.timeout(PATIENCE_S), Session(replace(config, listener=recorder)) as session:
                cut = False
                async for _ in session.generate(stage.prompt, max_new=COUNT):
                    if not cut and session.length > len(stage.prompt) + 8:
                        cut = True
                        proxy.trigger(Reset())

        asyncio.run(ask())
        log_file.close()
    log = read(tmp_path / "log")
    states = [line.state for line in log.lines if isinstance(line, LinkLine)]
    labels = [label for line in log.lines if isinstance(line, TokensLine) for label in line.labels]
    turn = next(line for line in log.lines if isinstance(line, TurnLine))
    assert (turn.category, turn.prompt) == ("code", "code-1")
    assert LinkState.ONLINE in states and states[-1] is LinkState.ONLINE
    assert {LinkState.OFFLINE, LinkState.LATE, LinkState.CONNECTING} & set(states[1:])
    assert Label.PROVISIONAL in labels and Label.PROVISIONAL not in display(log)[0]
    assert len(display(log)[0]) == COUNT


def test_a_device_alone_is_recorded(stage: Stage, tmp_path: Path) -> None:
    """No verifier, no rounds: provisional tokens and an unverified end."""
    ids = (*stage.prompt, *stage.alone)
    device = Device(
        address="127.0.0.1:1", tokenizer=stage.tokenizer, drafter=OracleDrafter(ids), plan=chain(4),
        offline=Offline.ALWAYS,
    )  # fmt: skip
    (end,) = run(stage, device.config(), tmp_path / "log", text=False)
    log = read(tmp_path / "log")
    assert not end.verified and not [line for line in log.lines if isinstance(line, RoundLine)]
    assert display(log)[0] == [Label.PROVISIONAL] * COUNT


def test_the_path_is_the_one_whose_tokens_were_said() -> None:
    """In a tree, behind what was trimmed, and none where the tokens are on no path."""
    draft = Draft((5, 6, 7, 6, 8), (0, 0, 1, 2, 4))
    assert judged_path(draft, 0, (6, 6, 8)) == (1, 3, 4)
    assert judged_path(draft, 1, (6, 8)) == (3, 4)
    assert judged_path(draft, 0, (5, 7)) == (0, 2)
    assert judged_path(draft, 0, (5, 9)) == judged_path(draft, 0, ()) == ()


@pytest.mark.parametrize(
    ("draft", "pacing", "mode", "drafter"),
    [("none", "auto", "stream", "none"), ("tree", "edge", "tree", "moa"), ("tree", "auto", "auto", "moa")],
)
def test_the_head_says_what_was_asked_for(draft: str, pacing: str, mode: str, drafter: str) -> None:
    """Mode and drafter as reports group by them; versions and wall clock are there."""
    head = header(draft=draft, pacing=pacing, drafter="moa", seed=3)
    assert (head.mode, head.drafter, head.seed, head.virtual) == (mode, drafter, 3, False)
    assert "outrider" in head.versions and head.started is not None


def outrider(stage: Stage, cache: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """The program, streaming from the stage's verifier."""
    return subprocess.run(
        [*PROGRAM, *arguments, "--server", stage.verifier.address, "--draft", "none"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "OUTRIDER_CACHE": str(cache),
        },
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_program_records_answers_and_conversations(stage: Stage, tmp_path: Path) -> None:
    """generate writes one turn and the text that it printed, chat a turn a question; the question is in neither."""
    path = tmp_path / "log"
    done = outrider(stage, tmp_path, "generate", CANARY, "-n", "12", "--events", str(path), "--events-text")
    assert done.returncode == 0, done.stderr
    log = read(path)
    assert (log.run.mode, log.run.drafter, log.complete) == ("stream", "none", True)
    assert printable(display(log)[1]) == done.stdout.removesuffix("\n")
    assert CANARY not in path.read_text()
    done = outrider(stage, tmp_path, "chat", "-n", "5", "--events", str(path), text=f"{CANARY}\nand more\n")
    assert done.returncode == 0, done.stderr
    log = read(path)
    assert [line.turn for line in log.lines if isinstance(line, EndLine)] == [1, 2]
    assert not any(line.pieces for line in log.lines if isinstance(line, TokensLine))
    assert CANARY not in path.read_text()


def test_a_log_that_cannot_be_is_refused(stage: Stage, tmp_path: Path) -> None:
    """A folder that is missing, or text without a log: 78 and one line, before anything is asked."""
    for arguments, word in (
        (("--events", str(tmp_path / "nowhere" / "log")), "--events"),
        (("--events-text",), "--events FILE"),
    ):
        done = outrider(stage, tmp_path, "generate", CANARY, *arguments)
        assert done.returncode == 78 and word in done.stderr and not done.stdout
