"""Table 2: what each part of the MoA drafter is worth, every variant trained from the same texts on one budget.

::

    python benchmarks/ablations.py --prompts PROMPTS/moa-eval --minutes 10 --work RUNS -- CORPUS... [train options]

What stands behind ``--`` goes to every ``outrider-cloud train moa`` as it is. A CPU minute buys fewer tokens
where other work reads memory: there ``--train-tokens`` sets the budget in answer tokens. Variants run in
order of importance; each is trained in RUNS, measured on the prompts, and written to
``benchmarks/results/ablations.json`` and ``.md`` at once. What was measured with the same settings is kept,
so the command can be stopped and started again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ending
from machine import machine

from outrider.cloud.evaluate import evaluation, tables
from outrider.cloud.evaluate.contenders import open_contender
from outrider.cloud.evaluate.figures import difference
from outrider.cloud.evaluate.prompts import read_sets
from outrider.cloud.evaluate.texts import TextStore, default_folder
from outrider.cloud.export.bundle import export_bundle
from outrider.cloud.kinds.registry import find_kind
from outrider.cloud.kinds.settings import WEIGHTS_FILE, parse_overrides
from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.target import load_target
from outrider.shared.tokenizer import Tokenizer

RESULTS = Path(__file__).with_name("results") / "ablations.json"
BASE = "base"
MEASURES = ("tau_chain6", "tau_tree24", "standalone_20")
ONE_BLOCK = ("--set", "num_sa_layers=3", "--set", "later_sa_layers=")
EVERY_THIRD = ("--set", "lsa_layers=2,5,8,11,14,17,20,23,26,29")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to train or export the drafter."""

    name: str
    shows: str
    words: tuple[str, ...] = ()
    """Options of `outrider-cloud train moa`."""
    vocabulary: int | None = None
    """Draft ids the base's weights are exported with; the head is frozen, so nothing is trained."""
    float32: bool = False
    """Export the base's weights without quantising them."""

    @property
    def settings(self) -> list[str]:
        """The ``name=value`` words among them that are the drafter's settings."""
        return [word for option, word in zip(self.words, self.words[1:], strict=False) if option == "--set"]

    @property
    def trained(self) -> bool:
        """Whether it has weights of its own."""
        return self.vocabulary is None and not self.float32


VARIANTS = (
    Variant(name=BASE, shows="the default: N = 3, two blocks, LSA over three layers, mixed hidden spans"),
    Variant(name="no-lsa", shows="rows of the direct paths alone", words=("--set", "memory=none")),
    Variant(
        name="last-layer",
        shows="one block that reads the last layer's K/V alone",
        words=("--set", "memory=none", *ONE_BLOCK, "--set", "direct_layer=29"),
    ),
    Variant(name="lsa-third", shows="LSA over every third layer", words=EVERY_THIRD),
    Variant(
        name="layer-weights",
        shows="a learned mean of every third layer instead of LSA",
        words=("--set", "memory=weights", *EVERY_THIRD),
    ),
    Variant(
        name="no-hidden-spans",
        shows="every token sees rows up to its own, as EAGLE trains",
        words=("--spans", "eagle"),
    ),
    Variant(name="n0", shows="no target layer on the device", words=("--set", "num_tli_layers=0")),
    Variant(name="n1", shows="one target layer on the device", words=("--set", "num_tli_layers=1")),
    Variant(name="one-block", shows="three SA and one CA instead of two and two", words=ONE_BLOCK),
    Variant(
        name="paired-blocks",
        shows="two SA + CA pairs instead of two SA before the first CA",
        words=("--set", "num_sa_layers=1", "--set", "later_sa_layers=1"),
    ),
    Variant(
        name="frozen-top",
        shows="top layers as the target's (the paper), not trained",
        words=("--set", "tli_full=false"),
    ),
    Variant(name="no-whole-answers", shows="no answer hidden as a whole", words=("--spans", "no-whole")),
    Variant(name="no-features", shows="the law alone", words=("--loss", "features=off")),
    Variant(
        name="features-throughout",
        shows="the feature loss at full weight to the end (the base anneals it)",
        words=("--loss", "features=on"),
    ),
    Variant(
        name="staircase",
        shows="own attention ends at block begins in ever fewer texts of the first half",
        words=("--staircase",),
    ),
    Variant(name="ca-one-head", shows="one K/V head in cross-attention", words=("--set", "ca_kv_heads=1")),
    Variant(name="float32", shows="the base's weights, not quantised", float32=True),
    Variant(name="vocabulary-4k", shows="the base's weights, 4,096 draft ids", vocabulary=4096),
    Variant(name="vocabulary-8k", shows="the base's weights, 8,192 draft ids", vocabulary=8192),
    Variant(name="vocabulary-16k", shows="the base's weights, 16,384 draft ids", vocabulary=16384),
    Variant(name="vocabulary-49k", shows="the base's weights, all ids", vocabulary=49152),
)
"""In order of importance; `--only` takes names."""


