"""Sessions beside each other: each gets what it would get alone, and packed passes really carry several."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from outrider.cloud.listener import ListenerSettings
from outrider.shared.draft import Draft
from outrider.shared.frames import UNLIMITED, Attach, Opened
from outrider.shared.sampling import Sampling
from tests.harness import running_verifier
from tests.raw_device import connected, streamed
from tests.toy_engine import ToyEngine
from tests.toy_verifier import toy_loaded

PROMPTS = [tuple((7 * i + j * j) % 64 for j in range(3 + 5 * i)) for i in range(6)]
SAMPLINGS = [Sampling(), Sampling(temperature=0.9, seed=3), Sampling(temperature=1.3, top_k=9, seed=3)]
LENGTH = 30


async def drafted(
    address: str, prompt: Sequence[int], sampling: Sampling, next_guess: Callable[[int], int]
) -> list[int]:
    """Edge drafting with guesses, most of them wrong; the new ids."""
    async with connected(address) as device:
        await device.open(prompt, LENGTH, sampling=sampling)
        while len(device.held.ids) < len(prompt) + LENGTH:
            await device.propose([next_guess(len(device.held.ids) + i) for i in range(4)])
        return device.held.ids[len(prompt) :]


def guess(index: int, position: int) -> int:
    """A drafter that is mostly wrong."""
    return (position * 13 + index) % 64


def test_many_devices_at_once_get_what_each_gets_alone() -> None:
    """Twelve sessions, streaming and drafting, greedy and coupled: every text is the target's own for its prompt."""
    with running_verifier(engine=ToyEngine(pause_s=0.003)) as verifier:

        async def run() -> list[list[int]]:
            jobs = []
            for index, prompt in enumerate(PROMPTS):
                sampling = SAMPLINGS[index % 3]
                jobs.append(streamed(verifier.address, prompt, LENGTH, sampling))
                jobs.append(drafted(verifier.address, prompt, sampling, partial(guess, index)))
            return await asyncio.gather(*jobs)

        texts = asyncio.run(run())
        for index, prompt in enumerate(PROMPTS):
            alone = verifier.engine.generate(prompt, LENGTH, SAMPLINGS[index % 3])
            assert texts[2 * index] == alone and texts[2 * index + 1] == alone
        assert verifier.metrics.value("packed_forwards_total") >= 1
        assert verifier.metrics.value("forwards_total") > verifier.metrics.value("packed_forwards_total") > 0


def test_sessions_under_memory_pressure_are_rebuilt_not_mixed_up() -> None:
    """With room for two sessions' KV, six still get their own text: KV is evicted and computed again."""
    loaded = toy_loaded(ToyEngine(pause_s=0.001), kv_budget_bytes=4 * 130)
    with running_verifier(loaded=loaded) as verifier:

        async def run() -> list[list[int]]:
            return await asyncio.gather(*(streamed(verifier.address, prompt, LENGTH) for prompt in PROMPTS))

        for prompt, text in zip(PROMPTS, asyncio.run(run()), strict=True):
            assert text == verifier.engine.generate(prompt, LENGTH)
        assert verifier.metrics.value("evictions_total") >= 1


def test_a_session_belongs_to_its_principal(tmp_path: Path) -> None:
    """With another token, the same session id is another session: nothing of the first one shows."""
    tokens = tmp_path / "tokens"
    tokens.write_text("alice token-a\nmallory token-m\n")
    tokens.chmod(0o600)
    with running_verifier(listener=ListenerSettings(token_file=tokens)) as verifier:
        session = os.urandom(16)

        async def attach(token: str, epoch: int, prompt: Sequence[int]) -> tuple[Opened, list[int]]:
            async with connected(verifier.address, session, token=token) as device:
                opened = await device.open(
                    prompt, 10, epoch=epoch, run_ahead_until=UNLIMITED, draft=Draft.chain(())
                )
                return opened, (await device.stream())[len(prompt) :]

        first, text = asyncio.run(attach("token-a", 5, PROMPTS[1]))
        assert first.attach is Attach.NEW and text == verifier.engine.generate(PROMPTS[1], 10)
        stolen, text = asyncio.run(attach("token-m", 3, PROMPTS[2]))
        assert stolen.attach is Attach.NEW and text == verifier.engine.generate(PROMPTS[2], 10)
        again, _ = asyncio.run(attach("token-a", 6, PROMPTS[1]))
        assert again.attach is Attach.LIVE
