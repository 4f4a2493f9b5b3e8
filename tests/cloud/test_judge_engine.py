"""Judging on the real engine with a tiny target: the right states, the target's own text, commands end to end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from outrider.cloud.evaluate.chains import ChainDrafter
from outrider.cloud.evaluate.contenders import open_contender
from outrider.cloud.generate import generate
from outrider.cloud.judge import command
from outrider.cloud.judge.cli import app
from outrider.cloud.judge.engine_passes import EnginePasses
from outrider.cloud.judge.families import FAMILIES, Split
from outrider.cloud.judge.features import CandidateStates, NormTap, States, final_norm
from outrider.cloud.judge.fit import FitSetting
from outrider.cloud.judge.head import Feature, JudgeHead
from outrider.cloud.judge.measures import Measures
from outrider.cloud.judge.mine import Label, Mined, Source
from outrider.cloud.judge.passes import Feed, Line, together
from outrider.cloud.judge.records import LabelFile, read_labels
from outrider.cloud.judge.runs import RunSetting, rounds
from outrider.cloud.judge.workshop import Purpose, Workshop, families, make_tasks, open_workshop
from outrider.cloud.target import load_target
from outrider.cloud.worker import Worker
from outrider.shared.errors import ConfigError, EngineFailed
from tests.tiny import END_ID, make_target
from tests.tiny_bundle import make_bundle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target."""
    return make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
def shop(folder: Path) -> Iterator[Workshop]:
    """The tiny target with prompt lookup as its drafter."""
    made = open_workshop("n=ngram", str(folder), "float32", 1, lambda line: None)
    with made.passes:
        yield made


def test_states_are_those_around_the_final_norm(shop: Workshop) -> None:
    """The norm of the one is the other, at every row of a packed pass with drafts; the head's logits follow."""
    feeds = [Feed(1, 0, (5, 6, 7), (8, 9)), Feed(2, 0, (10, 11)), Feed(3, 0, (12,), (13,))]
    norm = final_norm(shop.target.model)
    for seen, feed in zip(shop.passes.look(feeds), feeds, strict=True):
        assert seen.prenorm.shape == seen.postnorm.shape == (len(feed.draft) + 1, shop.target.hidden_size)
        with torch.inference_mode():
            again = norm(torch.from_numpy(seen.prenorm)).numpy()
        np.testing.assert_allclose(again, seen.postnorm, atol=1e-6)
        for row in range(len(feed.draft) + 1):
            logits = shop.passes.logits(seen.states(row))
            np.testing.assert_allclose(logits, seen.logits[row], atol=1e-3)


def test_a_line_that_is_rewritten_sees_what_a_fresh_one_sees(shop: Workshop) -> None:
    """What a text saw after drafts were dropped and its end was rewritten has the bits of reading it at once."""
    line = Line(1)
    shop.passes.look([line.feed([5, 6, 7], [8, 9])])
    (rewritten,) = shop.passes.look([line.feed([5, 6, 7, 8, 20, 21], [30])])
    (fresh,) = shop.passes.look([Feed(2, 0, (5, 6, 7, 8, 20, 21), (30,))])
    np.testing.assert_array_equal(rewritten.logits, fresh.logits)
    np.testing.assert_array_equal(rewritten.prenorm, fresh.prenorm)


def test_rounds_without_a_criterion_are_the_target_alone(folder: Path, shop: Workshop) -> None:
    """Several prompts at once, lossless and without drafts: the very ids `generate` gives."""
    setting = RunSetting(tokens=10, depth=4, stops=frozenset({END_ID}), kept_out=frozenset({END_ID}))
    prompts = [[5, 6, 7, 5, 6], [40, 41, 40, 41, 40], [60]]
    scripts = [
        rounds(
            2 * i + way,
            Line(2 * i + way),
            prompt,
            shop.passes,
            shop.drafter() if way else None,
            None,
            setting,
        )
        for i, prompt in enumerate(prompts)
        for way in (0, 1)
    ]
    found = {tuple(run.tokens) for run in together(scripts, shop.passes, 4)}
    fresh = EnginePasses(load_target(folder), open_contender("n=ngram", shop.target))
    with fresh:
        worker = Worker(fresh._engine)
        expected = {tuple(generate(worker, prompt, max_tokens=10, stop_ids=(END_ID,))) for prompt in prompts}
    assert found == expected


def test_a_closed_tap_sees_nothing_more(folder: Path) -> None:
    """The hook leaves the model; a tap that never saw a pass says so."""
    target = load_target(folder)
    passes = EnginePasses(target, open_contender("n=ngram", target))
    with passes:
        passes.look([Feed(1, 0, (5, 6))])
    assert not final_norm(target.model)._forward_pre_hooks
    assert passes.rows(1, 0, 1) == []
    with pytest.raises(ValueError, match="no pass"):
        _ = NormTap().states
    with pytest.raises(ConfigError, match="no final norm"):
        final_norm(torch.nn.ModuleDict({"base_model": torch.nn.Identity()}))