def train_command(variant: Variant, folder: Path, budget: Sequence[str], rest: Sequence[str]) -> list[str]:
    """The command line that trains a variant into ``folder``."""
    words = ["--out", str(folder / "weights"), "--work", str(folder / "run"), *budget]
    return [sys.executable, "-m", "outrider.cloud.cli", "train", "moa", *rest, *words, *variant.words]


def shared_cache(config: Any, folder: Path) -> list[str]:
    """Options of one cache of target states that serves every variant."""
    layers: set[int] = set()
    streams: set[int] = set()
    for variant in VARIANTS:
        settings = find_kind("moa").settings_for(config, **parse_overrides(MoaSettings, variant.settings))
        layers |= set(settings.needed_layers)
        streams |= set() if settings.stream_layer is None else {settings.stream_layer}
    layer_words, stream_words = (",".join(map(str, sorted(found))) for found in (layers, streams))
    return ["--cache", str(folder), "--cache-layers", layer_words, "--cache-streams", stream_words]


def rows_in(path: Path) -> list[Row]:
    """Rows measured before."""
    found: list[Row] = ending.earlier(path).get("rows", [])
    return found


def that_counts(rest: Sequence[str]) -> list[str]:
    """Words of the training that decide a figure: files by name, and nothing of where target and its states lie."""
    kept: list[str] = []
    for word in rest:
        if kept and kept[-1].startswith(("--cache", "--target")):
            kept.pop()
        else:
            kept.append(Path(word).name if "/" in word else word)
    return kept


def digest_of(*parts: Any) -> str:
    """Changes with whatever a row depends on."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def record(folder: Path) -> Row:
    """What the trainer wrote about a run; {} where its record is missing."""
    path = folder / "weights" / "run.json"
    found: Row = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


class Ablations:
    """One start of the benchmark."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        ending.known("--only", options.only, (variant.name for variant in VARIANTS))
        self.rows: list[Row] = rows_in(ending.writable(options.out))
        sets = read_sets(options.prompts)
        self.target = load_target(options.target, options.dtype, 1)
        self.store = TextStore(self.target, default_folder())
        self.tokenizer = Tokenizer.from_folder(self.target.folder)
        self.plan = evaluation.Plan(
            per_set=options.per_set,
            tokens=options.tokens,
            seed=options.seed,
            offline=True,
            offline_tokens=options.offline_tokens,
            trees=(24,),
            judged=False,
        )
        self.asked = evaluation.questions(sets, self.plan, self.store, self.tokenizer, say)

    @property
    def budget(self) -> float | list[str]:
        """What of the budget decides a figure, as keys hold it."""
        return self.budget_words if self.options.train_tokens else float(self.options.minutes)

    @property
    def budget_words(self) -> list[str]:
        """Options of the training: one of the two budgets."""
        if self.options.train_tokens:
            return ["--minutes", "0", "--tokens", str(self.options.train_tokens)]
        return ["--minutes", f"{self.options.minutes:g}"]

    def run(self) -> None:
        """Every variant asked for that is not there yet; the base comes first."""
        names = [variant.name for variant in VARIANTS]
        for variant in VARIANTS:
            if variant.name in (self.options.only or names):
                self._variant(variant)

    def _variant(self, variant: Variant) -> None:
        texts = [question.text.path.stem for question in self.asked]
        measured = digest_of(texts, evaluation.settings(self.plan, self.target.name, self.target.dtype))
        made = (variant.words, variant.vocabulary, variant.float32)
        key = digest_of(made, self.budget, that_counts(self.options.rest), measured)
        if any(row["key"] == key and row["variant"] == variant.name for row in self.rows):
            say(f"{variant.name}: kept")
            return
        say(f"{variant.name}: {variant.shows}")
        row = {"variant": variant.name, "shows": variant.shows, "options": list(variant.words)}
        row |= {"key": key, "settings_key": measured}
        row |= {
            "budget": self.budget_words,
            "train": that_counts(self.options.rest),
            **self._measure(variant),
        }
        # Read again: another start of this benchmark may have added rows meanwhile.
        self.rows = [one for one in rows_in(self.options.out) if one["variant"] != variant.name] + [row]
        self.write()

    def _measure(self, variant: Variant) -> Row:
        folder = self._trained(variant if variant.trained else VARIANTS[0])
        # Finished weights are stored as int8; the trainer's own checkpoint is not rounded.
        source = folder / "run" / "run" if variant.float32 else folder / "weights"
        spec = str(source)
        if not variant.trained:
            bundle = folder / f"{variant.name}.onnx"
            export_bundle(
                source,
                self.target.folder,
                bundle,
                int8=not variant.float32,
                vocabulary=variant.vocabulary,
            )
            spec = f"{bundle}@{spec}"
        contender = open_contender(f"{variant.name}={spec}", self.target)
        stops = evaluation.stop_ids(self.store, self.tokenizer)
        (result,) = evaluation.evaluate([contender], self.asked, self.plan, self.store, stops)
        tallies = {
            category: [{name: tally[name] for name in MEASURES if name in tally} for tally in found]
            for category, found in result.tallies.items()
        }
        found = record(folder)
        return {
            **result.row(),
            "tallies": tallies,
            "validation": found.get("held_out", {}),
            "answer_tokens": found.get("answer_tokens"),
            "minutes": found.get("minutes"),
        }

    def _trained(self, variant: Variant) -> Path:
        """Folder of a variant's weights, trained if they are not there."""
        made = digest_of(variant.words, self.budget, that_counts(self.options.rest))
        folder: Path = self.options.work / f"{variant.name}-{made[:8]}"
        if not (folder / "weights" / WEIGHTS_FILE).is_file():
            rest: list[str] = self.options.rest
            if "--cache" not in rest:
                rest = rest + shared_cache(self.target.model.config, self.options.work / "states")
            command = train_command(variant, folder, self.budget_words, rest)
            say(" ".join(command))
            done = subprocess.run(command, stdout=sys.stderr, check=False)
            if done.returncode:
                sys.exit(f"{variant.name}: training ended with exit code {done.returncode}")
        return folder

    def write(self) -> None:
        """JSON and Markdown, variants in their order."""
        names = [variant.name for variant in VARIANTS]
        self.rows.sort(key=lambda row: names.index(row["variant"]))
        about = machine(**evaluation.settings(self.plan, self.target.name, self.target.dtype))
        result = {"rows": self.rows, "machine": about}
        out: Path = self.options.out
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, ensure_ascii=False) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(markdown(self.rows, about), encoding="utf-8")


