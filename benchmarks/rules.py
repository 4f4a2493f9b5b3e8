"""What each rule costs and brings: milliseconds a round, bytes up per drafted token, tau on the real pair.

::

    python benchmarks/rules.py --prompts PROMPTS/moa-eval --per-set 2

*Cost* is CPU time of one thread in the rule itself, over the logits of one pass of the target after ``--context``
tokens: at worst (the dearer of two rounds, one in which the coins accept whatever can be, one in which they refuse it),
and the mean over the real rounds of the last two columns' runs. Its share is that of the bare pass of the same width,
measured in the same process. *tau* is tokens per round, the target's own included, of drafter and target in one
process, state rows as in a session, drafts made as a device makes them for that rule: chains of eight; trees of 24
nodes, eight deep; four chains of eight for `batch`. Rows go to ``benchmarks/results/rules.json`` and ``rules.md`` as
they are measured; those of the same settings are kept, so the command can be stopped and started again.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ending
from machine import commit, machine
from rule_cost import CHAIN, PARALLEL, TREE, Case, Cost, Timed

from outrider.client.drafter import Drafter
from outrider.cloud.config import shipped_drafter
from outrider.cloud.engine import Engine
from outrider.cloud.evaluate.contenders import open_contender
from outrider.cloud.evaluate.figures import summarise
from outrider.cloud.evaluate.laws import named_prompts
from outrider.cloud.evaluate.prompts import read_sets
from outrider.cloud.evaluate.ruled import Desk, Manner, Task
from outrider.cloud.evaluate.tables import markdown, number
from outrider.cloud.judge.head import Feature, JudgeHead
from outrider.cloud.oracle import end_ids
from outrider.cloud.rules import KNOWN, NOTHING, Audit, Judge, Rule, read_parameters
from outrider.cloud.target import load_target
from outrider.shared import frames
from outrider.shared.anchor import TokenSequence
from outrider.shared.draft import Draft
from outrider.shared.sampling import Sampling
from outrider.shared.tokenizer import Tokenizer
from outrider.shared.wire import up_to_wire

RESULTS = Path(__file__).with_name("results") / "rules.json"
GOAL = 0.05
"""Share of the pass that token, block and coupled verification may take."""

CHAINS = ("greedy", "coupled", "delta", "look", "residual", "block")
TREES = ("coupled", "delta", "look", "multidraft", "traversal")
LOSSY = (
    "overaccept",
    "overaccept-uno",
    "lenience",
    "top-m",
    "relative-margin",
    "typical",
    "typical-or",
    "kl",
)

Row = dict[str, Any]


def cases(judge: bool) -> list[Case]:
    """Every line."""
    found = [Case(rule, CHAIN) for rule in CHAINS] + [Case(rule, TREE) for rule in TREES]
    found += [Case("batch", PARALLEL)] + [Case(rule, CHAIN) for rule in LOSSY]
    return found + ([Case("judge", CHAIN)] if judge else [])


def bytes_up(draft: Draft) -> int:
    """Bytes of a draft in its frame beyond those of a frame without one."""
    empty = frames.DraftFrame(1, 1, frames.Window(TokenSequence((1,)).anchor), Draft.chain(()))
    return up_to_wire(replace(empty, draft=draft)).ByteSize() - up_to_wire(empty).ByteSize()


class Rules:
    """The table, row by row."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.wanted = cases(options.judge is not None)
        ending.known("--only", options.only, (case.name for case in self.wanted))
        self.rows: dict[str, Row] = {
            row["name"]: row for row in ending.earlier(ending.writable(options.out)).get("rows", ())
        }
        sets = read_sets(options.prompts)
        target = load_target(options.target, options.dtype, 1, report=say)
        self.contender = open_contender(f"drafter={options.drafter}", target)
        self.tokenizer = Tokenizer.from_folder(target.folder)
        self.stops = end_ids(target, self.tokenizer)
        self.prompts = named_prompts(sets, options.per_set, self.tokenizer)
        self.engine = Engine(target)
        self.idle: list[Drafter] = []
        self.rules: dict[str, Rule] = {rule.name: rule for rule in KNOWN.rules}
        if options.judge is not None:
            head = JudgeHead.load(options.judge, target=target.weights.hex(), hidden=target.hidden_size)
            if head.feature is Feature.PRENORM:
                self.engine.show_prenorm()
            self.rules["judge"] = Judge(head, frozenset(self.stops))
        text = list(itertools.chain.from_iterable(ids for _, ids in self.prompts))
        repeated = text * (1 + options.context // len(text))
        self.cost = Cost(self.engine, self.contender, repeated[: options.context + 1])
        self.about = machine(
            threads=1,
            dtype=options.dtype,
            target=target.name,
            bundle=self.contender.digest,
            context=options.context,
            prompts=len(self.prompts),
            tokens=options.tokens,
            seed=options.seed,
        )

    def run(self) -> None:
        """All rows that are not there yet."""
        names = [case.name for case in self.wanted]
        for case in self.wanted:
            if self.options.only and case.name not in self.options.only:
                continue
            key = self._key(case)
            if self.rows.get(case.name, {}).get("key") == key:
                say(f"{case.name}: kept")
                continue
            self.rows[case.name] = {"key": key, **self._row(case)}
            self._write(names)
            say(f"{case.name}: measured")

    def _key(self, case: Case) -> str:
        o = self.options
        parts = [
            case.name,
            self.prompts,
            self.contender.digest,
            o.target,
            o.dtype,
            o.tokens,
            o.seed,
            o.context,
        ]
        parts += [o.temperature, o.width]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _row(self, case: Case) -> Row:
        rule = self.rules[case.rule]
        temperatures = [0.0] if case.rule == "greedy" else self.options.temperature
        row: Row = {"name": case.name, "rule": case.rule, "shape": case.shape, "lossy": rule.lossy}
        row["commit"] = commit()
        row["parameters"] = dict(read_parameters(rule, NOTHING))
        row |= self.cost.of(case, rule, temperatures[-1])
        times: list[float] = []
        row["runs"] = [self._tau(case, rule, temperature, times) for temperature in temperatures]
        row["mean_ms"] = statistics.fmean(times)
        row["mean_share"] = row["mean_ms"] / row["pass_ms"]
        row["bytes_up"] = statistics.fmean(run["bytes_up"] for run in row["runs"])
        return row

    def _tau(self, case: Case, rule: Rule, temperature: float, times: list[float]) -> Row:
        timed = Timed(rule)
        manner = Manner(
            rule=frames.Rule(case.rule),
            sampling=Sampling(temperature),
            budget=case.budget,
            tokens=self.options.tokens,
            stop_ids=self.stops,
        )
        desk = Desk(self.engine, self.contender, timed, self.options.width, self.idle)
        names = dict(enumerate(name for name, _ in self.prompts))
        first = self.options.seed << 32
        tallies: dict[str, list[dict[str, tuple[float, float]]]] = {}
        audit, judged, tokens, drafted, sent = Audit(), 0, 0, 0, 0
        tasks = [Task(ids, first + number) for number, (_, ids) in enumerate(self.prompts)]
        for text in sorted(desk.write(tasks, manner), key=lambda one: one.task.seed):
            category = names[text.task.seed - first].rpartition("/")[0]
            tally = {"tau": (float(len(text.ids)), float(len(text.rounds)))}
            tallies.setdefault(category, []).append(tally)
            for one in text.rounds:
                audit += one.audit or Audit()
                judged += one.kinds.count(frames.TokenKind.JUDGED)
                drafted, sent = drafted + len(one.draft), sent + bytes_up(one.draft)
            tokens += len(text.ids)
        times += timed.times
        tau = summarise(tallies, seed=self.options.seed).mean["tau"]
        tested = max(audit.positions, 1)
        return {
            "temperature": temperature,
            "tau": tau.value,
            "interval": [tau.low, tau.high],
            "rounds": len(timed.times),
            "bytes_up": sent / max(drafted, 1),
            "judged": judged / max(tokens, 1),
            "audit": None if not audit.positions else {
                "positions": audit.positions,
                "rejection": audit.rejection / tested,
                "loss": audit.loss / tested,
                "tv": audit.tv / tested,
                "gap": audit.gap / tested,
            },
        }  # fmt: skip

    def _write(self, names: Sequence[str]) -> None:
        rows = [self.rows[name] for name in names if name in self.rows]
        found = {"rows": rows, "machine": self.about}
        out: Path = self.options.out
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(table(rows, self.about), encoding="utf-8")


def table(rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    """The rows as Markdown."""
    temperatures = sorted({run["temperature"] for row in rows for run in row["runs"]})
    head = [
        "rule, draft",
        "ms worst",
        "ms mean",
        "of the pass, worst",
        "of the pass, mean",
        "bytes up a token",
    ]
    head += [f"τ at T = {temperature:g}" for temperature in temperatures] + ["loss a token", "judged"]
    lines = []
    for row in rows:
        runs = {run["temperature"]: run for run in row["runs"]}
        hot = row["runs"][-1]
        cells = [f"{row['name']}{' (lossy)' if row['lossy'] else ''}"]
        cells += [number(row["worst_ms"]), number(row["mean_ms"])]
        cells += [f"{100 * row['worst_share']:.1f} %", f"{100 * row['mean_share']:.1f} %"]
        cells.append(number(row["bytes_up"], 1))
        for temperature in temperatures:
            run = runs.get(temperature)
            low, high = run["interval"] if run else (0, 0)
            spread = f" [{low:.2f}, {high:.2f}]" if high > low else ""
            cells.append(f"{run['tau']:.2f}{spread}" if run else "–")
        loss = hot["audit"]["loss"] if hot["audit"] else None
        cells += [number(loss, 3), f"{100 * hot['judged']:.0f} %" if row["lossy"] else "–"]
        lines.append(cells)
    goals = [row for row in rows if row["name"] in ("residual, chain", "block, chain", "coupled, chain")]
    met = "; ".join(f"{row['rule']} {100 * row['worst_share']:.1f} %" for row in goals)
    text = (
        f"# Rules\n\nTarget {about['target']} in {about['dtype']}, one thread, {about['context']} tokens of context; "
        f"{about['prompts']} prompts, {about['tokens']} tokens each, seed {about['seed']}; commit {about['commit']}, "
        f"{about['cpu']}. Intervals of 95 % by prompt within its category (none where each has one). "
        "Loss and judged tokens at the last temperature.\n\n"
    )
    return f"{text}{markdown(head, lines)}\nGoal: at most {100 * GOAL:.0f} % of the pass, at worst: {met or '–'}.\n"


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, action="append", required=True)
    parser.add_argument("--per-set", type=int, default=2, help="prompts of each category")
    parser.add_argument("--tokens", type=int, default=64, help="of each text")
    parser.add_argument("--temperature", type=float, action="append", help="default: 0.7 and 1")
    parser.add_argument(
        "--only", action="append", help="names of rows, as in the table; default: all there are"
    )
    parser.add_argument("--drafter", type=Path, default=shipped_drafter(), help="weights folder")
    parser.add_argument("--judge", type=Path, help="file of a judge's head: adds its row")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--context", type=int, default=300, help="tokens before the round that is timed")
    parser.add_argument("--width", type=int, default=4, help="texts in one pass of the runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    found = parser.parse_args()
    found.temperature = found.temperature or [0.7, 1.0]
    return found


if __name__ == "__main__":
    ending.run(lambda: Rules(parse()).run())
