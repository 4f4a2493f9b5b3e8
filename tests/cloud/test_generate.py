"""The target alone, held to transformers' own generate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider.cloud.generate import generate
from outrider.cloud.selfcheck import open_engine, probe_ids
from outrider.cloud.target import load_target
from outrider.cloud.worker import Worker
from outrider.shared.sampling import NEAR_TIE, Sampling, choose, pick
from tests.tiny import VOCABULARY, make_target


def stock_generate(folder: Path, prompt: Sequence[int], count: int) -> list[int]:
    """transformers' greedy text in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.generation_config.eos_token_id = None  # as a text goes on here, it must go on there
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return [int(token) for token in out[0, len(prompt) :]]


def stock_logits(folder: Path, ids: Sequence[int]) -> torch.Tensor:
    """transformers' logits of every position, [len(ids), vocabulary]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    with torch.inference_mode():
        return model(torch.tensor([list(ids)]), use_cache=False).logits[0]


def differing(folder: Path, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Index of the first difference that is no near tie of transformers' own logits; -1 if there is none.

    After a near tie the texts are two texts, and nothing more can be compared.
    """
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one != other:
            logits = stock_logits(folder, [*prompt, *theirs[:index]])[-1].numpy()
            return -1 if choose(logits, Sampling(), 0).near_tie(NEAR_TIE) else index
    return -1


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral", "qwen3"])
def test_greedy_text_is_transformers_own(kind: str, tmp_path: Path) -> None:
    """48 tokens of each kind of target equal stock generate in float32, up to a near tie."""
    folder = make_target(tmp_path / kind, kind, eos_token_id=None)
    worker = Worker(open_engine(load_target(folder))[0])
    for seed in range(3):
        prompt = probe_ids(VOCABULARY, 9 + 7 * seed, seed)
        ours = list(generate(worker, prompt, max_tokens=48))
        assert differing(folder, prompt, ours, stock_generate(folder, prompt, 48)) == -1


def test_sampled_text_is_what_the_law_and_the_seed_say(tmp_path: Path) -> None:
    """With a seed, each token is pick() of transformers' logits at its position, up to a near tie."""
    folder = make_target(tmp_path / "llama")
    worker = Worker(open_engine(load_target(folder))[0])
    prompt = probe_ids(VOCABULARY, 9)
    sampling = Sampling(0.9, 50, 0.95, seed=12)
    ours = list(generate(worker, prompt, sampling, 40))
    logits = stock_logits(folder, [*prompt, *ours]).numpy()
    for index, token in enumerate(ours):
        position = len(prompt) + index
        row = logits[position - 1]
        assert token == pick(row, sampling, position) or choose(row, sampling, position).near_tie()
    assert ours == list(generate(worker, prompt, sampling, 40))
    assert ours != list(generate(worker, prompt, Sampling(0.9, 50, 0.95, seed=13), 40))


@pytest.mark.model
def test_the_embedded_target_writes_what_transformers_writes() -> None:
    """64 greedy tokens after two prompts on the real model, float32, up to a near tie."""
    target = load_target()
    folder = target.folder
    worker = Worker(open_engine(target)[0])
    for prompt in ((1, 9690, 198, 2683, 359, 260), probe_ids(target.vocabulary, 40)):
        ours = list(generate(worker, prompt, max_tokens=64))
        assert differing(folder, prompt, ours, stock_generate(folder, prompt, 64)) == -1
