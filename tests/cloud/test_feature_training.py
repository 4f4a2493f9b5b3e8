"""EAGLE-2 and Medusa in the real trainer: they learn, resume to the bit, and end as weights that validate."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.cloud.kinds.target import TargetWeights, frozen_target
from outrider.cloud.kinds.weights import load_drafter
from outrider.cloud.train.command import (
    LazyTarget,
    TrainingRequest,
    fresh_drafter,
    target_config,
    train_drafter,
)
from outrider.cloud.train.corpus import Example, hold_out
from outrider.cloud.train.plan import TrainingPlan
from outrider.cloud.train.states import StateCache
from outrider.cloud.train.trainer import Trainer
from tests.tiny import make_target

SETTINGS: dict[str, dict[str, Any]] = {
    "eagle2": {"num_layers": 1, "feature_noise": 0.3},
    "medusa": {"num_medusa_heads": 3, "num_blocks": 2},
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target folder."""
    return make_target(tmp_path_factory.mktemp("target"))


def examples() -> list[Example]:
    """Sixteen short random texts, every second one greedy."""
    g = np.random.default_rng(0)
    lengths = [(int(g.integers(3, 7)), int(g.integers(8, 15))) for _ in range(16)]
    return [
        Example(g.integers(3, 200, p).astype(np.int32), g.integers(3, 200, a).astype(np.int32), float(i % 2))
        for i, (p, a) in enumerate(lengths)
    ]


def trainer_for(kind: str, folder: Path, target: Path, states: Path) -> Trainer:
    """A trainer of that kind without a time limit."""
    texts = examples()
    training, validation = hold_out(texts, 2)
    answers = [text.answer_ids for text in texts]
    drafter = fresh_drafter(target, answers, kind=kind, vocabulary_size=280, seed=1, **SETTINGS[kind])
    s = drafter.settings
    cache = StateCache(states, texts, s.needed_layers, s.stream_layer, target_config(target))
    frozen = frozen_target(s, TargetWeights(target), s.draft_vocabulary)
    plan = TrainingPlan(minutes=1e9, batch_tokens=60, warmup_steps=1)
    return Trainer(folder, plan, drafter, frozen, cache, texts, training, validation, LazyTarget(target))


@pytest.mark.parametrize("kind", sorted(SETTINGS))
def test_training_learns_and_resumes_to_the_bit(tmp_path: Path, target: Path, kind: str) -> None:
    """The loss falls, and two steps, a stop and two more give the weights of four in a row, noise included."""
    whole = trainer_for(kind, tmp_path / "whole", target, tmp_path / "states")
    first = trainer_for(kind, tmp_path / "parts", target, tmp_path / "states")
    losses = [whole.step().law.item() for _ in range(4)]
    for _ in range(2):
        first.step()
    first.checkpoint()
    second = trainer_for(kind, tmp_path / "parts", target, tmp_path / "states")
    assert second.resume()
    for _ in range(2):
        second.step()
    state = second.drafter.state_dict()
    assert all(state[name].equal(tensor) for name, tensor in whole.drafter.state_dict().items())
    losses += [whole.step().law.item() for _ in range(20)]
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.05


@pytest.mark.parametrize("kind", sorted(SETTINGS))
def test_the_command_ends_with_weights_that_load(tmp_path: Path, target: Path, kind: str) -> None:
    """From a corpus to a weights folder of this kind, validated and calibrated on the way."""
    corpus = tmp_path / "corpus.jsonl.gz"
    with gzip.open(corpus, "wt", encoding="utf-8") as stream:
        for text in examples():
            row = {"prompt_ids": text.prompt_ids.tolist(), "answer_ids": text.answer_ids.tolist()}
            stream.write(json.dumps({**row, "temperature": text.temperature}) + "\n")
    request = TrainingRequest(
        target=target,
        corpus=[corpus],
        out=tmp_path / "weights",
        work=tmp_path / "work",
        plan=TrainingPlan(tokens=100, batch_tokens=60),
        kind=kind,
        settings=SETTINGS[kind],
        vocabulary_size=280,
        held_out=2,
    )
    quality = train_drafter(request, lambda line: None)
    assert 1.0 <= quality.tau[6] <= 7.0
    settings = load_drafter(tmp_path / "weights").settings
    assert settings.kind == kind and settings.training_step >= 1
