"""The evaluation from end to end on a tiny target and random bundles: the command, its figures, its refusals."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from outrider.client.drafter import Budget
from outrider.cloud.cli import app
from outrider.cloud.evaluate import evaluation
from outrider.cloud.evaluate.contenders import Contender, open_contender
from outrider.cloud.evaluate.prompts import PromptSet
from outrider.cloud.evaluate.rounds import CHAINS, DEPTH, TREES, Case, measure_rounds, run
from outrider.cloud.evaluate.texts import TextStore
from outrider.cloud.export.cached import cached_bundle
from outrider.cloud.local import speculate
from outrider.cloud.target import Target, load_target
from outrider.cloud.worker import Worker
from outrider.shared.codec import row_bytes
from outrider.shared.errors import ConfigError
from outrider.shared.tokenizer import Tokenizer
from tests.tiny_bundle import make_bundle

SETS = [PromptSet("qa", ("Who?", "Where is it?", "When?")), PromptSet("code", ("def f(x):", "def g(y):"))]
PLANS = [evaluation.Plan(per_set=2, tokens=12), evaluation.Plan(per_set=2, tokens=12, temperature=1.0)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target/, weights/ and drafter.onnx."""
    folder = tmp_path_factory.mktemp("evaluate")
    make_bundle(folder)
    return folder


@pytest.fixture(scope="module")
def target(folder: Path) -> Target:
    """The tiny target."""
    return load_target(folder / "target")


@pytest.fixture(scope="module")
def store(target: Target, tmp_path_factory: pytest.TempPathFactory) -> TextStore:
    """Texts of all tests here."""
    return TextStore(target, tmp_path_factory.mktemp("texts"))


def moa(folder: Path, target: Target) -> Contender:
    """The random drafter."""
    return open_contender(f"moa={folder / 'drafter.onnx'}@{folder / 'weights'}", target)


def asked(store: TextStore, plan: evaluation.Plan) -> list[evaluation.Question]:
    """The target's texts."""
    tokenizer = Tokenizer.from_folder(store.target.folder)
    return evaluation.questions(SETS, plan, store, tokenizer, lambda line: None)


@pytest.mark.parametrize("plan", PLANS)
def test_rounds_here_are_the_rounds_with_the_target(
    folder: Path, target: Target, store: TextStore, plan: evaluation.Plan
) -> None:
    """Without rows, tokens per round equal those of the local loop, in which the target itself judges each draft."""
    drafter = moa(folder, target).make()
    worker = Worker(store.engine)
    for question in asked(store, plan)[:2]:
        text = question.text
        case = Case(ids=text.ids, prompt=text.prompt, tokens=plan.tokens, sampling=plan.sampling)
        for budget in (
            Budget(4, 4, sampling=plan.sampling),
            Budget(8, DEPTH, tree=True, sampling=plan.sampling),
        ):
            tokens, rounds = run(drafter, case, budget)
            begun = text.ids[: text.prompt + 1]
            real = speculate(worker, drafter, budget, begun, max_new=int(tokens), sampling=plan.sampling)
            assert (
                len(real.accepted) == rounds and tuple(real.ids) == text.ids[text.prompt + 1 :][: int(tokens)]
            )


@pytest.mark.parametrize("plan", PLANS)
def test_chains_walked_over_one_drafting_are_those_drafted(
    folder: Path, target: Target, store: TextStore, plan: evaluation.Plan
) -> None:
    """With rows, on the graph: the chain of eight cut to four or six is what a budget of four or six drafts."""
    contender = moa(folder, target)
    for question in asked(store, plan):
        text = question.text
        case = Case(
            ids=text.ids, prompt=text.prompt, tokens=12, rows=contender.rows(text), sampling=plan.sampling
        )
        walked = measure_rounds(contender.make(), case)
        drafted = measure_rounds(contender.make(), case, nested=False)
        assert walked == drafted


def test_rows_pass_through_their_wire_encoding(folder: Path, target: Target, store: TextStore) -> None:
    """One row per stated position and plane, int8-coarse beside the exact ones; their bytes are those of the wire."""
    contender = moa(folder, target)
    text = asked(store, PLANS[0])[0].text
    rows = contender.rows(text)
    assert [plane.shape for plane in rows] == [(text.stated, plane.width) for plane in contender.planes]
    assert contender.row_bytes == sum(row_bytes(plane) for plane in contender.planes) > 0
    keys, values = text.kv(3)
    exact = np.concatenate(
        [part.transpose(0, 1).flatten(1).float().numpy() for part in (keys, values)], axis=1
    )
    error = np.abs(rows[-1] - exact)
    assert 0 < error.max() <= np.abs(exact).max() / 127


