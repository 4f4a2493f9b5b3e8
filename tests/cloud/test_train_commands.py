"""`outrider-cloud train moa` and `export` as a user calls them."""

from __future__ import annotations

import json
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
        "--minutes",
        "0.02",
    ]
    words += ["--vocabulary", "280", "--answer-tokens", "6", "--max-length", "64", "--batch-texts", "4"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "held-out answers" in done.output
    done = CliRunner().invoke(app, ["export", str(weights), str(bundle), "--target", str(target)])
    assert done.exit_code == 0, done.output
    assert bundle.stat().st_size > 10_000


def test_a_missing_corpus_is_a_setting_to_correct(tmp_path: Path) -> None:
    """A file that is not there is named, with what to do."""
    target = make_target(tmp_path / "target")
    words = ["train", "moa", str(tmp_path / "none.jsonl"), "--out", str(tmp_path), "--target", str(target)]
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_a_folder_without_weights_is_a_setting_to_correct(tmp_path: Path) -> None:
    """Exporting what is no drafter names the folder."""
    target = make_target(tmp_path / "target")
    words = ["export", str(tmp_path / "nothing"), str(tmp_path / "x.onnx"), "--target", str(target)]
    with pytest.raises(ConfigError, match="nothing"):
        CliRunner().invoke(app, words, catch_exceptions=False)
