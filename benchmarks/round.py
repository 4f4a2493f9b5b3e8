"""One round on loopback: drafting on the device beside plain streaming from the same verifier.

::

    python benchmarks/round.py                      # 16 prompts x 64 tokens, float32 and bfloat16
    python benchmarks/round.py --json | tail -1     # {"rows": [...], "machine": {...}}

A verifier runs in a process of its own, one thread on each side. For each prompt the modes follow each other, so that a
noisy machine is noisy for all of them; figures are medians over prompts, speedups medians of paired ratios. Rates count
from the first token on display to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import ending
import numpy as np
from machine import machine

from outrider.client.answers import Finished
from outrider.client.bundle import Bundle
from outrider.client.cache import Cache
from outrider.client.channel import ChannelSettings
from outrider.client.fetching import Fetcher
from outrider.client.pacing import make_pacing
from outrider.client.session import Session, SessionConfig
from outrider.netsim.demo import DemoSettings, verifier
from outrider.shared.frames import CostCurve

PROMPTS = Path(__file__).with_name("prompts.jsonl")
MODES = {"streaming": "none", "edge-chain": "chain", "edge-tree": "tree"}
GOALS = {
    "speedup": "≥ 1.8",
    "bytes_up_per_token": "≤ 25 (chain), ≤ 80 (tree)",
    "bytes_down_per_round": "≤ 1250 + 1200 per target layer, at τ = 3",
    "verdict_over_forward_ms": "≤ 2",
    "forward_ms_per_token_ratio": "≤ 0.55",
    "device_step_ms": "≤ 0.5 per chain step",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer."""

    kind: str
    ids: tuple[int, ...]
    tokens_per_s: float
    tau: float
    rounds: int
    bytes_up: int
    bytes_down: int
    compute_s: tuple[float, ...]
    widths: tuple[int, ...]
    step_ms: float
    cost: CostCurve


async def answer(
    bundle: Bundle, address: str, draft: str, prompt: tuple[int, ...], tokens: int, kind: str
) -> Sample:
    """One prompt in one mode, in a session of its own."""
    drafter = None if draft == "none" else bundle.drafter()
    config = SessionConfig(
        tokenizer=bundle.tokenizer,
        pacing=make_pacing(draft, "edge"),
        channel=ChannelSettings(server=address),
        drafter=drafter,
        bundle=bundle.sha256 if drafter else b"",
        num_planes=len(bundle.planes) if drafter else 0,
        seed=1,
    )
    async with Session(config) as session:
        async for event in session.generate(prompt, max_new=tokens):
            if isinstance(event, Finished):
                break
        opened = session.machine.active.opened if session.machine.active else None
        ids = session.transcript.ids if session.transcript else ()
        step = session.machine.draft_step
    stats = event.stats  # type: ignore[union-attr]
    decode_s = (stats.ended_at or 0.0) - (stats.first_at or 0.0)
    return Sample(
        kind=kind,
        ids=ids,
        tokens_per_s=(len(ids) - 1) / decode_s if decode_s > 0 else 0.0,
        tau=stats.tau,
        rounds=stats.rounds,
        bytes_up=stats.bytes_up,
        bytes_down=stats.bytes_down,
        compute_s=tuple(stats.compute_s),
        widths=(1 + round(stats.drafted / stats.rounds),) if stats.rounds else (1,),
        step_ms=1e3 * step.level_s(1) if step else 0.0,
        cost=opened.cost if opened else CostCurve(),
    )


def forward_ms(cost: CostCurve, width: int) -> float:
    """The bare pass of this width, as the verifier measured it at start-up, milliseconds."""
    return float(np.interp(width, cost.widths, cost.costs_us)) / 1e3 if cost.widths else float("nan")