def markdown(rows: Sequence[Row], about: dict[str, object]) -> str:
    """The table as it is committed beside the JSON."""
    base = next((row for row in rows if row["variant"] == BASE), None)
    head = ["variant", "τ chain 6", "τ tree 24", "alone at depth 21–128", "Δ τ chain 6", "Δ τ tree 24"]
    head += [
        "held-out answers: τ 6 / alone",
        "answer tokens",
        "row bytes",
        "step ms",
        "trained parameters",
        "what it is",
    ]
    lines = []
    for row in rows:
        told = next(iter(row["validation"].values()), {})
        lines.append(
            [
                row["variant"],
                *(tables.with_interval(row, name) for name in MEASURES),
                *(delta(row, base, name) for name in MEASURES[:2]),
                f"{tables.number(told.get('tau', {}).get('6'))} / {tables.number(told.get('offline'))}",
                f"{row['answer_tokens'] / 1e6:.2f} M" if row.get("answer_tokens") else tables.NONE,
                str(row["row_bytes"]),
                tables.number(row["step_ms"]),
                f"{row['parameters'] / 1e6:.1f} M",
                row["shows"],
            ]
        )
    words = f"Greedy; commit {about['commit']}, {about['cpu']}; intervals of 95 % by prompt, those of Δ in pairs.\n"
    return "\n".join(["# Ablations of the MoA drafter\n", words, tables.markdown(head, lines)])


def delta(row: Row, base: Row | None, name: str) -> str:
    """Difference from the base on the same prompts."""
    if base is None or row is base or row["settings_key"] != base["settings_key"]:
        return tables.NONE
    found = difference(row["tallies"], base["tallies"], name, seed=1)
    return tables.NONE if found is None else f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, action="append", required=True)
    parser.add_argument("--minutes", type=float, default=10.0, help="computing time of each training")
    parser.add_argument("--train-tokens", type=int, default=0, help="answer tokens of each training instead")
    parser.add_argument("--work", type=Path, required=True, help="folder for weights and runs")
    parser.add_argument("--only", action="append", help="names of variants; default: all")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--per-set", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--offline-tokens", type=int, default=160)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("rest", nargs="*", help="behind --: corpus files and options of train moa")
    return parser.parse_args()


if __name__ == "__main__":
    ending.run(lambda: Ablations(parse()).run())
