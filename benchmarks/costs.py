"""What a target pass costs by its width, for simulations: measured on this machine and kept as data.

::

    python benchmarks/costs.py            # benchmarks/costs/<dtype>.json, both dtypes, some 20 s

The verifier measures the same when it starts (`outrider.cloud.describe.measure_cost`), by the wall clock. This counts
the engine thread's own CPU time instead, one thread, so that a busy machine can be measured as well: what others
compute beside it shows only through the caches they share.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import ending
from machine import machine

from outrider.cloud.describe import COST_CONTEXT, COST_WIDTHS
from outrider.cloud.engine import Engine
from outrider.cloud.events import Prefill, Verify
from outrider.cloud.target import load_target
from outrider.cloud.worker import Worker
from outrider.shared.draft import Draft
from outrider.shared.frames import CostCurve, Rule
from outrider.shared.sampling import Sampling

HERE = Path(__file__).with_name("costs")
CHUNK = 64
KEY = 1


def timed_s(engine: Worker, work: Prefill | Verify) -> float:
    """CPU seconds of one pass on this thread."""
    begun = time.thread_time()
    engine.run((work,))
    return time.thread_time() - begun


def verify(width: int) -> Verify:
    """A pass of ``width`` rows behind the context."""
    ids = tuple(13 + n for n in range(width))
    draft = Draft.chain(ids[1:])
    return Verify(KEY, COST_CONTEXT, ids[:1], draft, Sampling(), Rule())


def measure(dtype: str, repeats: int) -> CostCurve:
    """The least of ``repeats`` passes of each width; never above that of a wider pass."""
    target = load_target(dtype=dtype, threads=1)
    engine = Worker(Engine(target, 2**30))
    starts = range(0, COST_CONTEXT, CHUNK)
    prefill = sum(
        timed_s(engine, Prefill(KEY, start, tuple(range(start, start + CHUNK)))) for start in starts
    )
    best: list[float] = []
    for width in COST_WIDTHS:
        times = []
        for _ in range(repeats):
            times.append(timed_s(engine, verify(width)))
            engine.truncate(KEY, COST_CONTEXT)
        best.append(min(times))
    engine.evict(KEY)
    again = [timed_s(engine, Prefill(KEY, start, tuple(range(start, start + CHUNK)))) for start in starts]
    costs = [int(1e6 * min(best[place:])) for place in range(len(best))]
    per_token = int(1e6 * min(prefill, sum(again)) / COST_CONTEXT)
    return CostCurve(tuple(COST_WIDTHS), tuple(costs), COST_CONTEXT, per_token)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16"))
    parser.add_argument("--repeats", type=ending.count("--repeats"), default=7)
    options = parser.parse_args()
    HERE.mkdir(exist_ok=True)
    for dtype in options.dtype or ("bfloat16", "float32"):
        curve = measure(dtype, options.repeats)
        facts = machine(
            dtype=dtype, threads=1, clock="CPU time of the engine's thread", repeats=options.repeats
        )
        text = json.dumps({"target": "SmolLM2-135M-Instruct", **asdict(curve), "machine": facts}, indent=1)
        (HERE / f"{dtype}.json").write_text(text + "\n", encoding="utf-8")
        print(dtype, dict(zip(curve.widths, curve.costs_us, strict=True)), curve.prefill_us_per_token)


if __name__ == "__main__":
    ending.run(main)