def test_tasks_of_a_purpose_are_their_own() -> None:
    """Same seed, same tasks; no prompt twice; training, validation and test prompts never meet."""
    chosen = families(["gain", "reversal"])
    mined = make_tasks(chosen, 40, Purpose.MINE, 1, (Split.TRAIN, Split.VALIDATION))
    again = make_tasks(chosen, 40, Purpose.MINE, 1, (Split.TRAIN, Split.VALIDATION))
    compared = make_tasks(chosen, 40, Purpose.COMPARE, 1, (Split.TEST,))
    assert mined == again and len({task.prompt for task in mined}) == len(mined)
    assert {task.split for task in mined} == {Split.TRAIN, Split.VALIDATION}
    assert not {task.prompt for task in mined} & {task.prompt for task in compared}
    # Fifteen words, one test wording: the family runs out and says nothing twice.
    assert (
        sum(task.family == "reversal" for task in make_tasks(chosen, 80, Purpose.COMPARE, 1, (Split.TEST,)))
        == 15
    )
    with pytest.raises(ConfigError, match="--family: verbs is none of"):
        families(["verbs"])


def mine_request(out: Path, items: int = 2) -> command.MineRequest:
    """A short run."""
    return command.MineRequest(
        out=out, prompts=6, tokens=12, depth=3, width=4, items=items, min_target=0.0, min_gap=-1.0, seed=1
    )


def test_selection_and_mining_go_through_the_engine_and_resume(tmp_path: Path, shop: Workshop) -> None:
    """Every item and prompt has its row once, also when the run is started again; other settings are refused."""
    out, said = tmp_path / "labels.jsonl", list[str]()
    chosen = families(["gain", "choice"])
    abilities = command.select(shop, chosen, mine_request(out), said.append)
    assert [(one.family, one.items, one.kept) for one in abilities] == [
        ("gain", 2, True),
        ("choice", 2, True),
    ]
    assert command.select(shop, chosen, mine_request(out), said.append) == abilities
    counted = command.mine(shop, chosen, mine_request(out), said.append)
    assert {name: own["prompts"] for name, own in counted["families"].items()} == {"gain": 3, "choice": 3}
    before = out.read_bytes()
    assert command.mine(shop, chosen, mine_request(out), said.append) == counted
    assert out.read_bytes() == before
    assert read_labels(out).header["target"] == shop.target.weights.hex()
    with pytest.raises(ConfigError, match="families: begun with"):
        command.mine(shop, [FAMILIES["gain"]], mine_request(out), said.append)


def test_a_head_of_another_target_is_refused_before_anything_runs(tmp_path: Path, shop: Workshop) -> None:
    """The comparison names the field."""
    head = JudgeHead(
        weight=np.zeros(64),
        bias=0.0,
        delta=0.5,
        target="00" * 32,
        validation_auc=0.5,
        data_hash="00" * 32,
        class_weight=1.0,
        c=1.0,
    )
    head.save(tmp_path / "head.json")
    request = command.CompareRequest(
        head=tmp_path / "head.json",
        labels=[],
        delta=None,
        items=1,
        tokens=8,
        depth=3,
        width=2,
        seed=1,
        work=None,
    )
    with pytest.raises(ConfigError, match="--head: head.json: target: "):
        command.compare(shop, families(["gain"]), request, lambda line: None)


def test_states_of_a_label_are_picked_by_name() -> None:
    """Pre-norm and post-norm are not mixed up."""
    states = States(np.zeros(2, np.float32), np.ones(2, np.float32))
    assert states.of(Feature.PRENORM).sum() == 0 and states.of(Feature.POSTNORM).sum() == 2


def test_files_of_different_targets_are_not_fitted_on_together(tmp_path: Path) -> None:
    """A head is for one target."""
    for number, target in enumerate(("ab", "cd")):
        header = {"format": 1, "target": target * 32}
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(header) + "\n")
    with pytest.raises(ConfigError, match="labels of different targets"):
        command.train([tmp_path / "0.jsonl", tmp_path / "1.jsonl"], tmp_path / "head.json", FitSetting())


