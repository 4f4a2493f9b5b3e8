"""Calibration: what synthetic drafters of known truth are found to be, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from outrider.cloud.kinds.base import DrafterOutput, FrozenTarget, Text
from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.train.calibrate import (
    GRID,
    LEAST_POSITIONS,
    MAX_DEPTH,
    MISSED,
    SILENT,
    Children,
    best_kappa,
    calibrate,
    calibration_error,
    confidence,
    held_out_errors,
    observe,
    true_ranks,
)
from outrider.cloud.train.corpus import Example
from outrider.cloud.train.states import TargetStates
from outrider.shared.noise import gumbel
from tests.tiny_drafter import random_drafter, random_kv, tiny_settings

VOCABULARY = torch.arange(0, 60, 2)[torch.randperm(30, generator=torch.Generator().manual_seed(0))]


def drawn(kappa: float, count: int, seed: int) -> Children:
    """Positions whose true token is drawn from softmax(score / kappa)."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, len(VOCABULARY), generator=generator) * 3
    places = torch.multinomial((scores / kappa).softmax(-1), 1, generator=generator)[:, 0]
    return observe(scores, VOCABULARY[places], VOCABULARY)


@pytest.mark.parametrize("kappa", [0.6, 1.0, 1.7])
def test_known_kappas_are_recovered(kappa: float) -> None:
    """Tokens drawn at a temperature are likeliest under it, and their children's probabilities then true."""
    texts = [drawn(kappa, 500, seed) for seed in range(8)]
    assert best_kappa(texts) == pytest.approx(kappa, abs=0.11)
    before, after = held_out_errors(texts)
    assert after < 0.015
    if kappa != 1.0:
        assert before > 2 * after


def test_coupled_samples_need_a_kappa_of_their_own() -> None:
    """Target and drafter add the same noise to logits that differ: the kappa found makes perturbed children true.

    The drafter's error is Gumbel-like of scale 0.8, for which softmax(score / 0.8) is exact; its plain softmax is not.
    """
    rng = np.random.default_rng(3)
    texts = []
    for seed in range(16):
        logits = rng.normal(0.0, 2.0, (500, len(VOCABULARY)))
        noise = np.stack([gumbel(seed, place, VOCABULARY.numpy(), 60) for place in range(500)])
        own = torch.from_numpy(logits + noise).float()
        target = logits + noise + 0.8 * rng.gumbel(size=logits.shape)
        texts.append(observe(own, VOCABULARY[torch.from_numpy(target.argmax(-1))], VOCABULARY))
    assert best_kappa(texts) == pytest.approx(0.8, abs=0.11)
    before, after = held_out_errors(texts)
    assert after < before and after < 0.01


def test_tokens_outside_the_vocabulary_are_no_evidence_for_kappa_but_are_misses() -> None:
    """They change no loss; as children they count as wrong."""
    scores = torch.randn(50, len(VOCABULARY), generator=torch.Generator().manual_seed(1))
    inside = observe(scores, VOCABULARY[scores.argmax(-1)], VOCABULARY)
    outside = observe(scores, torch.full((50,), 7), VOCABULARY)
    assert not outside.losses().any() and bool(inside.losses().all())
    assert outside.ranks.eq(MISSED).all() and inside.ranks.eq(0).all()
    assert best_kappa([outside]) == 1.0
    assert calibration_error([outside], 1.0) > 0.0


def test_ranks_are_those_of_the_best_children() -> None:
    """Rank 0 for the best, 3 for the fourth, missed beyond."""
    scores = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0]])
    vocabulary = torch.tensor([1, 3, 5, 7, 9])
    found = [int(true_ranks(scores, torch.tensor([token]), vocabulary)) for token in (1, 3, 5, 7, 9, 2)]
    assert found == [0, 1, 2, 3, MISSED, MISSED]


def rounds_of(law: Tensor, count: int, seed: int) -> Tensor:
    """Ranks by begin and depth, drawn from a law [depth, RANKS]."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.cat((law, 1 - law.sum(-1, keepdim=True)), -1)
    return torch.stack([torch.multinomial(row, count, True, generator=generator) for row in whole], -1)


def test_a_known_law_is_recovered() -> None:
    """From simulated drafts, every depth and rank comes back within three points where there is evidence enough."""
    firsts = torch.linspace(0.9, 0.75, MAX_DEPTH)[:, None]
    law = torch.cat((firsts, (1 - firsts) * torch.tensor([[0.5, 0.2, 0.1]])), -1)
    found = torch.tensor(confidence([rounds_of(law, 4000, seed) for seed in range(12)]))
    assert found.shape == (MAX_DEPTH, 4)
    assert (found[:6] - law[:6]).abs().max() < 0.03
    assert (found - law).abs().max() < 0.08


def test_depths_without_evidence_are_like_the_others_and_silent_ones_are_nought() -> None:
    """A depth that no round reached has the mean law; one that the drafter cannot predict has probability 0."""
    table = torch.full((400, 5), MISSED)
    table[::2, 0] = 0
    table[1::4, 0] = 1
    found = confidence([table])
    assert found[0][0] > 0.3 and found[3] == pytest.approx(found[4])
    assert 0 < found[4][0] < found[0][0]
    table[:, 3:] = SILENT
    assert confidence([table])[3] == confidence([table])[4] == (0.0,) * 4


def test_rounds_are_walked_as_devices_walk_them() -> None:
    """A draft ends at its first miss and the next begins behind the target's token: nothing else is counted."""
    table = torch.full((6, 3), MISSED)
    table[0, 0], table[0, 1], table[0, 2] = 0, 0, 1  # emits three tokens
    table[3, 0], table[4, 0] = MISSED, 2
    table[5, 0] = 0
    found = confidence([table] * 1000)
    # Judged at depth 0: begins 0, 3, 4 and 5; two right at first, one at rank 2; begin 5 ends with the text.
    assert found[0] == pytest.approx((0.5, 0.25, 0.25, 0.0), abs=0.26)
    assert found[0][0] == pytest.approx(0.5, abs=0.01)
    assert found[1][0] == pytest.approx(1.0, abs=0.02)
    assert found[2][:2] == pytest.approx((0.02, 0.02), abs=0.03)


