"""Table 1: every kind of drafter on held-out prompts, greedy and at temperature 1 with shared coins.

::

    python benchmarks/drafters.py --prompts PROMPTS/moa-eval --prompts PROMPTS/humaneval \
        --equal RUNS --budget-minutes 30 --shipped-minutes 110

RUNS holds one weights folder per kind (RUNS/moa, RUNS/eagle2 …), all trained on the same data for the same minutes.
Rows go to ``benchmarks/results/drafters.json`` and ``drafters.md`` as they are measured. A row whose bundle, prompts
and settings are those of the run before is kept, so the command can be stopped and started again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ending
from machine import machine

from outrider.cloud.config import shipped_drafter
from outrider.cloud.evaluate import evaluation, tables
from outrider.cloud.evaluate.contenders import Contender, open_contender
from outrider.cloud.evaluate.prompts import PromptSet, read_sets
from outrider.cloud.evaluate.texts import TextStore, default_folder
from outrider.cloud.kinds.registry import KINDS
from outrider.cloud.target import load_target
from outrider.shared.tokenizer import Tokenizer

RESULTS = Path(__file__).with_name("results") / "drafters.json"
SHIPPED = "moa (shipped)"
DEFAULT = "hybrid"
GOALS = {
    "tau_chain6": (3.5, 2.5),
    "tau_tree24": (4.2, 3.3),
    "standalone_20": (0.45, None),
}
"""Measure of the shipped drafter, and of what a device makes of it by default, greedy: (goal, floor)."""
OVER_EAGLE2 = 1.2
STEP_MS = 0.5

Row = dict[str, Any]


def specs(shipped: Path | None, equal: Path | None) -> dict[str, str]:
    """What takes part, by row name: whatever of it is there."""
    found: dict[str, str] = {}
    if shipped is not None:
        found[SHIPPED] = str(shipped)
    for kind in KINDS:
        if equal is not None and (equal / kind / "drafter.json").is_file():
            found[kind] = str(equal / kind)
    found["ngram"] = "ngram"
    if shipped is not None:
        found["hybrid"] = f"hybrid:{shipped}"
    return found


def key_of(contender: Contender, plan: evaluation.Plan, texts: Sequence[str], extra: Sequence[Any]) -> str:
    """Changes with whatever could change the row's figures, times aside."""
    parts = [contender.kind, contender.digest, asdict(plan), list(texts), list(extra)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


class Table:
    """The rows on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = ending.earlier(ending.writable(path)).get("rows", [])
        self._order: list[tuple[str, float]] = []

    def kept(self, key: str, name: str) -> Row | None:
        """The row of this name, if it was measured under this key."""
        return next((row for row in self.rows if row["key"] == key and row["name"] == name), None)

    def put(self, row: Row) -> None:
        """Add a row in the place of the one with its name and temperature."""
        place = (row["name"], row["temperature"])
        self.rows = [one for one in self.rows if (one["name"], one["temperature"]) != place] + [row]

    def write(self, about: dict[str, object]) -> None:
        """Write JSON and Markdown, rows in the order of kinds, greedy first."""
        names = [SHIPPED, *KINDS, "ngram", "hybrid"]
        self.rows.sort(key=lambda row: (row["temperature"], names.index(row["name"])))
        result = {"rows": self.rows, "goals": goals(self.rows), "machine": about}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
        self.path.write_text(text, encoding="utf-8")
        self.path.with_suffix(".md").write_text(markdown(self.rows, result["goals"], about), encoding="utf-8")


def goals(rows: Sequence[Row]) -> list[Row]:
    """Each goal beside what was reached; MoA against EAGLE-2 at the same budget."""
    greedy = {row["name"]: row for row in rows if row["temperature"] == 0}
    found: list[Row] = []
    for who in (SHIPPED, DEFAULT):
        if (row := greedy.get(who)) is not None:
            for name, (goal, floor) in GOALS.items():
                found.append(_goal(f"{who}: {name}", row.get(name), goal, floor))
            found.append(_goal(f"{who}: step_ms", row["step_ms"], STEP_MS, None, most=True))
    if {"moa", "eagle2"} <= set(greedy):
        for name in ("tau_chain6", "tau_tree24"):
            # Accepted tokens: without the one the target adds to every round.
            ratio = (greedy["moa"][name] - 1) / max(greedy["eagle2"][name] - 1, 1e-9)
            found.append(_goal(f"moa over eagle2, accepted per round, {name}", ratio, OVER_EAGLE2, None))
    return found


def _goal(what: str, value: float | None, goal: float, floor: float | None, *, most: bool = False) -> Row:
    met = value is not None and (value <= goal if most else value >= goal)
    above = None if floor is None or value is None else value >= floor
    return {
        "what": what,
        "measured": None if value is None else round(value, 3),
        "goal": goal,
        "met": met,
        "floor": floor,
        "floor_met": above,
    }


def markdown(rows: Sequence[Row], reached: Sequence[Row], about: dict[str, object]) -> str:
    """The table as it is committed beside the JSON."""
    parts = [
        "# Drafters\n",
        f"Commit {about['commit']}, {about['cpu']}; means over categories, 95 % intervals.\n",
    ]
    for temperature in sorted({row["temperature"] for row in rows}):
        mine = [row for row in rows if row["temperature"] == temperature]
        parts.append(f"## {'Greedy' if not temperature else f'Temperature {temperature:g}, coupled'}\n")
        parts += [tables.rounds_table(mine), _alone(mine)]
        parts += [tables.categories_table(mine, name) for name in ("tau_chain6", "tau_tree24")]
        if any("agree_1_4" in row for row in mine):
            parts.append(tables.offline_table(mine))
    parts.append("## Goals\n")
    head = ["goal", "measured", "asked", "met", "floor met"]
    said = {True: "yes", False: "**no**", None: tables.NONE}
    lines = [
        [
            one["what"],
            tables.number(one["measured"]),
            f"{one['goal']:g}",
            said[one["met"]],
            said[one["floor_met"]],
        ]
        for one in reached
    ]
    return "\n".join([*parts, tables.markdown(head, lines)])


def _alone(rows: Sequence[Row]) -> str:
    head = ["drafter", "budget, minutes", "trained parameters", "loopback tokens/s", "× streaming"]
    head += ["alone at depth 1–20", "alone at depth 21–128", "8-node pass ms"]
    lines = [
        [
            row["name"],
            tables.number(row.get("budget_minutes"), 0),
            f"{row['parameters'] / 1e6:.1f} M" if row["parameters"] else tables.NONE,
            tables.number(row.get("loopback_tokens_s"), 1),
            tables.number(row.get("loopback_speedup")),
            tables.with_interval(row, "standalone_1_20"),
            tables.with_interval(row, "standalone_20"),
            tables.number(row["tree_pass_ms"]),
        ]
        for row in rows
    ]
    return tables.markdown(head, lines)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, action="append", required=True)
    parser.add_argument("--shipped", type=Path, default=shipped_drafter())
    parser.add_argument("--shipped-minutes", type=float)
    parser.add_argument("--equal", type=Path, help="folder with one weights folder per kind")
    parser.add_argument(
        "--budget-minutes", type=float, help="training of each; default: what its run.json says"
    )
    parser.add_argument("--only", action="append", help="names of rows; default: all there are")
    parser.add_argument("--temperature", type=float, action="append", help="default: 0 and 1")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--per-set", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--offline-tokens", type=int, default=160)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loopback-prompts", type=int, default=6, help="0: none")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


class Run:
    """One start of the benchmark."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.table = Table(options.out)
        self.specs = specs(options.shipped, options.equal)
        ending.known("--only", options.only, self.specs)
        self.sets: list[PromptSet] = read_sets(options.prompts)
        self.target = load_target(options.target, options.dtype, 1)
        self.store = TextStore(self.target, default_folder())
        self.tokenizer = Tokenizer.from_folder(self.target.folder)
        self.about = machine(
            dtype=options.dtype,
            threads=1,
            prompts={one.category: min(options.per_set, len(one.prompts)) for one in self.sets},
        )
        self._loopback: dict[str, Row] = {}

    def run(self) -> None:
        """All rows that are not there yet."""
        o = self.options
        wanted = self.specs
        chosen = [name for name in wanted if name in (o.only or wanted)]
        contenders = [open_contender(f"{name}={wanted[name]}", self.target) for name in chosen]
        base = evaluation.Plan(
            per_set=o.per_set, tokens=o.tokens, seed=o.seed, offline=True, offline_tokens=o.offline_tokens
        )
        for temperature in o.temperature or (0.0, 1.0):
            plan = replace(base, temperature=temperature)
            asked = evaluation.questions(self.sets, plan, self.store, self.tokenizer, say)
            for contender in contenders:
                self._row(contender, plan, asked)

    def _row(self, contender: Contender, plan: evaluation.Plan, asked: Sequence[evaluation.Question]) -> None:
        texts = [question.text.path.stem for question in asked]
        key = key_of(contender, plan, texts, ())
        row = self.table.kept(key, contender.name)
        if row is None:
            stops = evaluation.stop_ids(self.store, self.tokenizer)
            (result,) = evaluation.evaluate([contender], asked, plan, self.store, stops)
            row = {
                "key": key,
                **result.row(),
                "settings": evaluation.settings(plan, self.target.name, self.target.dtype),
            }
            say(f"{contender.name} at temperature {plan.temperature:g}: {result.seconds:.0f} s of CPU")
        else:
            say(f"{contender.name} at temperature {plan.temperature:g}: kept")
        row["budget_minutes"] = self._minutes(contender)
        if plan.temperature == 0 and "loopback_tokens_s" not in row and self.options.loopback_prompts:
            row |= self._rate(contender)
        self.table.put(row)
        self.table.write(self.about)

    def _minutes(self, contender: Contender) -> float | None:
        if contender.weights is None:
            return 0.0
        shipped = contender.name in (SHIPPED, "hybrid")
        said: float | None = self.options.shipped_minutes if shipped else self.options.budget_minutes
        record = contender.weights / "run.json"
        if said is None and record.is_file():
            said = json.loads(record.read_text(encoding="utf-8"))["minutes"]
        return said

    def _rate(self, contender: Contender) -> Row:
        from loopback import loopback

        found = loopback(
            contender, self.tokenizer, self.options.dtype, self.options.loopback_prompts, self.options.tokens
        )
        say(f"{contender.name} on loopback: {found['loopback_tokens_s']} tokens/s")
        return found


if __name__ == "__main__":
    ending.run(lambda: Run(parse()).run())
