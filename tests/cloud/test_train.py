"""Corpora, cached states, the resumable loop, and the reading of validation tables."""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from outrider.cloud.kinds.base import Text
from outrider.cloud.kinds.registry import of_kind
from outrider.cloud.kinds.settings import WEIGHTS_FILE
from outrider.cloud.kinds.target import TargetWeights, frozen_target
from outrider.cloud.moa.device_half import DeviceHalf
from outrider.cloud.moa.drafter import MoaDrafter
from outrider.cloud.train.answers import ready_corpus
from outrider.cloud.train.blocks import regular_text
from outrider.cloud.train.command import TrainingRequest, fresh_drafter, target_config, train_drafter
from outrider.cloud.train.corpus import Example, distinct_fraction, hold_out, read_examples, user_turn
from outrider.cloud.train.plan import TrainingPlan
from outrider.cloud.train.states import StateCache
from outrider.cloud.train.trainer import Trainer
from outrider.cloud.train.validate import true_ranks, walk_rounds
from tests.tiny import make_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target folder."""
    return make_target(tmp_path_factory.mktemp("target"))


def make_examples(count: int) -> list[Example]:
    """Short random texts, every second one greedy."""
    generator = np.random.default_rng(0)
    return [
        Example(
            generator.integers(3, 200, int(generator.integers(3, 7))).astype(np.int32),
            generator.integers(3, 200, int(generator.integers(8, 15))).astype(np.int32),
            float(i % 2),
        )
        for i in range(count)
    ]


def write_corpus(path: Path, examples: list[Example]) -> Path:
    """A gzip JSON-lines corpus."""
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        for e in examples:
            row = {"prompt_ids": e.prompt_ids.tolist(), "answer_ids": e.answer_ids.tolist()}
            stream.write(json.dumps({**row, "temperature": e.temperature}) + "\n")
    return path


def trainer_for(folder: Path, target: Path, states: Path, plan: TrainingPlan) -> Trainer:
    """A trainer on sixteen texts; the target is loaded from its folder when asked for."""
    examples = make_examples(16)
    training, validation = hold_out(examples, 2)
    answers = [e.answer_ids for e in examples]
    drafter = fresh_drafter(
        target, answers, vocabulary_size=280, seed=plan.seed, num_sa_layers=1, num_tli_layers=1
    )
    s = drafter.settings
    cache = StateCache(states, examples, s.needed_layers, s.stream_layer, target_config(target))
    frozen = frozen_target(s, TargetWeights(target), s.draft_vocabulary)
    return Trainer(folder, plan, drafter, frozen, cache, examples, training, validation, lambda: load(target))


def load(target: Path) -> Any:
    """The tiny target, bfloat16."""
    return AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16).eval()


def test_corpus_round_trip_and_cut(tmp_path: Path) -> None:
    """Rows come back as written, and long answers are cut to the allowed length."""
    examples = make_examples(6)
    again = read_examples(write_corpus(tmp_path / "c.jsonl.gz", examples), 12)
    assert len(again) == 6
    for one, other in zip(examples, again, strict=True):
        np.testing.assert_array_equal(one.prompt_ids, other.prompt_ids)
        np.testing.assert_array_equal(one.ids[:12], other.ids)


def test_corpus_names_a_broken_row(tmp_path: Path) -> None:
    """A bad row is reported with file and line."""
    path = tmp_path / "c.jsonl"
    path.write_text('{"prompt_ids": [1], "answer_ids": [2, 3]}\n{oops\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"c\.jsonl:2"):
        read_examples(path, 10)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"prompt": "a"}, "a"),
        ({"turns": ["b", "c"]}, "b"),
        ({"question": "d"}, "d"),
        ({"instruction": "e", "input": "f"}, "e\n\nf"),
        ({"instruction": "e", "input": ""}, "e"),
    ],
)
def test_every_form_of_prompt(row: dict[str, Any], text: str) -> None:
    """All known prompt forms give their first user turn."""
    assert user_turn(row) == text


def test_unknown_prompt_form_is_named() -> None:
    """A row of another form is refused with its keys."""
    with pytest.raises(ValueError, match="text"):
        user_turn({"text": "x"})


def test_no_prompt_is_on_both_sides() -> None:
    """Held-out prompts never occur in training, whatever the order of rows."""
    examples = make_examples(20)
    examples.append(Example(examples[0].prompt_ids, examples[1].answer_ids, 1.0))
    training, validation = hold_out(examples, 4)
    prompts = {examples[i].prompt_ids.tobytes() for i in training}
    assert len(validation) == 4
    assert not prompts & {examples[i].prompt_ids.tobytes() for i in validation}
    _, backwards = hold_out(examples[::-1], 4)
    assert {examples[::-1][i].prompt_ids.tobytes() for i in backwards} == {
        examples[i].prompt_ids.tobytes() for i in validation
    }


def test_distinct_fraction_sees_loops() -> None:
    """A loop has few distinct 4-grams, running numbers have all."""
    assert distinct_fraction(np.arange(50, dtype=np.int32)) == 1.0
    assert distinct_fraction(np.tile(np.arange(5, dtype=np.int32), 20)) < 0.1


def weights_after(trainer: Trainer, steps: int) -> dict[str, Tensor]:
    """All weights and statistics after so many steps."""
    for _ in range(steps):
        trainer.step()
    return {name: tensor.clone() for name, tensor in trainer.drafter.state_dict().items()}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Equal to the bit."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def test_resumed_run_is_the_uninterrupted_one(tmp_path: Path, target: Path) -> None:
    """A stop in the middle of a pass over the corpus, and one at its end, change no bit of the weights."""
    plan = TrainingPlan(tokens=400, batch_tokens=60, features="annealed", staircase=True)
    whole = trainer_for(tmp_path / "whole", target, tmp_path / "states", plan)
    wanted = weights_after(whole, 6)
    assert whole.progress.turn == 1
    for stop in (2, 5):
        folder = tmp_path / f"stop{stop}"
        first = trainer_for(folder, target, tmp_path / "states", plan)
        weights_after(first, stop)
        first.checkpoint()
        second = trainer_for(folder, target, tmp_path / "states", plan)
        assert second.resume()
        assert_same(weights_after(second, 6 - stop), wanted)
        assert second.progress.answer_tokens == whole.progress.answer_tokens


def test_trap_b13_one_seed_is_one_set_of_weights(tmp_path: Path, target: Path) -> None:
    """Two runs of one seed agree to the bit; another seed starts and ends elsewhere."""
    runs = {}
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        plan = TrainingPlan(tokens=400, batch_tokens=60, seed=seed)
        runs[name] = weights_after(trainer_for(tmp_path / name, target, tmp_path / "states", plan), 2)
    assert_same(runs["a"], runs["b"])
    assert any(not torch.equal(runs["a"][name], runs["c"][name]) for name in runs["a"])


def test_a_budget_of_tokens_ends_with_the_step_that_reaches_it(tmp_path: Path, target: Path) -> None:
    """Tokens trained on reach the budget in the last step and not before; a finished run does nothing more."""
    plan = TrainingPlan(tokens=300, batch_tokens=50, validate_minutes=1e9)
    trainer = trainer_for(tmp_path / "run", target, tmp_path / "states", plan)
    seen = [0]
    trainer.run(lambda line: None, lambda share, words: seen.append(trainer.progress.answer_tokens))
    assert seen[-2] < 300 <= seen[-1]
    assert all(after - before <= 50 for before, after in itertools.pairwise(seen))
    again = trainer_for(tmp_path / "run", target, tmp_path / "states", plan)
    assert again.resume()
    assert again.share == 1.0
    again.run(lambda line: None)
    assert again.progress.step == trainer.progress.step


def test_a_run_goes_on_with_the_shapes_it_began_with(tmp_path: Path, target: Path) -> None:
    """A folder with another drafter's run is refused, and the setting that differs is named."""
    plan = TrainingPlan(tokens=100, batch_tokens=60)
    trainer = trainer_for(tmp_path / "run", target, tmp_path / "states", plan)
    trainer.checkpoint()
    other = replace(trainer.drafter.settings, kappa=0.5)
    other.save(tmp_path / "run")
    with pytest.raises(ValueError, match="kappa"):
        trainer_for(tmp_path / "run", target, tmp_path / "states", plan).resume()


