"""GLIDE: the parallel pass is drafting, the target's keys are rotated once, no query sees ahead of its block."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig

from outrider.cloud.glide.drafter import GlideDrafter, GlideLayer
from outrider.cloud.glide.kind import PAPER_MIX
from outrider.cloud.glide.settings import GlideSettings
from outrider.cloud.kinds.base import FrozenTarget, Text
from outrider.cloud.kinds.layers import rotary_angles, rotate
from outrider.cloud.kinds.registry import find_kind
from outrider.cloud.kinds.target import TargetWeights
from outrider.cloud.kinds.weights import load_drafter, save_drafter
from outrider.cloud.train.blocks import draw_rows, regular_text
from outrider.cloud.train.losses import LossOptions, Teachers
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

LENGTH, PROMPT = 13, 4
KIND = find_kind("glide")
SHAPES = [(1, 0), (3, 0), (3, 2), (4, 1)]
"""(layers, first with cross-attention): the paper's, all crossing, the last one only, half."""


def tiny(num_layers: int = 3, first_cross: int = 0, **changes: Any) -> GlideSettings:
    """Some layers on the tiny target."""
    fields = {"num_layers": num_layers, "first_cross": first_cross, "init_layers": (0, 1, 4, 5)[:num_layers]}
    return GlideSettings(**{**SHAPE, **fields, **changes})


def some_ids(length: int = LENGTH) -> Tensor:
    """Ids that repeat nothing."""
    return torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(9))[:length]


