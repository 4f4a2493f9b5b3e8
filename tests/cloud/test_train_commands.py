"""`outrider-cloud train moa` and `export` as a user calls them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cloud.cli import app
from outrider.cloud.train.cli import _refuse_idle
from outrider.cloud.train.record import commit
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
        (["--cache-gib", "0.000001"], "--cache-gib.*GiB"),
        (["--set", "lsa_layers=1,99"], "--set.*lsa_layers"),
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


@pytest.mark.parametrize(
    ("kind", "words", "option"),
    [
        ("eagle2", ["--spans", "short"], "--spans"),
        ("eagle2", ["--staircase"], "--staircase"),
        ("independent", ["--spans", "short"], "--spans"),
        ("medusa", ["--plan", "staircase=true"], "--staircase"),
        ("medusa", ["--loss", "features=on"], "--loss"),
    ],
)
def test_a_dial_without_effect_is_refused(tmp_path: Path, kind: str, words: list[str], option: str) -> None:
    """A kind that does not use a dial says so, naming kind and option, before anything is read."""
    command = ["train", kind, str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "out"), *words]
    with pytest.raises(ConfigError, match=f"{option}.*changes nothing in a drafter of kind {kind}"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_a_dial_with_effect_is_taken() -> None:
    """What a kind uses passes; cuts matter to an independent drafter once its attention ends where they begin."""
    for kind in ("moa", "glide"):
        _refuse_idle(kind, "short", True, ["features=on"])
    _refuse_idle("eagle2", None, False, ["features=on", "withheld_share=0.1"])
    _refuse_idle("medusa", "short", False, ["law=1"])
    _refuse_idle("independent", "short", True, ["features=on"])


def test_the_commit_is_that_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy has none, even inside another checkout, unless the environment says which."""
    monkeypatch.delenv("OUTRIDER_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    copy = tmp_path / "checkout" / "record.py"
    copy.parent.mkdir()
    copy.write_text("", encoding="utf-8")
    assert commit(copy) is None
    git = ["git", "-C", str(copy.parent), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "another"], check=True)
    assert commit(copy) is None
    subprocess.run([*git, "add", "record.py"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "tracked"], check=True)
    assert re.fullmatch("[0-9a-f]{40,64}", commit(copy) or "")
    monkeypatch.setenv("OUTRIDER_COMMIT", "abc123")
    assert commit(copy) == "abc123"


def test_a_folder_without_weights_is_a_setting_to_correct(tmp_path: Path) -> None:
    """Exporting what is no drafter names the folder."""
    target = make_target(tmp_path / "target")
    words = ["export", str(tmp_path / "nothing"), str(tmp_path / "x.onnx"), "--target", str(target)]
    with pytest.raises(ConfigError, match="nothing"):
        CliRunner().invoke(app, words, catch_exceptions=False)
