"""Laws that drafters of every kind keep: settings, storage, one training interface, and traps all could fall into."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig

from outrider.cloud.kinds.base import FrozenTarget, Text, TrainableDrafter
from outrider.cloud.kinds.layers import RmsNorm
from outrider.cloud.kinds.registry import KINDS, find_kind
from outrider.cloud.kinds.settings import DrafterSettings, load_settings, parse_overrides
from outrider.cloud.kinds.target import TargetWeights, frozen_target
from outrider.cloud.kinds.weights import load_drafter, save_drafter
from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.train.blocks import SPANS, draw_rows, regular_text
from outrider.cloud.train.losses import LossOptions, Teachers
from outrider.cloud.train.optimiser import Optimisers
from outrider.shared.errors import ConfigError
from tests.tiny import make_target

LENGTHS = ((5, 21), (9, 17), (4, 30))
"""Prompt length and length of the texts of a batch."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target folder."""
    return make_target(tmp_path_factory.mktemp("target"))


def make(kind: str, target: Path, seed: int = 1) -> tuple[TrainableDrafter, FrozenTarget]:
    """A freshly initialised drafter of a kind, and the frozen parts it runs with."""
    entry = find_kind(kind)
    settings = entry.settings_for(AutoConfig.from_pretrained(target))
    settings = replace(settings, draft_vocabulary=tuple(range(0, 288, 2)))
    torch.manual_seed(seed)
    drafter, weights = entry.build(settings), TargetWeights(target)
    entry.initialise(drafter, weights, seed)
    return drafter, frozen_target(settings, weights, settings.draft_vocabulary)


def batch(settings: DrafterSettings, staircase: bool = False) -> tuple[list[Text], Teachers]:
    """Texts cut at random, with random states, and what they are compared with."""
    generator = torch.Generator().manual_seed(5)
    texts, finals, streams, weights = [], [], [], []
    for prompt, length in LENGTHS:
        kv = torch.randn(length, len(settings.needed_layers), 2, settings.kv_width, generator=generator)
        final, stream = (torch.randn(length, settings.hidden_size, generator=generator) for _ in range(2))
        first, rows = draw_rows(prompt, length, SPANS["no-whole"], generator)
        ids = torch.randint(288, (length,), generator=generator)
        texts.append(Text(ids, kv, first, rows, final, staircase))
        weight = torch.ones(length - first)
        weight[-1] = 0.0
        finals.append(final[first:])
        streams.append(stream[first:])
        weights.append(weight)
    weight = torch.cat(weights)
    has_stream = settings.stream_layer is not None
    return texts, Teachers(
        torch.cat(finals), weight / weight.sum(), torch.cat(streams) if has_stream else None
    )


