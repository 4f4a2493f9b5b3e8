"""The independent drafter: its parallel pass is step-by-step drafting, and it reads nothing of the target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.cloud.independent.drafter import IndependentDrafter
from outrider.cloud.independent.settings import IndependentSettings
from outrider.cloud.kinds.base import Text
from outrider.cloud.kinds.registry import KINDS, find_kind
from outrider.cloud.kinds.sources import even_layers
from outrider.cloud.kinds.target import TargetWeights, frozen_target
from outrider.cloud.kinds.weights import load_drafter, save_drafter
from outrider.cloud.train.blocks import regular_text
from outrider.cloud.train.losses import LossOptions, Teachers
from tests.tiny import VOCABULARY as TARGET_VOCABULARY
from tests.tiny import make_target
from tests.tiny_kinds import (
    SHAPE,
    VOCABULARY,
    GraphSteps,
    graph_of,
    law,
    random_cache,
    random_kind,
    rows_of_kind,
)

LENGTH, PROMPT = 14, 4
KIND = find_kind("independent")


def tiny(**changes: Any) -> IndependentSettings:
    """Three layers."""
    return IndependentSettings(**{**SHAPE, "num_layers": 3, "init_layers": (0, 2, 5), **changes})


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mlp", [0, 20, 60])
def test_the_parallel_pass_is_the_graph_step_by_step(bias: bool, mlp: int) -> None:
    """At every block begin, drafting token by token on the exported graph gives what one pass over the text gives."""
    drafter, frozen = random_kind(tiny(mlp_size=mlp, attention_bias=bias))
    ids = torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(5))
    text = Text(ids, random_cache(drafter.settings, LENGTH), 0, torch.zeros(LENGTH, dtype=torch.long))
    with torch.no_grad():
        parallel = law(frozen, drafter([text], frozen).final)
    graph = graph_of(drafter, frozen)
    for begin in range(LENGTH):
        steps = GraphSteps(graph, [], 0)
        if begin:
            torch.testing.assert_close(steps.feed(ids[:begin]), parallel[:begin], atol=1e-4, rtol=1e-4)
        for place in range(begin, LENGTH):
            found = steps.feed(ids[place : place + 1])[0]
            torch.testing.assert_close(found, parallel[place], atol=1e-4, rtol=1e-4)


def test_nothing_of_the_target_is_read() -> None:
    """No layers, no final states, no planes, no rows; and other cuts of a text change nothing."""
    drafter, frozen = random_kind(tiny())
    half = KIND.server_half(drafter)
    assert (half.planes, half.needed_layers, half.needs_final) == ((), (), False)
    assert rows_of_kind(drafter, random_cache(drafter.settings, 4)) == []
    assert drafter.settings.needed_layers == () and not drafter.settings.needs_final
    ids = torch.arange(LENGTH)
    kv = random_cache(drafter.settings, LENGTH)
    with torch.no_grad():
        finals = [drafter([regular_text(ids, kv, PROMPT, d, 0)], frozen).final for d in (1, 3, LENGTH)]
    assert all(torch.equal(final, finals[0]) for final in finals)


def test_texts_of_one_batch_do_not_touch_each_other() -> None:
    """A batch of ragged texts gives what each text gives alone, queries only."""
    drafter, frozen = random_kind(tiny())
    texts = [
        regular_text(torch.randint(64, (n,)), random_cache(drafter.settings, n), 3, 4, 1) for n in (7, 12, 5)
    ]
    with torch.no_grad():
        together = drafter(texts, frozen).final
        alone = torch.cat([drafter([text], frozen).final for text in texts])
    torch.testing.assert_close(together, alone)
    assert len(together) == sum(text.num_queries for text in texts)


def test_a_staircase_reaches_back_to_its_block_only() -> None:
    """Under the curriculum's mask a query sees its own block; tokens before it change nothing."""
    drafter, frozen = random_kind(tiny())
    ids = torch.arange(LENGTH)
    other = ids.clone()
    other[: PROMPT + 3] += 20
    kv = random_cache(drafter.settings, LENGTH)
    with torch.no_grad():
        one, two = (
            drafter([replace(regular_text(i, kv, PROMPT, 3, 0), staircase=True)], frozen).final
            for i in (ids, other)
        )
    assert not torch.equal(one[:3], two[:3])
    torch.testing.assert_close(one[3:], two[3:])


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_with_all_layers_it_is_the_target(family: str, tmp_path: Path) -> None:
    """Started from every layer of the target, it computes the target's own logits: copies and biases are right."""
    folder = make_target(tmp_path, family)
    config = AutoConfig.from_pretrained(folder)
    layers = config.num_hidden_layers
    settings = KIND.settings_for(
        config,
        num_layers=layers,
        init_layers=even_layers(layers, layers),
        mlp_size=config.intermediate_size + 8,
        draft_vocabulary=tuple(range(TARGET_VOCABULARY)),
    )
    drafter = KIND.build(settings)
    weights = TargetWeights(folder)
    KIND.initialise(drafter, weights, 0)
    frozen = frozen_target(settings, weights, settings.draft_vocabulary)
    ids = torch.randint(TARGET_VOCABULARY, (20,), generator=torch.Generator().manual_seed(2))
    text = Text(ids, torch.zeros(20, 0, 2, 32), 0, torch.zeros(20, dtype=torch.long))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = frozen.head(drafter([text], frozen).final)
        torch.testing.assert_close(logits, model(ids[None]).logits[0], atol=1e-3, rtol=1e-3)