def softmax_read(queries: Tensor, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
    """One query [heads, d] over pairs of key and value [kv_heads, d], head by head: [1, heads * d]."""
    out = []
    for head, query in enumerate(queries):
        mine = [(key[head // 2], value[head // 2]) for key, value in seen]
        scores = torch.stack([query @ key for key, _ in mine]) / math.sqrt(len(query))
        out.append(scores.softmax(0) @ torch.stack([value for _, value in mine]))
    return torch.cat(out)[None]


class ByHand:
    """GLIDE position by position in plain loops, for one begin: the paper's equations without any masks."""

    def __init__(
        self, drafter: GlideDrafter, frozen: FrozenTarget, kv: Tensor, begin: int, turns: int = 0
    ) -> None:
        self.drafter, self.frozen, self.kv, self.begin = drafter, frozen, kv, begin
        self.turns = turns
        """How often the target's keys are rotated once more: 0 is right."""
        self.own: list[list[tuple[Tensor, Tensor]]] = [[] for _ in drafter.layers]

    def feed(self, token: int, position: int) -> Tensor:
        """Final feature [hidden] at one position."""
        s, angles = self.drafter.settings, self.angles(position)
        x = self.frozen.embedding.weight[token][None]
        for number, layer in enumerate(self.drafter.glide_layers()):
            own = layer.own
            normed = own.input_layernorm(x)
            k, v = own.key_value(normed, *angles)
            self.own[number].append((k[0], v[0]))
            seen = self.own[number]
            if number > s.first_cross:
                seen = [self.heads(layer.null_k, layer.null_v), *seen[self.begin :]]
            x = x + own.o_proj(softmax_read(own.query(normed, *angles)[0], seen))
            x = own.mlp(self.cross(layer, x, angles))
        return self.drafter.norm(x)[0]

    def cross(self, layer: GlideLayer, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """The null row and the target's keys and values of positions before the begin."""
        if layer.cross is None:
            return x
        pairs = [self.heads(layer.cross.null_k, layer.cross.null_v)]
        for j in range(self.begin):
            key, value = self.heads(*self.kv[j, 0])
            for _ in range(self.turns):
                key = rotate(key[None], *self.angles(j))[0]
            pairs.append((key, value))
        query = layer.cross.query(x, angles)[0]
        return x + layer.cross.o_proj(softmax_read(query, pairs))

    def heads(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """As [kv_heads, d]."""
        s = self.drafter.settings
        return key.view(s.num_kv_heads, s.head_dim), value.view(s.num_kv_heads, s.head_dim)

    def angles(self, position: int) -> tuple[Tensor, Tensor]:
        """Of one position."""
        s = self.drafter.settings
        return rotary_angles(torch.tensor([position]), s.head_dim, s.rope_theta)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("layers", "first"), SHAPES)
@torch.no_grad()
def test_trap_b5_attention_is_that_of_keys_rotated_once(layers: int, first: int, bias: bool) -> None:
    """At every block begin the parallel pass is the paper's equations by brute force on the cache as it is."""
    drafter, frozen = random_kind(tiny(layers, first, attention_bias=bias))
    kv, ids = random_cache(drafter.settings, LENGTH), some_ids()
    hands: dict[int, list[Tensor]] = {}
    for begin in range(PROMPT, LENGTH):
        hand = ByHand(drafter, frozen, kv, begin)
        hands[begin] = [hand.feed(int(ids[i]), i) for i in range(LENGTH)]
    for depth, offset in ((1, 0), (3, 0), (3, 1), (3, 2), (LENGTH, 0)):
        text = regular_text(ids, kv, PROMPT, depth, offset)
        final = drafter([text], frozen).final
        wanted = [hands[begin][PROMPT + i] for i, begin in enumerate(text.rows.tolist())]
        torch.testing.assert_close(final, torch.stack(wanted), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_trap_b5_keys_rotated_twice_would_be_noticed() -> None:
    """The negative control: the same equations with the keys rotated once more give other features."""
    drafter, frozen = random_kind(tiny(1))
    kv, ids = random_cache(drafter.settings, LENGTH), some_ids()
    text = regular_text(ids, kv, PROMPT, LENGTH, 0)
    final = drafter([text], frozen).final
    hand = ByHand(drafter, frozen, kv, PROMPT, turns=1)
    fed = torch.stack([hand.feed(int(ids[i]), i) for i in range(LENGTH)])[PROMPT:]
    assert ((final - fed).abs().amax(-1) > 1e-2).all()


@torch.no_grad()
def test_trap_b5_only_distances_matter() -> None:
    """Cross-attention to keys as a target caches them is the same wherever the text stands: it depends on p_q - p_k."""
    drafter, _ = random_kind(tiny(1))
    s, cross = drafter.settings, drafter.glide_layers()[0].cross
    assert cross is not None
    plain, x = torch.randn(6, s.num_kv_heads, s.head_dim), torch.randn(1, s.hidden_size)
    scores = []
    for shift in (0, 50):
        keys = rotate(plain, *rotary_angles(torch.arange(shift, shift + 6), s.head_dim, s.rope_theta))
        query = cross.query(x, rotary_angles(torch.tensor([shift + 8]), s.head_dim, s.rope_theta))[0]
        scores.append(torch.einsum("hd,nhd->nh", query, keys.repeat_interleave(2, dim=1)))
    torch.testing.assert_close(scores[0], scores[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("layers", "first"), SHAPES)
@torch.no_grad()
def test_trap_b6_a_block_without_rows_is_finite_and_sees_nothing(layers: int, first: int) -> None:
    """The first block of a text without rows reads the null row alone: no future, no average over masked keys."""
    drafter, frozen = random_kind(tiny(layers, first))
    kv, ids = random_cache(drafter.settings, LENGTH), some_ids()
    rows = torch.zeros(LENGTH, dtype=torch.long)
    final = drafter([Text(ids, kv, 0, rows)], frozen).final
    assert torch.isfinite(final).all()
    hand = ByHand(drafter, frozen, kv, 0)
    fed = torch.stack([hand.feed(int(ids[i]), i) for i in range(LENGTH)])
    torch.testing.assert_close(final, fed, atol=1e-4, rtol=1e-4)
    assert torch.equal(final, drafter([Text(ids, kv + 7.0, 0, rows)], frozen).final)


@pytest.mark.parametrize(("layers", "first"), SHAPES)
@torch.no_grad()
def test_trap_b6_no_query_sees_the_target_from_its_block_on(layers: int, first: int) -> None:
    """Changing the target's K/V at a position changes only queries of blocks that begin behind it."""
    drafter, frozen = random_kind(tiny(layers, first))
    kv, ids = random_cache(drafter.settings, LENGTH), some_ids()
    text = regular_text(ids, kv, PROMPT, 3, 1)
    before = drafter([text], frozen).final
    for changed in range(LENGTH):
        other = kv.clone()
        other[changed] += 3.0
        after = drafter([replace(text, kv=other)], frozen).final
        differs = (before - after).abs().amax(-1) > 1e-6
        assert torch.equal(differs, text.rows > changed)


@pytest.mark.parametrize(("layers", "first"), SHAPES)
@pytest.mark.parametrize("bias", [False, True])
def test_the_parallel_pass_is_the_graph_step_by_step(layers: int, first: int, bias: bool) -> None:
    """At every block begin, drafting token by token on the exported graph gives what one pass over the text gives."""
    drafter, frozen = random_kind(tiny(layers, first, mlp_size=40, attention_bias=bias))
    kv, ids = random_cache(drafter.settings, LENGTH), some_ids()
    rows = rows_of_kind(drafter, kv)
    graph = graph_of(drafter, frozen)
    for begin in (0, *range(PROMPT, LENGTH)):
        text = Text(ids, kv, begin, torch.full((LENGTH - begin,), begin))
        with torch.no_grad():
            parallel = law(frozen, drafter([text], frozen).final)
        steps = GraphSteps(graph, rows, begin)
        if begin:
            steps.feed(ids[:begin])
        drafted = torch.cat([steps.feed(ids[i : i + 1]) for i in range(begin, LENGTH)])
        torch.testing.assert_close(drafted, parallel, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("layers", "first"), SHAPES)
@torch.no_grad()
def test_texts_of_one_batch_do_not_touch_each_other(layers: int, first: int) -> None:
    """A batch of ragged texts, cut differently, gives what each text gives alone."""
    drafter, frozen = random_kind(tiny(layers, first))
    texts = [regular_text(some_ids(n), random_cache(drafter.settings, n, n), 3, 4, 1) for n in (7, 12, 5)]
    texts.append(Text(some_ids(6), random_cache(drafter.settings, 6), 0, torch.zeros(6, dtype=torch.long)))
    texts.append(Text(some_ids(9), random_cache(drafter.settings, 9), 5, torch.tensor([2, 2, 7, 7])))
    together = drafter(texts, frozen).final
    torch.testing.assert_close(together, torch.cat([drafter([text], frozen).final for text in texts]))


@torch.no_grad()
def test_a_block_may_begin_before_the_first_query() -> None:
    """Queries from the middle of a block on are those of the whole block."""
    drafter, frozen = random_kind(tiny(3, 0))
    kv, ids = random_cache(drafter.settings, LENGTH), some_ids()
    whole = drafter([Text(ids, kv, 4, torch.full((LENGTH - 4,), 4))], frozen).final
    late = drafter([Text(ids, kv, 7, torch.full((LENGTH - 7,), 4))], frozen).final
    torch.testing.assert_close(late, whole[3:])


@torch.no_grad()
def test_a_staircase_reaches_back_to_its_block_only() -> None:
    """Under the curriculum's mask, own tokens before the block change nothing."""
    for layers, first in SHAPES:
        drafter, frozen = random_kind(tiny(layers, first))
        kv, ids = random_cache(drafter.settings, LENGTH), some_ids()
        other = ids.clone()
        other[: PROMPT + 3] = (other[: PROMPT + 3] + 1) % VOCABULARY
        one, two = (
            drafter([replace(regular_text(i, kv, PROMPT, 3, 0), staircase=True)], frozen).final
            for i in (ids, other)
        )
        torch.testing.assert_close(one[3:], two[3:])


def test_rows_are_the_targets_own_cache_and_incremental() -> None:
    """One plane of two parts: the last layer's rotated keys, then its values; new tokens alone give the same."""
    drafter, _ = random_kind(tiny())
    kv = random_cache(drafter.settings, LENGTH)
    (rows,) = rows_of_kind(drafter, kv)
    torch.testing.assert_close(rows, kv[:, 0].flatten(1))
    torch.testing.assert_close(rows[5:], rows_of_kind(drafter, kv[5:], 5)[0])
    half = KIND.server_half(drafter)
    (plane,) = half.planes
    assert (plane.width, plane.parts, plane.content) == (32, 2, "layer5.kv")
    assert half.needed_layers == (5,) and not half.needs_final
    assert half.fingerprint() == KIND.server_half(random_kind(tiny(), 3)[0]).fingerprint()


@torch.no_grad()
def test_it_starts_as_the_targets_own_last_attention(tmp_path: Path) -> None:
    """The last cross-attention asks and answers as the target's last layer does; the lower ones are silent at first."""
    folder = make_target(tmp_path, "qwen2")
    settings = KIND.settings_for(AutoConfig.from_pretrained(folder), num_layers=3)
    drafter, weights = KIND.build(settings), TargetWeights(folder)
    KIND.initialise(drafter, weights, 0)
    assert isinstance(drafter, GlideDrafter)
    *lower, top = [layer.cross for layer in drafter.glide_layers()]
    assert all(cross is not None and not cross.o_proj.weight.any() for cross in lower)
    assert top is not None
    for name in ("q_proj.weight", "q_proj.bias", "o_proj.weight"):
        mine = dict(top.named_parameters())[name]
        torch.testing.assert_close(mine, weights.get(f"model.layers.3.self_attn.{name}"))
    torch.testing.assert_close(drafter.norm.weight, weights.get("model.norm.weight"))


def test_training_reaches_every_parameter() -> None:
    """A few steps on a text with and one without rows lower the loss; every parameter gets a gradient."""
    torch.manual_seed(0)
    drafter, frozen = random_kind(tiny(3, 0))
    kv = random_cache(drafter.settings, LENGTH)
    texts = [
        regular_text(some_ids(), kv, PROMPT, 5, 0),
        Text(some_ids(), kv, 0, torch.zeros(LENGTH, dtype=torch.long)),
    ]
    count = sum(text.num_queries for text in texts)
    teachers = Teachers(torch.randn(count, 32), torch.full((count,), 1 / count))
    optimiser = torch.optim.Adam(drafter.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        loss = drafter.training_loss(texts, teachers, frozen, LossOptions(features=1.0))
        loss.total.backward()
        optimiser.step()
        losses.append(loss.law.item())
    assert losses[-1] < losses[0]
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in drafter.parameters())


def test_the_default_recipe_is_the_papers() -> None:
    """Texts are cut into blocks of five and nothing else."""
    assert KIND.mix == PAPER_MIX
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        first, rows = draw_rows(10, 60, KIND.mix, generator)
        assert first == 10
        counts = rows.unique(return_counts=True)[1].tolist()
        assert all(count == 5 for count in counts[1:-1]) and max(counts) == 5


def test_weights_survive_the_folder(tmp_path: Path) -> None:
    """Saved (with int8 matrices) and loaded, the settings are equal and the features within quantisation."""
    drafter, frozen = random_kind(tiny())
    save_drafter(drafter, drafter.settings, tmp_path, torch.float32, int8=True)
    again = load_drafter(tmp_path)
    assert again.settings == drafter.settings
    text = regular_text(some_ids(), random_cache(drafter.settings, LENGTH), PROMPT, 5, 0)
    with torch.no_grad():
        one, other = drafter([text], frozen).final, again([text], frozen).final
    assert torch.nn.functional.cosine_similarity(one, other).min() > 0.99


@pytest.mark.parametrize(
    "change", [{"num_layers": 0}, {"first_cross": 3}, {"mlp_size": -1}, {"init_layers": (0, 6, 1)}]
)
def test_impossible_settings_are_named(change: dict[str, Any]) -> None:
    """Settings that cannot be are refused with the field's name."""
    with pytest.raises(ValueError, match=next(iter(change))):
        tiny(**change)