def test_trap_b7_a_step_leaves_its_teachers_alone(tmp_path: Path, target: Path) -> None:
    """Target states are bitwise the same after a step as before."""
    plan = TrainingPlan(tokens=400, batch_tokens=1000)
    trainer = trainer_for(tmp_path / "run", target, tmp_path / "states", plan)
    trainer.step()
    rows = [row for row in range(16) if not trainer._cache.missing([row])]
    assert len(rows) == 14
    before = [trainer._cache.get(row) for row in rows]
    copies = [(s.kv.clone(), s.final.clone()) for s in before]
    trainer.step()
    for row, (kv, final) in zip(rows, copies, strict=True):
        again = trainer._cache.get(row)
        assert torch.equal(again.kv, kv)
        assert torch.equal(again.final, final)


def test_training_learns(tmp_path: Path, target: Path) -> None:
    """The loss on a handful of texts falls, with every choice of loss."""
    choices: list[dict[str, Any]] = [{}, {"law": 0.0, "top": 1.0}, {"features": "on"}, {"features": "off"}]
    for number, choice in enumerate(choices):
        plan = TrainingPlan(tokens=10**6, batch_tokens=1000, warmup_steps=1, **choice)
        trainer = trainer_for(tmp_path / str(number), target, tmp_path / "states", plan)
        losses = [trainer.step().law.item() for _ in range(25)]
        assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.05