# ----------------------------------------------------------------------------------------------- with a real drafter


class Cache:
    """States of random texts."""

    def __init__(self, settings: MoaSettings, examples: list[Example]) -> None:
        self.states = []
        for number, example in enumerate(examples):
            kv = random_kv(settings, len(example), number)
            final = torch.randn(
                len(example), settings.hidden_size, generator=torch.Generator().manual_seed(number)
            )
            self.states.append(TargetStates(kv, torch.zeros(len(example), settings.hidden_size), final))

    def get(self, row: int) -> TargetStates:
        """States of one text."""
        return self.states[row]


def held_out(count: int, length: int) -> list[Example]:
    """Random texts."""
    rng = np.random.default_rng(5)
    return [
        Example(rng.integers(64, size=6, dtype=np.int32), rng.integers(64, size=length, dtype=np.int32))
        for _ in range(count)
    ]


def test_too_little_text_is_said_and_nothing_is_fitted() -> None:
    """Under the least number of positions settings stay as they were, and the log says why."""
    settings = replace(tiny_settings(0), kappa=1.25)
    drafter, frozen = random_drafter(settings)
    examples = held_out(3, 20)
    found = calibrate(drafter, frozen, torch.randn(64, 32), Cache(settings, examples), examples, [0, 1, 2])
    assert not found.enough and "not calibrated: 57" in found.line() and str(LEAST_POSITIONS) in found.line()
    assert found.apply(settings) is settings


class Copycat(torch.nn.Module):
    """A drafter that holds the target's own final states, and is silent from a depth on."""

    def __init__(self, settings: MoaSettings, heads: int = MAX_DEPTH) -> None:
        super().__init__()
        self.settings, self.heads = settings, heads

    def forward(self, texts: list[Text], frozen: FrozenTarget) -> DrafterOutput:
        """The target's states."""
        finals = [text.final[text.first_query :] for text in texts if text.final is not None]
        depths = [torch.arange(text.first_query, len(text.ids)) - text.rows for text in texts]
        return DrafterOutput(torch.cat(finals), valid=torch.cat(depths) < self.heads)


def test_a_perfect_drafter_is_trusted_by_its_law_when_sampling(tmp_path: Path) -> None:
    """One that computes the target's own law foresees every sampled token; settings, bundle-ready, carry that."""
    settings = tiny_settings(0)
    _, frozen = random_drafter(settings)
    head = torch.randn(64, 32, generator=torch.Generator().manual_seed(9)) / 3
    with torch.no_grad():
        frozen.head.weight.copy_(head[list(settings.draft_vocabulary)])
    examples = held_out(8, 60)
    cache = Cache(settings, examples)
    found = calibrate(Copycat(settings), frozen, head, cache, examples, range(8))  # type: ignore[arg-type]
    assert found.enough and found.positions == 8 * 59
    # Half the target's tokens are outside the draft vocabulary; of the others all are first children.
    assert 0.35 < found.sampled.confidence[0][0] < 0.65
    assert max(found.sampled.confidence[0][1:]) < 0.05
    assert found.greedy.confidence[0][0] < 0.15  # random text is not what this target says
    assert found.sampled.kappa == pytest.approx(GRID[0]) and found.greedy.kappa > 1.0
    fitted = found.apply(settings)
    fitted.save(tmp_path)
    assert MoaSettings.load(tmp_path) == fitted
    assert json.loads(fitted.to_json())["kappa_sampled"] == found.sampled.kappa
    assert "sampled: kappa=0.30" in found.line()


def test_a_drafter_of_few_heads_has_no_confidence_beyond_them() -> None:
    """Where a kind cannot predict, its table says nought, however often its guess would have been right."""
    settings = tiny_settings(0)
    _, frozen = random_drafter(settings)
    examples = held_out(6, 60)
    head = torch.randn(64, 32)
    found = calibrate(Copycat(settings, 3), frozen, head, Cache(settings, examples), examples, range(6))  # type: ignore[arg-type]
    for law in (found.greedy.confidence, found.sampled.confidence):
        assert all(ranks == (0.0,) * 4 for ranks in law[3:]) and law[2][0] > 0