def planted_labels(path: Path, shop: Workshop) -> None:
    """A label file of the tiny target's width: good and bad far apart, on both splits."""
    rng = np.random.default_rng(2)
    file = LabelFile(path, {"target": shop.target.weights.hex(), "seed": 1})
    for index, task in enumerate(make_tasks(families(["gain"]), 24, Purpose.MINE, 1, list(Split)[:2])):
        labels = []
        for place in range(4):
            good = bool(rng.random() < 0.5)
            drawn = rng.normal(size=shop.target.hidden_size).astype(np.float32)
            drawn[:16] += 3.0 if good else -3.0
            states = States(drawn, drawn)
            found = Measures(float(rng.random()), 2, 1.0, 0.5, 0.1)
            labels.append(Label(place, 9, 8, good, Source.MINED, CandidateStates(states, states), found))
        file.add(Mined(index, task, "", "1", tuple(labels), 0))


def test_train_and_eval_go_through_the_commands(tmp_path: Path, folder: Path, shop: Workshop) -> None:
    """The head of planted labels is written, compared with every control on test wordings, and the work can resume."""
    labels, head = tmp_path / "labels.jsonl", tmp_path / "head.json"
    planted_labels(labels, shop)
    runner = CliRunner()
    trained = runner.invoke(app, ["train", str(labels), "--out", str(head)])
    assert trained.exit_code == 0, trained.output
    assert json.loads(trained.output)["learned"]
    assert JudgeHead.load(head, target=shop.target.weights.hex(), hidden=64).validation_auc > 0.95
    figures = tmp_path / "deep" / "figures.json"
    options = {
        "--head": head,
        "--labels": labels,
        "--drafter": "n=ngram",
        "--target": folder,
        "--items": 2,
        "--tokens": 8,
        "--work": tmp_path / "work.jsonl",
        "--json": figures,
    }
    line = ["eval", *(str(one) for pair in options.items() for one in pair)]
    first = runner.invoke(app, line)
    assert first.exit_code == 0, first.output
    found = json.loads(figures.read_text())
    names = [row["name"] for row in found["rows"]]
    assert names[:4] == ["target", "draft", "lossless", "judge"]
    assert set(names[4:]) == {"random", "probability", "rank", "entropy", "kl", "epsilon"}
    assert {row["prompts"] for row in found["rows"]} == {2}
    assert found["rows"][2]["same_text"] == 1.0
    again = runner.invoke(app, line)
    assert again.exit_code == 0 and json.loads(figures.read_text()) == found


@pytest.mark.parametrize("option", ["feature", "position"])
def test_an_unknown_choice_is_refused_by_its_option(tmp_path: Path, option: str) -> None:
    """Before any file is read."""
    result = CliRunner().invoke(app, ["train", "none.jsonl", "--out", "head.json", f"--{option}", "mean"])
    assert isinstance(result.exception, ConfigError) and str(result.exception).startswith(f"--{option}: mean")


def test_a_drafter_of_rewritten_text_drafts_as_a_fresh_one(tmp_path: Path) -> None:
    """Chains and confidences after rollbacks, with rows cut and given again, are those of starting there at once."""
    make_bundle(tmp_path, int8=False)  # int8 scales depend on how many tokens are fed at once
    target = load_target(tmp_path / "target")
    contender = open_contender(f"moa={tmp_path / 'drafter.onnx'}@{tmp_path / 'weights'}", target)
    used = ChainDrafter(contender.make())
    with EnginePasses(target, contender) as passes:
        for ids in ([5, 6, 7, 8, 9, 10], [5, 6, 7, 20, 21], [5, 6, 7, 20, 21, 22, 23], [30, 31, 32]):
            passes.look([Feed(1, 0, tuple(ids))])
            whole = passes.rows(1, 0, len(ids) - 1)
            parts = [passes.rows(1, 0, 2), passes.rows(1, 2, 2), passes.rows(1, 2, len(ids) - 1)]
            for plane, values in enumerate(whole):
                joined = np.concatenate([part[plane] for part in parts])
                np.testing.assert_allclose(joined, values, rtol=1e-5, atol=1e-5)
            chain, sure, law = used.propose(ids, whole, 4)
            fresh_chain, fresh_sure, _ = ChainDrafter(contender.make()).propose(ids, whole, 4)
            assert chain == fresh_chain and len(chain) == 4 and all(0 <= one <= 1 for one in sure)
            np.testing.assert_allclose(sure, fresh_sure, rtol=1e-4)
            for place, token in enumerate(
                chain
            ):  # what it would draw from there has the chain's token on top
                found = law(place)
                assert found is not None and max(zip(found.counts, found.ids, strict=True))[1] == token
            again, as_sure, _ = used.propose(ids, whole, 4)
            assert again == chain and as_sure == pytest.approx(sure, rel=1e-4)
        used.propose([30, 31], [values[:1] for values in whole], 4)
        with pytest.raises(ValueError, match="rewritten"):
            law(0)
        with pytest.raises(EngineFailed, match="does not hold"):
            passes.rows(1, 0, 50)