def test_corrections_merge_into_the_frozen_layers(tmp_path: Path, target: Path) -> None:
    """Merged weights compute what the corrected layers computed in training."""
    trainer = trainer_for(tmp_path / "run", target, tmp_path / "states", TrainingPlan(minutes=1.0))
    drafter = of_kind(trainer.drafter, MoaDrafter)
    with torch.no_grad():
        for parameter in drafter.corrections.parameters():
            parameter.normal_(0.0, 0.1)
    s = drafter.settings
    merged = drafter.merge(frozen_target(s, TargetWeights(target), s.draft_vocabulary))
    kv = torch.randn(12, len(s.needed_layers), 2, s.kv_width)
    text = regular_text(torch.randint(200, (12,)), kv, 3, 4, 0)
    with torch.no_grad():
        corrected = drafter([text], trainer.frozen).final
        torch.testing.assert_close(corrected, drafter([text], merged).final, atol=1e-3, rtol=1e-3)
    assert DeviceHalf(drafter, merged).settings is s


def test_rounds_are_walked_by_accepted_prefixes() -> None:
    """Rounds over a table of matches: accepted prefix plus one token each."""
    ranks = torch.full((10, 4), 4)
    ranks[0, :2] = 0  # emits 3
    ranks[3, 0] = 0  # emits 2
    ranks[5, :4] = 0  # emits 4 + 1 of a chain of 4, 3 of a chain of 2
    assert walk_rounds(ranks, 4) == 3
    # With chains of two: 0..2, 3..4, 5..7, then 8 and 9 one by one.
    assert walk_rounds(ranks, 2) == 5


def test_ranks_cover_every_begin_and_depth(tmp_path: Path, target: Path) -> None:
    """The table of matches equals drafting after every single last row."""
    trainer = trainer_for(tmp_path / "run", target, tmp_path / "states", TrainingPlan(minutes=1.0))
    drafter, s = trainer.drafter, trainer.drafter.settings
    vocabulary = torch.tensor(s.draft_vocabulary)
    kv = torch.randn(12, len(s.needed_layers), 2, s.kv_width)
    ids = torch.randint(200, (12,))
    whole = Text(ids, kv, 4, torch.full((8,), 4))
    (ranks,) = true_ranks(drafter, trainer.frozen, [whole], 3)
    for begin in range(4, 11):
        text = regular_text(ids, kv, 4, 100, begin - 4)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            logits = trainer.frozen.head(drafter([text], trainer.frozen).final)
        for depth in range(min(3, 11 - begin)):
            four = vocabulary[logits[begin + depth - 4].float().topk(4).indices].tolist()
            truth = int(ids[begin + depth + 1])
            wanted = four.index(truth) if truth in four else 4
            assert int(ranks[begin - 4, depth]) == wanted


def test_command_answers_trains_and_writes_weights(tmp_path: Path, target: Path) -> None:
    """From bare prompts to a weights folder: the target answers, the run is kept, the weights load."""
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"say {i}"} for i in range(6)]
    prompts.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    work = tmp_path / "work"
    files = ready_corpus([prompts], target, work, 12, 64, 2, 1, lambda line: None)
    assert len(read_examples(files[0], 64)) >= 4
    request = TrainingRequest(
        target=target,
        corpus=files,
        out=tmp_path / "weights",
        work=work,
        plan=TrainingPlan(tokens=30, batch_tokens=20),
        vocabulary_size=280,
        held_out=1,
    )
    quality = train_drafter(request, lambda line: None)
    assert 1.0 <= quality.tau[6] <= 7.0
    assert (tmp_path / "weights" / WEIGHTS_FILE).exists()
    assert (tmp_path / "weights" / "log.csv").read_text().startswith("step,minutes,answer_tokens,law")
    record = json.loads((tmp_path / "weights" / "run.json").read_text())
    assert (record["seed"], record["kind"]) == (1, "moa")
    assert record["answer_tokens"] >= 30
    assert record["held_out"]["all"]["texts"] == 1
    assert json.loads((tmp_path / "weights" / "drafter.json").read_text())["kind"] == "moa"
