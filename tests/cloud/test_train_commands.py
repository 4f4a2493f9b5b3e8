"""`outrider-cloud train moa` and `export` as a user calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cloud.cli import app
from outrider.shared.errors import ConfigError
from tests.tiny import make_target


def test_train_then_export(tmp_path: Path) -> None:
    """A corpus of prompts becomes weights and then a bundle, with two commands."""
    target = make_target(tmp_path / "target")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"tell me {i}"}) for i in range(60)), encoding="utf-8")
    weights, bundle = tmp_path / "weights", tmp_path / "drafter.onnx"
    words = [
        "train",
        "moa",
        str(prompts),
        "--out",
        str(weights),
        "--target",
        str(target),
        "--no-compile",
    ]
    words += ["--minutes", "0", "--tokens", "60", "--batch-tokens", "30", "--seed", "3"]
    words += ["--vocabulary", "280", "--answer-tokens", "6", "--max-length", "64", "--held-out", "2"]
    words += ["--set", "num_sa_layers=1", "--loss", "top=0.5", "--spans", "no-whole", "--plan", "short=2,4"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "held-out answers" in done.output
    assert re.search(r"target states: .* GiB", done.output)
    record = json.loads((weights / "run.json").read_text())
    assert (record["seed"], record["plan"]["top"], record["settings"]["num_sa_layers"]) == (3, 0.5, 1)
    assert record["plan"]["mix"]["short"] == [2, 4]
    assert record["plan"]["mix"]["whole_share"] == 0.0
    done = CliRunner().invoke(app, ["export", str(weights), str(bundle), "--target", str(target)])
    assert done.exit_code == 0, done.output
    assert bundle.stat().st_size > 10_000


def test_a_missing_corpus_is_a_setting_to_correct(tmp_path: Path) -> None:
    """A file that is not there is named, with what to do."""
    target = make_target(tmp_path / "target")
    words = ["train", "moa", str(tmp_path / "none.jsonl"), "--out", str(tmp_path), "--target", str(target)]
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--set", "num_sa_layers=x"], "num_sa_layers: expected a whole number"),
        (["--set", "depth=1"], "depth: no such setting"),
        (["--plan", "muon_rate"], "expected name=value"),
        (["--loss", "features=some"], "annealed, on, off"),
        (["--spans", "wide"], "wide"),
        (["--minutes", "0", "--tokens", "0"], "minutes or tokens"),
        (["--cache-layers", "1,x"], "comma-separated"),
        (["--cache-gib", "0.000001"], "GiB"),
        (["--set", "lsa_layers=1,99"], "lsa_layers"),
    ],
)
def test_a_dial_that_cannot_be_is_named(tmp_path: Path, words: list[str], complaint: str) -> None:
    """Every mistake in an option is refused before anything is trained, naming what to correct."""
    target = make_target(tmp_path / "target")
    rows = [{"prompt_ids": [1, 5, n], "answer_ids": [7, n, 9, 10]} for n in range(20, 80)]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    command = ["train", "moa", str(corpus), "--out", str(tmp_path / "out"), "--target", str(target)]
    command += ["--vocabulary", "280", "--tokens", "60", "--no-compile", *words]
    with pytest.raises(ConfigError, match=complaint):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert not (tmp_path / "out" / "run.json").exists()


def test_a_folder_without_weights_is_a_setting_to_correct(tmp_path: Path) -> None:
    """Exporting what is no drafter names the folder."""
    target = make_target(tmp_path / "target")
    words = ["export", str(tmp_path / "nothing"), str(tmp_path / "x.onnx"), "--target", str(target)]
    with pytest.raises(ConfigError, match="nothing"):
        CliRunner().invoke(app, words, catch_exceptions=False)