def test_layers_of_another_build_are_refused(tmp_path: Path) -> None:
    """A target with normed heads (Qwen3) has parts that a copied layer would silently lack."""
    folder = make_target(tmp_path, "qwen3")
    settings = KIND.settings_for(AutoConfig.from_pretrained(folder), num_layers=2)
    with pytest.raises(ValueError, match="q_norm"):
        KIND.initialise(KIND.build(settings), TargetWeights(folder), 0)


def test_biases_must_be_asked_for(tmp_path: Path) -> None:
    """Settings that know nothing of the target's biases are refused by name, not copied without them."""
    folder = make_target(tmp_path, "qwen2")
    settings = KIND.settings_for(AutoConfig.from_pretrained(folder), num_layers=2)
    assert settings.attention_bias
    with pytest.raises(ValueError, match="attention_bias"):
        KIND.initialise(KIND.build(replace(settings, attention_bias=False)), TargetWeights(folder), 0)


def test_law_and_features_train_it() -> None:
    """A few steps on one text bring the law closer to the target's; every parameter gets a gradient."""
    torch.manual_seed(0)
    drafter, frozen = random_kind(tiny())
    ids = torch.arange(LENGTH)
    text = regular_text(ids, random_cache(drafter.settings, LENGTH), PROMPT, 5, 0)
    weights = torch.full((text.num_queries,), 1 / text.num_queries)
    teachers = Teachers(torch.randn(text.num_queries, 32), weights)
    optimiser = torch.optim.Adam(drafter.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        loss = drafter.training_loss([text], teachers, frozen, LossOptions(features=1.0))
        loss.total.backward()
        optimiser.step()
        losses.append(loss.law.item())
    assert losses[-1] < losses[0]
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in drafter.parameters())


def test_weights_survive_the_folder(tmp_path: Path) -> None:
    """Saved (with int8 matrices) and loaded, the settings are equal and the features within quantisation."""
    drafter, frozen = random_kind(tiny())
    save_drafter(drafter, drafter.settings, tmp_path, torch.float32, int8=True)
    again = load_drafter(tmp_path)
    assert isinstance(again, IndependentDrafter)
    assert again.settings == drafter.settings
    text = regular_text(torch.arange(LENGTH), random_cache(drafter.settings, LENGTH), PROMPT, 5, 0)
    with torch.no_grad():
        one, other = drafter([text], frozen).final, again([text], frozen).final
    assert torch.nn.functional.cosine_similarity(one, other).min() > 0.99


def test_parameters_match_the_default_drafter() -> None:
    """For the shapes of the embedded target, within a tenth of what MoA trains."""
    counts = {name: parameters(name) for name in KINDS}
    for name in KINDS:
        assert abs(counts[name] / counts["moa"] - 1) <= 0.1, counts


def parameters(name: str) -> int:
    """Trained parameters of a kind's default for SmolLM2-135M."""
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
    )
    kind = find_kind(name)
    with torch.device("meta"):
        drafter = kind.build(kind.settings_for(config))
    return sum(parameter.numel() for parameter in drafter.parameters())


@pytest.mark.parametrize(
    "change", [{"num_layers": 0}, {"mlp_size": -1}, {"init_layers": (0, 6, 1)}, {"init_layers": (0,)}]
)
def test_impossible_settings_are_named(change: dict[str, Any]) -> None:
    """Settings that cannot be are refused with the field's name."""
    with pytest.raises(ValueError, match=next(iter(change))):
        tiny(**change)