def test_the_command_measures_all_and_writes_it_down(folder: Path, tmp_path: Path) -> None:
    """Three drafters, both kinds of draft, offline: every figure has a value and an interval, tables and JSON agree."""
    prompts = tmp_path / "qa.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Who is {n}?"}) + "\n" for n in range(3)))
    out = tmp_path / "out.json"
    bundle = f"{folder / 'drafter.onnx'}@{folder / 'weights'}"
    command = ["eval", "drafters", "--prompts", str(prompts), "--target", str(folder / "target"), "--offline"]
    command += ["--bundle", f"moa={bundle}", "--bundle", "ngram=ngram", "--bundle", f"both=hybrid:{bundle}"]
    command += ["--per-set", "2", "--tokens", "10", "--offline-tokens", "30", "--dtype", "float32"]
    command += ["--json", str(out), "--texts", str(tmp_path / "texts")]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [row["kind"] for row in found["rows"]] == ["moa", "ngram", "hybrid"]
    assert found["settings"]["sets"] == {"qa": {"rows": 3, "doubles": 0}}
    for row in found["rows"]:
        for name in (*(f"tau_chain{n}" for n in CHAINS), *(f"tau_tree{n}" for n in TREES), "standalone_20"):
            low, high = row["intervals"][name]
            assert low <= row[name] <= high
            assert row["categories"]["qa"][name] == [row[name], low, high]
        assert len(row["acceptance"]) == DEPTH and row["categories"]["qa"]["prompts"] == 2
    moa_row = found["rows"][0]
    assert moa_row["step_ms"] > 0 and moa_row["tree_pass_ms"] > 0 and moa_row["parameters"] > 0
    assert {"nll_free_1_4", "nll_forced_1_4", "nll_text_1_4", "agree_1_4"} <= set(moa_row)
    assert f"{moa_row['tau_chain6']:.2f}" in done.output and "| ngram |" in done.output


def test_what_does_not_belong_together_is_refused(folder: Path, target: Target, tmp_path: Path) -> None:
    """No name, no file, no weights beside a bundle, weights of another drafter, a bundle for another target."""
    other = make_bundle(tmp_path / "other", seed=1)
    bundle = folder / "drafter.onnx"
    for spec, why in (
        ("moa", "expected NAME=WHAT"),
        (f"moa={tmp_path / 'none.onnx'}@{folder / 'weights'}", "none.onnx"),
        (f"moa={bundle}", "no drafter.json"),
        (f"moa={bundle}@{tmp_path / 'other' / 'weights'}", "other drafter weights"),
        (f"moa={other}@{tmp_path / 'other' / 'weights'}", "another target"),
        (f"moa={tmp_path}", "drafter.json"),
    ):
        with pytest.raises(ConfigError, match="--bundle") as raised:
            open_contender(spec, target)
        assert why in str(raised.value), spec


def test_a_weights_folder_is_exported_once(
    folder: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle of a folder comes from the cache the second time."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    first = open_contender(f"moa={folder / 'weights'}", target)
    assert first.bundle is not None
    stamp = first.bundle.stat().st_mtime_ns
    again = open_contender(f"moa={folder / 'weights'}", target)
    assert again.bundle == first.bundle and again.digest == first.digest
    assert first.bundle.stat().st_mtime_ns == stamp
    assert cached_bundle(folder / "weights", target) == first.bundle


def test_a_cached_bundle_belongs_to_its_tokenizer_artefact(
    folder: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed chat template or end id is another bundle, and so is another precision; a mere copy is not."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("outrider.cloud.export.bundle.export_bundle", lambda *_, **__: None)
    copy = tmp_path / "target"
    shutil.copytree(target.folder, copy)
    moved = replace(target, folder=copy)
    weights = folder / "weights"
    seen = [cached_bundle(weights, target), cached_bundle(weights, target, int8=False)]
    assert cached_bundle(weights, moved) == seen[0]
    (copy / "chat_template.jinja").write_text("{{ messages }}, said otherwise", encoding="utf-8")
    seen.append(cached_bundle(weights, moved))
    (copy / "generation_config.json").write_text('{"eos_token_id": [2, 17]}', encoding="utf-8")
    seen.append(cached_bundle(weights, moved))
    assert len(set(seen)) == 4
