"""Corpora, cached states, the resumable loop, and the reading of validation tables."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider.cloud.moa.config import WEIGHTS_FILE
from outrider.cloud.moa.device_half import DeviceHalf
from outrider.cloud.moa.init import TargetWeights, frozen_target
from outrider.cloud.train.answers import ready_corpus
from outrider.cloud.train.blocks import regular_text
from outrider.cloud.train.calibrate import GRID, kappa_losses
from outrider.cloud.train.command import TrainingRequest, fresh_drafter, target_config, train_moa
from outrider.cloud.train.corpus import Example, distinct_fraction, hold_out, read_examples, user_turn
from outrider.cloud.train.losses import LossOptions, distill
from outrider.cloud.train.states import StateCache
from outrider.cloud.train.trainer import Trainer, TrainingPlan
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
    drafter = fresh_drafter(target, answers, vocabulary_size=280, seed=1, num_sa_layers=1, num_tli_layers=1)
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


def test_states_are_the_targets(tmp_path: Path, target: Path) -> None:
    """Cached states equal a forward pass of each text alone, up to bfloat16 batching noise."""
    examples = make_examples(5)
    cache = StateCache(tmp_path, examples, (1, 3), 2, target_config(target))
    with pytest.raises(KeyError):
        cache.get(0)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    cache.fill(range(5), model, batch_tokens=40)
    assert cache.missing(range(5)) == []
    for row in range(5):
        states = cache.get(row)
        ids = torch.from_numpy(examples[row].ids.astype(np.int64))[None]
        with torch.no_grad():
            out = model.model(input_ids=ids, use_cache=True, output_hidden_states=True)
        keys = out.cache.layers[3].keys[0].transpose(0, 1).flatten(1)
        torch.testing.assert_close(states.kv[:, 1, 0].float(), keys, atol=0.05, rtol=0.02)
        torch.testing.assert_close(states.stream.float(), out.hidden_states[2][0], atol=0.5, rtol=0.02)
        torch.testing.assert_close(states.final.float(), out.last_hidden_state[0], atol=0.05, rtol=0.02)


def test_states_of_other_text_are_refused(tmp_path: Path, target: Path) -> None:
    """A cache belongs to one corpus; fewer layers of it may be read."""
    StateCache(tmp_path, make_examples(4), (1, 3), 2, target_config(target))
    assert StateCache(tmp_path, make_examples(4), (3,), 2, target_config(target)).layers == (3,)
    with pytest.raises(ValueError, match="another folder"):
        StateCache(tmp_path, make_examples(5), (1, 3), 2, target_config(target))


def test_distill_gradient_is_autograds() -> None:
    """Loss and hand-made gradient equal the plain formula."""
    generator = torch.Generator().manual_seed(0)
    x, teacher = (torch.randn(9, 8, generator=generator) for _ in range(2))
    head, weights = torch.randn(20, 8, generator=generator), torch.rand(9, generator=generator)
    mine, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss, agreed = distill(mine, teacher, head, weights, LossOptions(argmax_share=0.2))
    loss.backward()
    wanted = teacher @ head.T
    law = 0.8 * wanted.softmax(-1) + 0.2 * torch.nn.functional.one_hot(wanted.argmax(-1), 20)
    straight = -(weights * (law * (plain @ head.T).log_softmax(-1)).sum(-1)).sum()
    straight.backward()
    torch.testing.assert_close(loss, straight)
    torch.testing.assert_close(mine.grad, plain.grad)
    assert agreed.tolist() == ((x @ head.T).argmax(-1) == wanted.argmax(-1)).tolist()


def test_resumed_run_is_the_uninterrupted_one(tmp_path: Path, target: Path) -> None:
    """Two steps, a stop, two more give the weights of four steps in a row."""
    plan = TrainingPlan(minutes=1e9, batch_texts=4, feature_weight=0.0)
    whole = trainer_for(tmp_path / "whole", target, tmp_path / "states", plan)
    for _ in range(4):
        whole.step()
    first = trainer_for(tmp_path / "parts", target, tmp_path / "states", plan)
    first.step(), first.step()
    first.checkpoint()
    second = trainer_for(tmp_path / "parts", target, tmp_path / "states", plan)
    assert second.resume()
    second.step(), second.step()
    for name, tensor in whole.drafter.state_dict().items():
        torch.testing.assert_close(second.drafter.state_dict()[name], tensor, msg=name)


def test_training_learns(tmp_path: Path, target: Path) -> None:
    """The loss on a handful of texts falls."""
    plan = TrainingPlan(minutes=1e9, batch_texts=14, warmup_steps=1)
    trainer = trainer_for(tmp_path / "run", target, tmp_path / "states", plan)
    losses = [trainer.step().law.item() for _ in range(25)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.05


def test_corrections_merge_into_the_frozen_layers(tmp_path: Path, target: Path) -> None:
    """Merged weights compute what the corrected layers computed in training."""
    trainer = trainer_for(tmp_path / "run", target, tmp_path / "states", TrainingPlan(minutes=1.0))
    drafter = trainer.drafter
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
    ranks = true_ranks(drafter, trainer.frozen, vocabulary, ids, kv, 4, 3)
    for begin in range(4, 11):
        text = regular_text(ids, kv, 4, 100, begin - 4)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            logits = trainer.frozen.head(drafter([text], trainer.frozen).final)
        for depth in range(min(3, 11 - begin)):
            four = vocabulary[logits[begin + depth - 4].float().topk(4).indices].tolist()
            truth = int(ids[begin + depth + 1])
            wanted = four.index(truth) if truth in four else 4
            assert int(ranks[begin - 4, depth]) == wanted


def test_kappa_prefers_the_true_temperature() -> None:
    """Tokens drawn at temperature 1.5 are likeliest under kappa 1.5."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4000, 16, generator=generator) * 2
    truth = torch.multinomial((logits / 1.5).softmax(-1), 1, generator=generator)[:, 0] * 3
    best = GRID[int(kappa_losses(logits, truth, torch.arange(0, 48, 3)).argmin())]
    assert best == pytest.approx(1.5, abs=0.11)


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
        plan=TrainingPlan(minutes=0.02, batch_texts=2),
        vocabulary_size=280,
        held_out=1,
    )
    quality = train_moa(request, lambda line: None)
    assert 1.0 <= quality.tau[6] <= 7.0
    assert (tmp_path / "weights" / WEIGHTS_FILE).exists()