def row(mode: str, dtype: str, own: list[Sample], base: list[Sample]) -> dict[str, Any]:
    """One line of the table."""
    middle: Callable[[list[float]], float] = lambda values: float(median(values))  # noqa: E731
    drafted = mode != "streaming"
    tokens = [len(sample.ids) for sample in own]
    compute = [1e3 * median(s.compute_s) for s in own if s.compute_s]
    bare = [forward_ms(s.cost, s.widths[0]) for s in own]
    passes = [s.rounds / n if drafted else 1.0 for s, n in zip(own, tokens, strict=True)]
    stream_ms = forward_ms(own[0].cost, 1)
    per_token = [
        1e3 * sum(s.compute_s) / n if drafted else stream_ms for s, n in zip(own, tokens, strict=True)
    ]
    return {
        "mode": mode,
        "dtype": dtype,
        "speedup": round(
            middle([a.tokens_per_s / b.tokens_per_s for a, b in zip(own, base, strict=True)]), 3
        ),
        "tokens_per_s": round(middle([s.tokens_per_s for s in own]), 2),
        "speedup_chat": _speedup(own, base, "chat"),
        "speedup_copy": _speedup(own, base, "copy"),
        "tau": round(sum(s.tau * s.rounds for s in own) / max(sum(s.rounds for s in own), 1), 3)
        if drafted
        else None,
        "forwards_per_token": round(middle(passes), 3),
        "forward_ms_per_token": round(middle(per_token), 2),
        "forward_ms_per_token_ratio": round(middle(per_token) / stream_ms, 3),
        "bytes_up_per_token": round(sum(s.bytes_up for s in own) / sum(tokens), 1),
        "bytes_down_per_token": round(sum(s.bytes_down for s in own) / sum(tokens), 1),
        "bytes_down_per_round": round(sum(s.bytes_down for s in own) / max(sum(s.rounds for s in own), 1), 0)
        if drafted
        else None,
        "verdict_ms": round(middle(compute), 2) if drafted and compute else None,
        "verdict_over_forward_ms": round(middle(compute) - middle(bare), 2) if drafted and compute else None,
        "device_step_ms": round(middle([s.step_ms for s in own]), 3) if drafted else None,
        "identical": sum(a.ids == b.ids for a, b in zip(own, base, strict=True)),
        "prompts": len(own),
    }


def _speedup(own: list[Sample], base: list[Sample], kind: str) -> float | None:
    ratios = [a.tokens_per_s / b.tokens_per_s for a, b in zip(own, base, strict=True) if a.kind == kind]
    return round(float(median(ratios)), 3) if ratios else None


async def measure(address: str, prompts: list[dict[str, str]], tokens: int) -> dict[str, list[Sample]]:
    """Every prompt in every mode, the modes of a prompt one after the other, their order turning."""
    bundle = await Fetcher(ChannelSettings(server=address), Cache()).bundle()
    samples: dict[str, list[Sample]] = {mode: [] for mode in MODES}
    await answer(
        bundle, address, "tree", bundle.tokenizer.chat([{"role": "user", "content": "Hi"}]), 16, "warm-up"
    )
    for number, prompt in enumerate(prompts):
        ids = bundle.tokenizer.chat([{"role": "user", "content": prompt["prompt"]}])
        names = list(MODES)
        for mode in names[number % 3 :] + names[: number % 3]:
            samples[mode].append(await answer(bundle, address, MODES[mode], ids, tokens, prompt["kind"]))
        print(".", end="", flush=True)
    print()
    return samples


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16"))
    parser.add_argument("--prompts", type=ending.count("--prompts"), default=16)
    parser.add_argument("--tokens", type=ending.count("--tokens"), default=64)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--out", type=Path, help="write the JSON object to this file")
    options = parser.parse_args()
    if options.out:
        ending.writable(options.out)
    prompts = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    prompts = [p for pair in zip(prompts[:8], prompts[8:], strict=True) for p in pair][: options.prompts]
    rows: list[dict[str, Any]] = []
    for dtype in options.dtype or ("float32", "bfloat16"):
        with (
            tempfile.TemporaryDirectory() as scratch,
            verifier(DemoSettings(dtype=dtype), Path(scratch)) as address,
        ):
            samples = asyncio.run(measure(address, prompts, options.tokens))
        rows += [row(mode, dtype, samples[mode], samples["streaming"]) for mode in MODES]
    for one in rows:
        print(f"\n{one['dtype']}, {one['mode']}")
        for name, value in one.items():
            if name not in ("dtype", "mode") and value is not None:
                print(f"  {name:28} {value!s:>10}   {GOALS.get(name, '')}")
    result = {"rows": rows, "machine": machine(threads=1, tokens=options.tokens, prompts=len(prompts))}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    ending.run(main)
