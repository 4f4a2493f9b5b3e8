"""What a disconnection does to answers: HumanEval and GSM8K, cut at a share of the answer, for a while or for good.

::

    python benchmarks/disconnection.py --prompts PROMPTS/humaneval --prompts PROMPTS/gsm8k --minutes 90

The target answers every task once (greedy); at each cut each drafter writes the rest alone, once, and the target reads
it. Then tasks of HumanEval are sampled for pass@k. Records go to a file in the cache as they are made, so the command
can be stopped and started again; what the budget leaves undone is left out and counted. Results: ``disconnection.json``
and ``.md`` and two figures in ``results/`` (figures need the ``sim`` extra). Generated programs run in a sandbox; what
it is made of here is printed and recorded, and a weak one is refused without ``--weak-sandbox``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import disconnection_page
import ending
from machine import machine

from outrider.cloud.config import shipped_drafter
from outrider.cloud.evaluate.contenders import open_contender
from outrider.cloud.evaluate.cuts import OUTAGES_S
from outrider.cloud.evaluate.disconnection import Disconnection, Plan, settings
from outrider.cloud.evaluate.scoring.sandbox import Sandbox
from outrider.cloud.evaluate.scoring.tasks import HUMANEVAL, Scorer, Task, TaskSet, read_tasks
from outrider.cloud.fetch import cache_dir
from outrider.cloud.target import load_target
from outrider.shared.errors import ConfigError
from outrider.shared.frames import CostCurve

RESULTS = Path(__file__).with_name("results") / "disconnection.json"
GREEDY_SHARE = 0.7
"""Of the budget, after which no greedy task is begun, so that samples get their turn."""
CHUNK = 8
"""Tasks between two looks at the clock: what the target answers together."""

Record = dict[str, Any]


class Records:
    """Finished work, a JSON line each. A line that was torn by a kill is dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: list[Record] = []
        lines = path.read_bytes().split(b"\n") if path.is_file() else []
        for line in lines[:-1]:
            self.all.append(json.loads(line))
        if lines and lines[-1]:
            path.write_bytes(b"\n".join(lines[:-1]) + (b"\n" if lines[:-1] else b""))

    def add(self, record: Record) -> None:
        """Keep one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as stream:
            stream.write(json.dumps(record).encode() + b"\n")
        self.all.append(record)

    def of(self, part: str, kind: str = "") -> list[Record]:
        """Those of a part of the experiment and a set of tasks."""
        return [one for one in self.all if one["part"] == part and one["set"] == kind]


def digest(parts: Any) -> str:
    """Changes with whatever a record depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class Run:
    """One start of the benchmark."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.begun = time.monotonic()
        self.sets = [read_tasks(path) for path in options.prompts]
        ending.writable(options.out)
        sandbox = Sandbox()
        say(f"sandbox: {sandbox.describe()}")
        if not sandbox.strong and not options.weak_sandbox:
            raise ConfigError(
                "sandbox",
                "generated programs would only be kept from the network by name",
                remedy="--weak-sandbox accepts that",
            )
        target = load_target(options.target, options.dtype, 1)
        contenders = [open_contender(spec, target) for spec in options.drafter or default_drafters()]
        self.names = [one.name for one in contenders]
        plan = Plan(
            tokens=options.tokens,
            temperature=options.temperature,
            samples=options.samples,
            seed=options.seed,
            contenders=tuple(f"{one.name} {one.kind} {one.digest[:16]}" for one in contenders),
        )
        self.settings = settings(plan, target, sandbox.describe())
        self.plan = plan
        work = options.work or cache_dir() / "evaluate" / "disconnection"
        self.records = Records(work / f"{digest(self.settings)}.jsonl")
        self.experiment = Disconnection(target, contenders, plan, Scorer(sandbox), work / "texts")

    def order(self, one: TaskSet, count: int) -> list[Task]:
        """So many tasks of a set in an order drawn by the seed: stopped anywhere, it is a random sample."""
        tasks = list(one.tasks)
        random.Random(self.options.seed).shuffle(tasks)
        return tasks[:count]

    def run(self) -> None:
        """Whatever is missing and fits into the budget, then the results."""
        cost = self._cost()
        budget = 60 * self.options.minutes
        greedy = [self._missing("greedy", one, self.options.per_set) for one in self.sets]
        self._work("greedy", greedy, self.experiment.greedy, GREEDY_SHARE * budget)
        sampled = [
            self._missing("sampled", one, self.options.sampled if one.kind == HUMANEVAL else 0)
            for one in self.sets
        ]
        self._work("sampled", sampled, self.experiment.sampled, budget)
        self.write(cost)

    def _cost(self) -> CostCurve:
        if not self.records.of("cost"):
            found = self.experiment.cost()
            self.records.add({"part": "cost", "set": "", **asdict(found)})
        kept = self.records.of("cost")[0]
        return CostCurve(
            tuple(kept["widths"]),
            tuple(kept["costs_us"]),
            kept["context_tokens"],
            kept["prefill_us_per_token"],
        )

    def _missing(self, part: str, one: TaskSet, count: int) -> tuple[TaskSet, list[Task]]:
        done = {record["task"] for record in self.records.of(part, one.kind)}
        return one, [task for task in self.order(one, count) if task.name not in done]

    def _work(
        self,
        part: str,
        missing: Sequence[tuple[TaskSet, list[Task]]],
        measure: Callable[[Sequence[Task]], Iterator[Record]],
        until_s: float,
    ) -> None:
        """Chunks of the sets in turn, while there is time."""
        for kind, chunk in turns(missing):
            if time.monotonic() - self.begun > until_s:
                say(f"{part}: the budget is used up")
                return
            for record in measure(chunk):
                self.records.add({"part": part, "set": kind, **record})
            count = len(self.records.of(part, kind))
            say(f"{(time.monotonic() - self.begun) / 60:.1f} min: {part} {kind}, {count} tasks")

    def write(self, cost: CostCurve) -> None:
        """JSON, Markdown, figures."""
        options, kinds = self.options, [one.kind for one in self.sets]
        result = disconnection_page.results(
            {kind: self.records.of("greedy", kind) for kind in kinds},
            {kind: self.records.of("sampled", kind) for kind in kinds},
            self.names,
            cost,
            disconnection_page.Ways(
                outages_s=OUTAGES_S,
                rtt_ms=options.rtt_ms,
                step_ms=tuple(options.step_ms or ()),
                counts=tuple(k for k in (1, 5) if k <= options.samples),
                seed=options.seed,
            ),
        )
        asked = {"per_set": options.per_set, "sampled_tasks": options.sampled, "minutes": options.minutes}
        result["settings"] = {**self.settings, **asked, "rtt_ms": options.rtt_ms}
        result["machine"] = machine(dtype=options.dtype, threads=1)
        out: Path = options.out
        out.parent.mkdir(parents=True, exist_ok=True)
        replace(out, json.dumps(result, separators=(",", ":")).replace('{"task"', '\n{"task"') + "\n")
        replace(out.with_suffix(".md"), disconnection_page.markdown_page(result))
        if options.figures:
            import disconnection_figures

            for name, content in disconnection_figures.figures(result).items():
                (out.parent / f"{out.stem}-{name}").write_bytes(content)
        say(f"{out}")


def turns(missing: Sequence[tuple[TaskSet, list[Task]]]) -> Iterable[tuple[str, list[Task]]]:
    """Chunks of all sets, one of each in turn."""
    longest = max((len(tasks) for _, tasks in missing), default=0)
    for first in range(0, longest, CHUNK):
        for one, tasks in missing:
            if chunk := tasks[first : first + CHUNK]:
                yield one.kind, chunk


def replace(path: Path, text: str) -> None:
    """The whole file or the one that was there."""
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def default_drafters() -> list[str]:
    """The shipped drafter, and what a device makes of it by default."""
    weights = shipped_drafter()
    if weights is None:
        sys.exit("no drafter comes with this checkout; name one: --drafter NAME=WHAT")
    return [f"hybrid=hybrid:{weights}", f"moa={weights}"]


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--prompts", type=Path, action="append", required=True, help="HumanEval or GSM8K, file or folder")
    add("--drafter", action="append", help="NAME=WHAT as in `outrider-cloud eval drafters`")
    add("--target", default="smollm2")
    add("--dtype", default="bfloat16")
    add("--minutes", type=float, default=90, help="budget of this start")
    add("--per-set", type=int, default=100, help="tasks of each set, greedy")
    add("--sampled", type=int, default=24, help="tasks of HumanEval for pass@k")
    add("--samples", type=int, default=5, help="samples of each of those")
    add("--temperature", type=float, default=0.8, help="of the samples")
    add("--tokens", type=int, default=256, help="of an answer at most")
    add("--rtt-ms", type=float, default=85, help="round trip once the link is back (LTE while driving)")
    add("--step-ms", type=float, action="append", help="also a device that takes so long for a token")
    add("--seed", type=int, default=1)
    add("--work", type=Path, help="folder of the records; default: in the cache")
    add("--out", type=Path, default=RESULTS)
    add("--no-figures", dest="figures", action="store_false")
    add("--weak-sandbox", action="store_true", help="run programs where the kernel cannot wall them in")
    return parser.parse_args()


if __name__ == "__main__":
    ending.run(lambda: Run(parse()).run())
