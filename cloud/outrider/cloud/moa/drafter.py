"""The Mixture-of-Attentions drafter as it is trained: one parallel pass over ragged texts.

A text is cut into *blocks*. A query at position i of a block that begins at b sees what the device would
see when the last verified position with rows is b - 1: the target's true rows for j < b, and nothing of
the target for b..i. So every answer position is trained under exactly the inference condition, and
running the same text with other cuts gives every depth (paper: hidden runs of 5..13 between observed
positions; there the observed ones carry off-distribution loss, here there are none).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from outrider.cloud.kinds.base import DrafterOutput, FrozenTarget, Text, TrainableDrafter
from outrider.cloud.kinds.layers import (
    ADAPTED,
    CorrectedLinear,
    DecoderLayer,
    LowRank,
    attend,
    decoder_layer,
    rotary_angles,
    target_like_layer,
)
from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.moa.lsa import MemoryProjection

__all__ = ["CrossAttention", "DrafterOutput", "FrozenTarget", "MoaDrafter", "Text"]


class CrossAttention(nn.Module):
    """Device side of the cross-attention layer; its keys and values come from the server."""

    def __init__(self, settings: MoaSettings):
        super().__init__()
        self.layer = target_like_layer(settings)
        # Keys and values come from `MemoryProjection`, so the layer has none of its own.
        del self.layer.k_proj, self.layer.v_proj
        self.null_k = nn.Parameter(torch.zeros(1, settings.kv_width))
        self.null_v = nn.Parameter(torch.zeros(1, settings.kv_width))


class MoaDrafter(TrainableDrafter):
    """SA over frozen embeddings, CA over the server's memory, frozen top layers of the target."""

    settings: MoaSettings
    device_prefixes = ("sa.", "ca.")
    # The direct path starts as an identity, corrections as a product with zero: Muon's orthogonal steps suit neither.
    adam_parts = ("direct_", "null_", "corrections.")
    # What the memory adds is small beside the direct path: at the full rate its updates are mostly noise.
    rate_shares = (("memory.", 0.3),)
    learn_lsa_every = 4
    """Steps between gradients into LSA, the dearest part of a step."""

    def __init__(self, settings: MoaSettings):
        super().__init__()
        self.settings = settings
        self.sa = nn.ModuleList(target_like_layer(settings) for _ in range(settings.num_sa_layers))
        self.ca = CrossAttention(settings)
        self.memory = MemoryProjection(settings)
        self.corrections = nn.ModuleList(
            nn.ModuleDict({name: LowRank(getattr(shape, name), settings.tli_rank) for name in ADAPTED})
            for shape in [target_like_layer(settings)] * (settings.num_tli_layers if settings.tli_rank else 0)
        )

    def begin_step(self, step: int) -> None:
        """Let gradients reach LSA now and then only."""
        self.memory.learn_lsa = step % self.learn_lsa_every == 0

    @torch.no_grad()
    def prepare(self, texts: Sequence[Text]) -> None:
        """Set LSA's channel statistics from the K/V of sample texts."""
        s = self.settings
        kv = torch.cat([text.kv for text in texts])
        chosen = kv[:, [s.needed_layers.index(layer) for layer in s.lsa_layers]].float()
        plain = self.memory.plain(chosen, torch.cat([torch.arange(len(text.ids)) for text in texts]))
        self.memory.lsa.center.copy_(plain.mean(0))
        self.memory.lsa.scale.copy_(1.0 / plain.std(0).clamp_min(1e-3))

    def correct(self, frozen: FrozenTarget) -> None:
        """Let the frozen layers of `frozen` run with this drafter's corrections, which stay trainable."""
        for layer, name, correction in self._corrected(frozen):
            setattr(layer, name, CorrectedLinear(getattr(layer, name), correction))

    @torch.no_grad()
    def merge(self, frozen: FrozenTarget) -> FrozenTarget:
        """Add the corrections into the weights of `frozen` (plain, as loaded from the target); returns it."""
        for layer, name, correction in self._corrected(frozen):
            weight = getattr(layer, name).weight
            weight.add_(correction.delta().to(weight.dtype))
        return frozen

    def _corrected(self, frozen: FrozenTarget) -> Iterator[tuple[nn.Module, str, LowRank]]:
        for layer, corrections in zip(frozen.layers, self.corrections, strict=False):
            for name, correction in corrections.named_children():
                if isinstance(correction, LowRank):
                    yield layer, name, correction

    def forward(self, texts: Sequence[Text], frozen: FrozenTarget) -> DrafterOutput:
        """Run all queries of all texts; predictions at position i are for token i + 1."""
        s = self.settings
        x, angles = self._self_attention(texts, frozen)
        x = torch.cat([part[text.first_query :] for part, text in zip(_split(x, texts), texts, strict=True)])
        queries = [(c[t.first_query :], n[t.first_query :]) for t, (c, n) in zip(texts, angles, strict=True)]
        cos, sin = (torch.cat([pair[i] for pair in queries]) for i in (0, 1))
        x = self._cross_attention(x, texts, cos, sin)
        entering = x
        for number, layer in enumerate(map(decoder_layer, frozen.layers)):
            index = s.needed_layers.index(s.tli_layers[number])
            x = _target_layer(layer, x, texts, index, cos, sin)
        return DrafterOutput(frozen.norm(x) if s.num_tli_layers else x, entering)

    def _self_attention(
        self, texts: Sequence[Text], frozen: FrozenTarget
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        s = self.settings
        angles = [rotary_angles(torch.arange(len(t.ids)), s.head_dim, s.rope_theta) for t in texts]
        cos, sin = torch.cat([pair[0] for pair in angles]), torch.cat([pair[1] for pair in angles])
        x = frozen.embedding(torch.cat([text.ids for text in texts])).float()
        lengths = [len(text.ids) for text in texts]
        for layer in map(decoder_layer, self.sa):
            normed = layer.input_layernorm(x)
            q = layer.query(normed, cos, sin).split(lengths)
            k, v = (part.split(lengths) for part in layer.key_value(normed, cos, sin))
            x = layer.finish(x, torch.cat([attend(*qkv, None) for qkv in zip(q, k, v, strict=True)]))
        return x, angles

    def _cross_attention(self, x: Tensor, texts: Sequence[Text], cos: Tensor, sin: Tensor) -> Tensor:
        memory_k, memory_v = self._rows(texts)
        layer: DecoderLayer = self.ca.layer
        q = layer.query(layer.input_layernorm(x), cos, sin).split([text.num_queries for text in texts])
        outputs = []
        for query, text, k, v in zip(q, texts, memory_k, memory_v, strict=True):
            seen = torch.arange(len(k))[None, :] < text.rows[:, None]
            mask = torch.cat((torch.ones(len(seen), 1, dtype=torch.bool), seen), dim=1)
            k, v = (self._heads(torch.cat(pair)) for pair in ((self.ca.null_k, k), (self.ca.null_v, v)))
            outputs.append(attend(query, k.to(query.dtype), v.to(query.dtype), mask))
        return layer.finish(x, torch.cat(outputs))

    def _rows(self, texts: Sequence[Text]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Memory keys and values of each text, for the positions that any query sees."""
        s = self.settings
        lengths = [int(text.rows[-1]) for text in texts]
        kv = torch.cat([text.kv[:length] for text, length in zip(texts, lengths, strict=True)])
        positions = torch.cat([torch.arange(length) for length in lengths])
        chosen = [s.needed_layers.index(layer) for layer in s.lsa_layers]
        direct = None if s.direct_layer < 0 else kv[:, s.needed_layers.index(s.direct_layer)]
        k, v = self.memory(kv[:, chosen], direct, positions)
        return k.split(lengths), v.split(lengths)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(-1, self.settings.num_kv_heads, self.settings.head_dim)


def _target_layer(
    layer: DecoderLayer, x: Tensor, texts: Sequence[Text], index: int, cos: Tensor, sin: Tensor
) -> Tensor:
    """A frozen target layer: true K/V where rows exist, the drafter's own for the rest of the block."""
    lengths = [text.num_queries for text in texts]
    normed = layer.input_layernorm(x)
    q = layer.query(normed, cos, sin).split(lengths)
    own_k, own_v = (part.split(lengths) for part in layer.key_value(normed, cos, sin))
    outputs = []
    for query, text, k, v in zip(q, texts, own_k, own_v, strict=True):
        count = int(text.rows[-1])
        true = text.kv[:count, index].unflatten(-1, (layer.kv_heads, layer.head_dim)).to(k.dtype)
        keys, values = torch.cat((true[:, 0], k)), torch.cat((true[:, 1], v))
        outputs.append(attend(query, keys, values, _target_mask(text, count)))
    return layer.finish(x, torch.cat(outputs))


def _target_mask(text: Text, count: int) -> Tensor:
    """bool [num_queries, count + num_queries]: true rows j < rows(i); own positions rows(i) <= j <= i."""
    positions = torch.arange(text.first_query, len(text.ids))
    rows = text.rows[:, None]
    true = torch.arange(count)[None, :] < rows
    own = (positions[None, :] >= rows) & (positions[None, :] <= positions[:, None])
    return torch.cat((true, own), dim=1)


def _split(x: Tensor, texts: Sequence[Text]) -> Sequence[Tensor]:
    return x.split([len(text.ids) for text in texts])
