"""The two published tables' programs, on a tiny target: what was measured is kept, what changed is measured again."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from outrider.cloud.kinds.settings import parse_overrides
from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.train.blocks import SPANS
from outrider.cloud.train.plan import TrainingPlan
from tests.tiny_bundle import make_bundle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target/, weights/ and a file of prompts."""
    folder = tmp_path_factory.mktemp("benchmarks")
    make_bundle(folder)
    prompts = folder / "qa.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Who is {n}?"}) + "\n" for n in range(4)))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Bundles and texts of a test are its own; benchmarks are scripts and find each other by path."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(root / "benchmarks"))


def options(module: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> argparse.Namespace:
    """A command line as the program reads it."""
    monkeypatch.setattr("sys.argv", ["benchmark", *words])
    return module.parse()


def common(folder: Path, out: Path) -> list[str]:
    """Options of a small run."""
    words = ["--prompts", str(folder / "qa.jsonl"), "--target", str(folder / "target"), "--dtype", "float32"]
    return [*words, "--per-set", "2", "--tokens", "8", "--offline-tokens", "30", "--out", str(out)]


def stripped(path: Path) -> list[Any]:
    """Rows without what only times say."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_table_one_keeps_rows_and_measures_what_changed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second start measures nothing again; a drafter that was added gets its row; another seed measures anew."""
    drafters: Any = importlib.import_module("drafters")
    out = tmp_path / "drafters.json"
    words = [*common(folder, out), "--shipped", str(folder / "weights"), "--loopback-prompts", "0"]
    measured: list[tuple[str, float]] = []
    evaluate = drafters.evaluation.evaluate

    def watched(contenders: Any, asked: Any, plan: Any, *rest: Any) -> Any:
        measured.extend((contender.name, plan.temperature) for contender in contenders)
        return evaluate(contenders, asked, plan, *rest)

    monkeypatch.setattr(drafters.evaluation, "evaluate", watched)
    drafters.Run(options(drafters, monkeypatch, *words, "--only", "ngram")).run()
    assert measured == [("ngram", 0.0), ("ngram", 1.0)]
    first = stripped(out)
    measured.clear()
    words += ["--only", "ngram", "--only", drafters.SHIPPED, "--temperature", "0"]
    drafters.Run(options(drafters, monkeypatch, *words)).run()
    assert measured == [(drafters.SHIPPED, 0.0)]
    rows = stripped(out)
    assert [row for row in rows if row["name"] == "ngram"] == first
    assert [(row["name"], row["temperature"]) for row in rows] == [
        (drafters.SHIPPED, 0.0),
        ("ngram", 0.0),
        ("ngram", 1.0),
    ]
    text = out.with_suffix(".md").read_text(encoding="utf-8")
    assert f"| {drafters.SHIPPED} |" in text and "## Temperature 1, coupled" in text and "**no**" in text
    measured.clear()
    drafters.Run(options(drafters, monkeypatch, *words, "--seed", "2")).run()
    assert sorted(measured) == [(drafters.SHIPPED, 0.0), ("ngram", 0.0)]


def test_goals_are_judged_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Met, between floor and goal, below the floor; MoA over EAGLE-2 counts accepted tokens only."""
    drafters: Any = importlib.import_module("drafters")
    row = {"temperature": 0, "step_ms": 0.4, "tau_chain6": 3.6, "tau_tree24": 3.5, "standalone_20": 0.4}
    rows = [
        {**row, "name": drafters.SHIPPED},
        {**row, "name": "moa", "tau_chain6": 2.5, "tau_tree24": 3.0},
        {**row, "name": "eagle2", "tau_chain6": 2.2, "tau_tree24": 2.9},
    ]
    found = {one["what"].removeprefix(f"{drafters.SHIPPED}: "): one for one in drafters.goals(rows)}
    assert [(found[name]["met"], found[name]["floor_met"]) for name in ("tau_chain6", "tau_tree24")] == [
        (True, True),
        (False, True),
    ]
    assert found["standalone_20"]["met"] is False and found["step_ms"]["met"] is True
    ratios = [one for name, one in found.items() if "eagle2" in name]
    assert [(one["measured"], one["met"]) for one in ratios] == [(1.25, True), (1.053, False)]


def test_table_two_measures_trained_and_derived_variants_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the base's weights there, base and float32 are measured without training, then kept."""
    ablations: Any = importlib.import_module("ablations")
    out = tmp_path / "ablations.json"
    words = [*common(folder, out), "--work", str(tmp_path / "runs"), "--only", "base", "--only", "float32"]
    words += ["--", "corpus.jsonl"]
    made = ablations.digest_of((), 10.0, ["corpus.jsonl"])
    weights = tmp_path / "runs" / f"base-{made[:8]}" / "weights"
    shutil.copytree(folder / "weights", weights)
    shutil.copytree(folder / "weights", weights.parent / "run" / "run")  # the trainer's own, not rounded
    record = {"held_out": {"all": {"tau": {"6": 1.75}, "offline": 0.25}, "distinct": {"tau": {"6": 1.5}}}}
    weights.joinpath("run.json").write_text(json.dumps(record))
    ablations.Ablations(options(ablations, monkeypatch, *words)).run()
    rows = stripped(out)
    assert [row["variant"] for row in rows] == ["base", "float32"]
    assert rows[0]["validation"] == record["held_out"]
    assert rows[0]["bundle"] != rows[1]["bundle"] and rows[0]["row_bytes"] == rows[1]["row_bytes"]
    text = out.with_suffix(".md").read_text(encoding="utf-8")
    assert "| 1.75 / 0.25 |" in text and text.count("] | ") > 6
    monkeypatch.setattr(ablations.Ablations, "_measure", lambda self, variant: pytest.fail("measured again"))
    ablations.Ablations(options(ablations, monkeypatch, *words)).run()
    assert stripped(out) == rows


def test_variants_are_command_lines_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are distinct, every option is one of `train`, every value fits the field it sets."""
    ablations: Any = importlib.import_module("ablations")
    names = [variant.name for variant in ablations.VARIANTS]
    assert len(set(names)) == len(names) and names[0] == "base"
    for variant in ablations.VARIANTS:
        words = list(variant.words)
        while words:
            option = words.pop(0)
            if option == "--set":
                assert len(parse_overrides(MoaSettings, [words.pop(0)])) == 1
            elif option == "--loss":
                assert len(parse_overrides(TrainingPlan, [words.pop(0)])) == 1
            elif option == "--spans":
                assert words.pop(0) in SPANS
            else:
                assert option == "--staircase"
        command = ablations.train_command(variant, Path("x"), ["--minutes", "10"], ["corpus"])
        assert command[3:6] == ["train", "moa", "corpus"] and command[-len(variant.words) - 1 :][0] == "10"


def test_one_cache_of_states_serves_all_variants() -> None:
    """For a target of 30 layers it has every third layer, each variant's own, and the streams of N = 1 and 3."""
    from transformers import LlamaConfig

    ablations: Any = importlib.import_module("ablations")
    config = LlamaConfig(num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, hidden_size=576)
    words = ablations.shared_cache(config, Path("states"))
    assert words[:3] == ["--cache", "states", "--cache-layers"] and words[4:] == ["--cache-streams", "27,29"]
    assert {2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 27, 28} <= set(map(int, words[3].split(",")))
