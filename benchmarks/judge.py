"""What a judge's head is worth on the embedded target: heads and comparisons as one page.

::

    outrider-cloud judge mine labels.jsonl --prompts 320 --select-items 60 --dtype bfloat16 --family capital …
    outrider-cloud judge train labels.jsonl --out default.json
    outrider-cloud judge train labels.jsonl --out postnorm.json --feature postnorm
    outrider-cloud judge eval --head default.json --labels labels.jsonl --json eval.json
    python benchmarks/judge.py --head default.json --head postnorm.json --eval default=eval.json

Writes ``results/judge.json`` and ``judge.md``. Nothing is measured here: every figure is in a head's own record or in
what `judge eval` wrote.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ending
from machine import machine

from outrider.cloud.evaluate.tables import NONE, markdown
from outrider.cloud.judge.head import JudgeHead
from outrider.cloud.judge.tables import comparison_table
from outrider.shared.errors import ConfigError

RESULTS = Path(__file__).with_name("results") / "judge.json"
HEAD = (
    "head",
    "reads",
    "fitted on (good, bad)",
    "AUC",
    "t(x) alone",
    "KL alone",
    "recall of bad",
    "good kept",
)
Row = dict[str, Any]


def head_row(path: Path) -> Row:
    """A head without its weights. Raises `ConfigError` for a file that is none."""
    told = read(path, "--head")
    target, weight = told.get("target"), told.get("weight")
    if not isinstance(target, str) or not isinstance(weight, list):
        raise ConfigError("--head", f"{path}: expected a head as `judge train` writes it")
    JudgeHead.load(path, target=target, hidden=len(weight), option="--head")
    return {
        "name": path.stem,
        **{name: value for name, value in told.items() if name not in ("weight", "bias")},
    }


def read(path: Path, option: str) -> Row:
    """A JSON object. Raises `ConfigError`."""
    if not path.is_file():
        raise ConfigError(option, f"there is no file {path}")
    return ending.earlier(path, option)


def cells(row: Row) -> list[str]:
    """The row of a head under `HEAD`."""
    record = row["record"]
    sizes, base = record["sizes"], record["baselines"]
    return [
        row["name"],
        f"{row['feature']}, {row['position']}",
        f"{sizes['train_good']}, {sizes['train_bad']}",
        shown(record["auc"]),
        shown(base["probability"]),
        shown(base["kl"]),
        shown(record["recall_of_bad"]),
        shown(record["good_kept"]),
    ]


def shown(figure: Sequence[float | None]) -> str:
    """A value with its interval."""
    value, low, high = figure
    return NONE if value is None else f"{value:.2f} [{low or 0.0:.2f}, {high or 0.0:.2f}]"


def held_out(rows: Sequence[Row]) -> list[str]:
    """What heads say about families that they were not fitted on."""
    found = [(row, row["record"]["held_out"]) for row in rows if row["record"].get("held_out")]
    if not found:
        return []
    lines = [
        [row["name"], ", ".join(one["families"]), str(one["adapted_on"]), str(one["labels"]),
         shown(one["auc"]), shown(one["recall_of_bad"]), shown(one["good_kept"])]
        for row, one in found
    ]  # fmt: skip
    names = ["head", "families held out", "prompts let in", "labels", "AUC", "recall of bad", "good kept"]
    return ["## Families held out\n", markdown(names, lines)]


def page(rows: Sequence[Row], compared: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """The Markdown page."""
    parts = [
        "# Judge heads\n",
        "Labels of validation wordings, on none of which a head was fitted; brackets hold 95 %, by prompt. "
        "*t(x) alone* and *KL alone*: the AUC of the target's own probability, and of the two laws' distance, on the "
        "same tokens. *good kept*: share of harmless mismatches that a threshold refusing 95 % of the bad ones lets "
        "through. "
        f"Commit {about['commit']}, {about['cpu']}.\n",
        markdown(list(HEAD), [cells(row) for row in rows]),
        *(f"- {row['name']}: {row['record']['verdict']}" for row in rows),
        "",
        *held_out(rows),
    ]
    for name, found in compared.items():
        settings = found["settings"]
        words = f"{settings['items']} test prompts of each of {', '.join(settings['families'])}; "
        words += f"{settings['tokens']} tokens, greedy."
        parts += [
            f"## Answers: {name}\n",
            words,
            "",
            comparison_table(found["rows"]),
            "",
            *found["findings"],
            "",
        ]
    return "\n".join(parts)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--head", type=Path, action="append", required=True, help="a head's file; repeatable")
    parser.add_argument(
        "--eval", action="append", default=[], help="NAME=FILE of `judge eval --json`; repeatable"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    out = ending.writable(options.out)
    rows = [head_row(path) for path in options.head]
    compared: dict[str, Any] = {}
    for text in options.eval:
        name, _, path = text.partition("=")
        if not path:
            raise ConfigError("--eval", f"expected NAME=FILE, got {text!r}")
        compared[name] = read(Path(path), "--eval")
        if not compared[name].keys() >= {"rows", "findings", "settings"}:
            raise ConfigError("--eval", f"{path}: expected what `judge eval --json` writes")
    about = machine()
    out.write_text(
        json.dumps({"heads": rows, "compared": compared, "machine": about}) + "\n", encoding="utf-8"
    )
    out.with_suffix(".md").write_text(page(rows, compared, about), encoding="utf-8")
    print(out.with_suffix(".md"))


if __name__ == "__main__":
    ending.run(main)