def loss_of(drafter: TrainableDrafter, frozen: FrozenTarget, texts: list[Text], teachers: Teachers) -> Tensor:
    """The total of a training step, bfloat16 autocast, everything random seeded."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return drafter.training_loss(texts, teachers, frozen, LossOptions(features=1.0, seed=3)).total


# ------------------------------------------------------------------------------------------------ settings


def test_an_unknown_kind_lists_the_known_ones() -> None:
    """A kind that does not exist is a setting to correct."""
    with pytest.raises(ConfigError, match="eagle3"):
        find_kind("eagle3")


@pytest.mark.parametrize("kind", KINDS)
def test_settings_and_weights_survive_the_folder(kind: str, target: Path, tmp_path: Path) -> None:
    """What was saved comes back, of the right kind, to the bit in float32 and within half a step in int8."""
    drafter, _ = make(kind, target)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    save_drafter(drafter, drafter.settings, tmp_path / "full", torch.float32)
    again = load_drafter(tmp_path / "full")
    assert type(again) is type(drafter)
    assert load_settings(tmp_path / "full") == again.settings == drafter.settings
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    save_drafter(drafter, drafter.settings, tmp_path / "int8", torch.float32, int8=True)
    small = load_drafter(tmp_path / "int8").state_dict()
    changed = [n for n, tensor in drafter.state_dict().items() if not torch.equal(small[n], tensor)]
    assert changed
    for name in changed:
        weight = drafter.state_dict()[name]
        step = weight.abs().amax(dim=1, keepdim=True) / 127
        assert name.startswith(drafter.device_prefixes)
        assert bool(((small[name] - weight).abs() <= 0.501 * step).all())


def test_a_folder_that_names_no_kind_holds_the_first(tmp_path: Path) -> None:
    """Settings written before there were kinds are read as what they are."""
    shapes = (
        '"hidden_size":64,"num_target_layers":4,"num_heads":4,"num_kv_heads":2,"head_dim":16,"intermediate_size":96,'
        '"vocab_size":288,"rope_theta":1e4,"rms_norm_eps":1e-5,"lsa_layers":[1],"lsa_heads":4,"lsa_kv_heads":2,'
        '"lsa_intermediate_size":64,"num_sa_layers":1,"direct_layer":2,"num_tli_layers":1'
    )
    (tmp_path / "drafter.json").write_text("{" + shapes + "}", encoding="utf-8")
    found = load_settings(tmp_path)
    assert isinstance(found, MoaSettings)
    assert (found.kind, found.lsa_layers) == ("moa", (1,))
    with pytest.raises(ValueError, match="'glide'"):
        MoaSettings.from_json('{"kind": "glide"}')
    with pytest.raises(ValueError, match="incomplete"):
        MoaSettings.from_json('{"hidden_size": 64}')


def test_settings_are_given_as_text() -> None:
    """Values are typed as the settings declare them; a mistake names field and expectation."""
    words = ["num_sa_layers=2", "lsa_layers=1,3", "rope_theta=5e4", "kind=moa"]
    found = parse_overrides(MoaSettings, words)
    assert found == {"num_sa_layers": 2, "lsa_layers": (1, 3), "rope_theta": 5e4, "kind": "moa"}
    for word, complaint in (
        ("num_sa_layers=two", "num_sa_layers: expected a whole number"),
        ("lsa_layers=1,x", "lsa_layers: expected a comma-separated list of a whole number"),
        ("sa_layer=1", "sa_layer: no such setting"),
        ("num_sa_layers", "expected name=value"),
    ):
        with pytest.raises(ValueError, match=complaint):
            parse_overrides(MoaSettings, [word])


@pytest.mark.parametrize("kind", KINDS)
def test_any_setting_can_be_overridden(kind: str, target: Path) -> None:
    """Fields that the default shape has no parameter for are set all the same."""
    entry, config = find_kind(kind), AutoConfig.from_pretrained(target)
    settings = entry.settings_for(config, kappa=0.75, trained_length=9)
    assert (settings.kind, settings.kappa, settings.trained_length) == (kind, 0.75, 9)
    assert {field.name for field in fields(DrafterSettings)} <= {field.name for field in fields(settings)}


@pytest.mark.parametrize("kind", KINDS)
def test_trap_b10_a_scaled_rotation_is_refused(kind: str, target: Path) -> None:
    """No kind is trained on angles that only a part of it would know about."""
    config: Any = AutoConfig.from_pretrained(target)
    config.rope_parameters = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}
    with pytest.raises(ValueError, match="llama3"):
        find_kind(kind).settings_for(config)


# ------------------------------------------------------------------------------------------------ modules


@pytest.mark.parametrize("kind", KINDS)
def test_trap_b4_norm_weights_start_at_one(kind: str, target: Path) -> None:
    """Every norm of a fresh module scales by exactly 1 until the target's or training's weights come."""
    entry = find_kind(kind)
    torch.manual_seed(0)
    module = entry.build(entry.settings_for(AutoConfig.from_pretrained(target)))
    norms = [part for part in module.modules() if isinstance(part, RmsNorm)]
    others = [type(part).__name__ for part in module.modules() if "norm" in type(part).__name__.lower()]
    assert all(torch.equal(part.weight, torch.ones_like(part.weight)) for part in norms)
    assert len(norms) == len(others)


@pytest.mark.parametrize("kind", KINDS)
def test_trap_b7_training_leaves_texts_and_teachers_alone(kind: str, target: Path) -> None:
    """Noise and targets never share memory: everything a step was given is bitwise what it was."""
    drafter, frozen = make(kind, target)
    texts, teachers = batch(drafter.settings)
    given = [t for text in texts for t in (text.ids, text.kv, text.rows, text.final) if t is not None]
    given += [t for t in (teachers.final, teachers.weights, teachers.stream) if t is not None]
    given += list(frozen.parameters())
    copies = [tensor.clone() for tensor in given]
    drafter.correct(frozen)
    loss_of(drafter, frozen, texts, teachers).backward()
    Optimisers(drafter, 0.03, 0.002).step(1.0)
    assert all(torch.equal(one, other) for one, other in zip(given, copies, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_learns(kind: str, target: Path) -> None:
    """A gradient reaches each trained parameter within a few steps, none of them NaN."""
    drafter, frozen = make(kind, target)
    drafter.correct(frozen)
    texts, teachers = batch(drafter.settings)
    optimisers = Optimisers(drafter, 0.03, 0.002)
    before = {name: p.detach().clone() for name, p in drafter.named_parameters()}
    for step in range(3):
        drafter.begin_step(step)
        loss_of(drafter, frozen, texts, teachers).backward()
        optimisers.step(1.0)
    for name, parameter in drafter.named_parameters():
        assert torch.isfinite(parameter).all(), name
        assert not torch.equal(parameter, before[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_trap_b13_one_seed_is_one_drafter(kind: str, target: Path) -> None:
    """The same seed initialises the same weights and gives the same loss, to the bit."""
    runs = []
    for _ in range(2):
        drafter, frozen = make(kind, target, seed=4)
        texts, teachers = batch(drafter.settings)
        drafter.correct(frozen)
        runs.append((dict(drafter.state_dict()), loss_of(drafter, frozen, texts, teachers)))
    assert torch.equal(runs[0][1], runs[1][1])
    assert all(torch.equal(tensor, runs[1][0][name]) for name, tensor in runs[0][0].items())


@pytest.mark.parametrize("kind", KINDS)
def test_low_precision_is_the_same_drafter(kind: str, target: Path) -> None:
    """The fast bfloat16 forms that training uses give the plain float32 pass, up to rounding."""
    drafter, frozen = make(kind, target)
    texts, _ = batch(drafter.settings)
    with torch.no_grad():
        plain = drafter(texts, frozen)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fast = drafter(texts, frozen)
    fine = slice(None) if plain.valid is None else plain.valid
    scale = plain.final[fine].abs().mean()
    assert float((fast.final[fine].float() - plain.final[fine]).abs().mean() / scale) < 0.05


@pytest.mark.parametrize("kind", ["moa", "glide", "independent"])
def test_a_staircase_hides_what_lies_before_the_block(kind: str, target: Path) -> None:
    """By brute force: under the staircase a query changes with tokens of its own block only."""
    drafter, frozen = make(kind, target)
    s, prompt, length = drafter.settings, 4, 16
    kv = torch.randn(length, len(s.needed_layers), 2, s.kv_width, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(length) + 50
    text = replace(regular_text(ids, kv, prompt, 5, 2), staircase=True)
    with torch.no_grad():
        base = drafter([text], frozen).final
        for place in range(length):
            other = ids.clone()
            other[place] += 100
            moved = (drafter([replace(text, ids=other)], frozen).final - base).abs().amax(-1) > 1e-6
            queries = torch.arange(prompt, length)
            assert torch.equal(moved, (text.rows <= place) & (place <= queries)), place
