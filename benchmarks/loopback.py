"""Tokens per second of one drafter through the real verifier on loopback, beside plain streaming from the same one."""

from __future__ import annotations

import asyncio
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from round import PROMPTS, Sample, answer

from outrider.client.drafter import Drafter
from outrider.cloud.evaluate.contenders import Contender
from outrider.netsim.demo import DemoSettings, verifier
from outrider.shared.frames import RowPlane
from outrider.shared.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Device:
    """What `round.answer` asks of a bundle, for drafters without one too."""

    contender: Contender
    tokenizer: Tokenizer

    @property
    def sha256(self) -> bytes:
        """The bundle's name towards the verifier; empty without one."""
        return bytes.fromhex(self.contender.digest)

    @property
    def planes(self) -> tuple[RowPlane, ...]:
        """State rows."""
        return self.contender.planes

    def drafter(self) -> Drafter:
        """A fresh drafter."""
        return self.contender.make()


def loopback(
    contender: Contender, tokenizer: Tokenizer, dtype: str, prompts: int, tokens: int
) -> dict[str, Any]:
    """Medians over prompts, greedy, trees, edge pacing; the speedup is the median of paired ratios.

    The verifier serves this drafter alone, in a process of its own, one thread on each side.
    """
    served = ["--drafter", str(contender.weights or "none")]
    served += ["--bundle", str(contender.bundle)] if contender.bundle else []
    device = Device(contender, tokenizer)
    with (
        tempfile.TemporaryDirectory() as scratch,
        verifier(DemoSettings(dtype=dtype), Path(scratch), served) as address,
    ):
        own, base = asyncio.run(_measure(device, address, prompts, tokens))
    ratios = [a.tokens_per_s / b.tokens_per_s for a, b in zip(own, base, strict=True) if b.tokens_per_s]
    return {
        "loopback_tokens_s": round(median(sample.tokens_per_s for sample in own), 2),
        "loopback_streaming_tokens_s": round(median(sample.tokens_per_s for sample in base), 2),
        "loopback_speedup": round(median(ratios), 3) if ratios else None,
        "loopback_identical": sum(a.ids == b.ids for a, b in zip(own, base, strict=True)),
        "loopback_prompts": len(own),
    }


async def _measure(device: Any, address: str, count: int, tokens: int) -> tuple[list[Sample], list[Sample]]:
    """Every prompt with drafts and by streaming, one right after the other, in turning order."""
    lines = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    chosen = lines[:: max(1, len(lines) // count)][:count]
    found: dict[str, list[Sample]] = {"tree": [], "none": []}
    warm = device.tokenizer.chat([{"role": "user", "content": "Hi"}])
    await answer(device, address, "tree", warm, 16, "warm-up")
    for number, line in enumerate(chosen):
        ids = device.tokenizer.chat([{"role": "user", "content": line["prompt"]}])
        for mode in ("tree", "none") if number % 2 else ("none", "tree"):
            found[mode].append(await answer(device, address, mode, ids, tokens, line["kind"]))
    return found["tree"], found["none"]
