"""A server that lies never crashes the device, never hangs it, and never gets a token labelled verified.

The device is a real session over gRPC; the liar changes the frames of an honest verifier. What a device cannot find out
is a server that lies consistently about the target itself; everything else is in `tests/hostile_lies.py`.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import pytest

from outrider.client.drafters.noisy import NoisyDrafter
from outrider.client.transcript import UNVERIFIED
from outrider.shared.frames import Limits
from outrider.shared.tokenizer import Tokenizer
from tests.device import STREAM, Answer, Device, chain, tree
from tests.harness import Handle, running_verifier
from tests.hostile_lies import LIES
from tests.hostile_server import Ending, Lie, hostile_server
from tests.tiny import VOCABULARY, write_tokenizer
from tests.toy_engine import ToyEngine
from tests.toy_verifier import toy_loaded

PROMPT = (7, 8, 9, 10, 11)
COUNT = 20
AT_ONCE = 8
PATIENCE_S = 40.0
ENOUGH_S = 1.5
"""When the caller of a waiting device has enough."""
HASTY = {"first_soft_s": 0.3, "connect_s": 2.0, "stall_s": 1.5}


@dataclass(frozen=True, slots=True)
class Stage:
    """An honest verifier, and what it says."""

    verifier: Handle
    tokenizer: Tokenizer
    alone: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """One lie told."""

    lie: Lie
    answer: Answer | BaseException
    fired: int
    streams: int


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A toy target under a real tokenizer: honest, fast, with rows."""
    folder = tmp_path_factory.mktemp("hostile")
    write_tokenizer(folder)
    (Path(folder) / "config.json").write_text("{}")
    tokenizer = Tokenizer.from_folder(folder)
    engine = ToyEngine(VOCABULARY)
    loaded = toy_loaded(engine, stop_ids=tokenizer.stop_ids, tokenizer_file=tokenizer.artefact)
    alone = tuple(engine.generate(PROMPT, COUNT, stop=tokenizer.stop_ids))
    assert len(alone) == COUNT
    with running_verifier(loaded=loaded) as verifier:
        yield Stage(verifier, tokenizer, alone)


async def face(stage: Stage, lie: Lie, seed: int, streams: int) -> Result:
    """One question to a server that lies to the first ``streams`` streams."""
    rng = random.Random(seed)
    upstream, stop_id = stage.verifier.address, stage.tokenizer.stop_ids[0]
    async with hostile_server(upstream, lie, streams, seed, stop_id) as liar:
        device = Device(
            address=liar.address,
            tokenizer=stage.tokenizer,
            drafter=NoisyDrafter((*PROMPT, *stage.alone), 0.3, rng.randrange(99), VOCABULARY),
            plan=STREAM if lie.streaming else rng.choice([chain(3), tree(8, 3)]),
            bundle=stage.verifier.loaded.description.fingerprints.bundle,
            num_planes=1,
            settings=HASTY,
        )
        try:
            answer: Answer | BaseException = await _ask(device, lie)
        except Exception as error:
            answer = error
        return Result(lie, answer, liar.fired, liar.streams)


async def _ask(device: Device, lie: Lie) -> Answer:
    """The answer; a device that was told to wait is stopped after a while."""
    async with asyncio.timeout(PATIENCE_S), device.session() as session:
        if lie.ending is Ending.WAITS:
            asyncio.get_running_loop().call_later(ENOUGH_S, session.stop)
        return await device.turn(session, PROMPT, COUNT)


def check(stage: Stage, result: Result, ending: Ending) -> None:
    """Whatever was verified is the target's; the turn ended, and as it must."""
    answer = result.answer
    if isinstance(answer, BaseException):
        raise AssertionError(f"the device fell over: {answer!r}") from answer
    assert answer.finished is not None
    verified = [i for i, label in enumerate(answer.labels) if label not in UNVERIFIED]
    assert verified == list(range(len(verified)))
    assert answer.ids[: len(verified)] == stage.alone[: len(verified)]
    start = len(PROMPT)
    for position, token in answer.verified_once.items():
        assert token == stage.alone[position - start]
    if answer.finished.verified and answer.reason in ("length", "stop"):
        assert answer.ids == stage.alone
    match ending:
        case Ending.SAME:
            assert answer.ids == stage.alone and answer.finished.verified
        case Ending.ERROR:
            assert answer.reason == "error" and answer.finished.error is not None
        case Ending.WAITS:
            assert answer.reason == "cancelled"
        case Ending.EITHER:
            pass


async def face_all(stage: Stage, cases: list[tuple[Lie, int, int]]) -> list[Result]:
    """Several at a time: most of them wait for something."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(lie: Lie, seed: int, streams: int) -> Result:
        async with room:
            return await face(stage, lie, seed, streams)

    return await asyncio.gather(*(one(*case) for case in cases))


@pytest.fixture(scope="module")
def results(stage: Stage) -> dict[str, Result]:
    """Every lie told once, to one stream."""
    cases = [(lie, crc32(name.encode()), 1) for name, lie in LIES.items()]
    return {result.lie.name: result for result in asyncio.run(face_all(stage, cases))}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_changes_nothing(stage: Stage, results: dict[str, Result], name: str) -> None:
    """After one lying stream the session goes on with an honest one to the target's own text, or says why it cannot."""
    assert results[name].fired, "the lie was never told"
    check(stage, results[name], LIES[name].ending)


def test_a_server_that_goes_on_lying_is_given_up(stage: Stage) -> None:
    """After three violations the device stops asking, writes on alone, and labels none of that verified."""
    lie = LIES["no commit with VERIFIED"]
    result = asyncio.run(face(stage, lie, 1, 99))
    check(stage, result, Ending.EITHER)
    answer = result.answer
    assert isinstance(answer, Answer) and answer.finished is not None
    assert result.streams == 3
    assert answer.reason == "offline" and not answer.finished.verified
    assert len(answer.ids) == COUNT


@pytest.mark.long
@pytest.mark.timeout(14_400)
def test_ten_thousand_lies(stage: Stage) -> None:
    """Seeded runs with one to four lying streams: no crash, no hang, nothing false verified, memory within twice."""
    names = sorted(name for name, lie in LIES.items() if lie.ending is not Ending.WAITS)
    before = 0
    for batch in range(100):
        rng = random.Random(batch)
        cases = [
            (LIES[rng.choice(names)], batch * 100 + i, rng.choice([1, 1, 1, 2, 3, 4])) for i in range(100)
        ]
        for result in asyncio.run(face_all(stage, cases)):
            check(stage, result, Ending.EITHER)
        before = before or resident_bytes()
    assert resident_bytes() < 2 * before


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_verifier_that_never_runs_ahead_is_asked_for_steps(stage: Stage) -> None:
    """Where run-ahead is granted but limited to nothing, a streaming device takes single steps instead of waiting."""
    engine = ToyEngine(VOCABULARY)
    limits = Limits(max_context_tokens=2048, max_run_ahead_tokens=0)
    stop_ids, artefact = stage.tokenizer.stop_ids, stage.tokenizer.artefact
    loaded = toy_loaded(engine, limits=limits, stop_ids=stop_ids, tokenizer_file=artefact)
    with running_verifier(loaded=loaded) as verifier:
        device = Device(address=verifier.address, tokenizer=stage.tokenizer, plan=STREAM)
        answer = device.ask(PROMPT, COUNT)
    assert answer.ids == stage.alone
    assert answer.finished is not None and answer.finished.stats.rounds >= COUNT
