"""The GLIDE drafter as it is trained (Du et al. 2024, "GliDe with a CaPE", arXiv 2402.02082, section 3.1).

A decoder layer with a cross-attention between self-attention and MLP. It has query and output projections only: its
keys and values are the target's last-layer cache as it is. Those keys are rotated already, so queries alone are
rotated here (the published baseline of arXiv 2410.03804 rotates the keys again, after which attention depends on
p_q - 2 p_k). An always visible null row stands in where the target has said nothing yet: the paper's first block.

The paper's block mask is a `Text` cut into blocks. With more than one layer, self-attention above the first
cross-attention reads its own block only: K/V made there depend on what rows there were, and positions that have rows
are the cross-attention's business. So nothing on the device depends on when rows arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outrider.cloud.glide.settings import GlideSettings
from outrider.cloud.kinds.base import DrafterOutput, FrozenTarget, Text, TrainableDrafter
from outrider.cloud.kinds.layers import DecoderLayer, Linear, RmsNorm, attend, rotate, target_like_layer
from outrider.cloud.kinds.passes import Angles, causal_layer, causal_masks, whole_angles


class CrossAttention(nn.Module):
    """Queries and output; keys and values are the target's own."""

    def __init__(self, settings: GlideSettings):
        super().__init__()
        s = settings
        self.heads, self.head_dim = s.num_heads, s.head_dim
        self.norm = RmsNorm(s.hidden_size, s.rms_norm_eps)
        self.q_proj = Linear(s.hidden_size, s.num_heads * s.head_dim, bias=s.attention_bias)
        self.o_proj = Linear(s.num_heads * s.head_dim, s.hidden_size, bias=False)
        self.null_k = nn.Parameter(torch.zeros(1, s.kv_width))
        self.null_v = nn.Parameter(torch.zeros(1, s.kv_width))

    def query(self, x: Tensor, angles: Angles) -> Tensor:
        """Rotated queries [n, heads, head_dim] of a stream [n, hidden]."""
        return rotate(self.q_proj(self.norm(x)).view(-1, self.heads, self.head_dim), *angles)


class GlideLayer(nn.Module):
    """A decoder layer, with cross-attention from the first crossing layer on."""

    def __init__(self, settings: GlideSettings, number: int):
        super().__init__()
        s = settings
        self.own = target_like_layer(s, s.mlp_size)
        self.cross = CrossAttention(s) if number >= s.first_cross else None
        if number > s.first_cross:
            self.null_k = nn.Parameter(torch.zeros(1, s.kv_width))
            self.null_v = nn.Parameter(torch.zeros(1, s.kv_width))


@dataclass(frozen=True, slots=True)
class _Queries:
    """Positions from the begin of the first block on, of all texts; those before `first_query` only serve as keys."""

    texts: Sequence[Text]
    begins: list[int]
    """Per text its first block's begin."""
    angles: Angles
    rows: list[Tensor]
    """Per text [n]: as `Text.rows`, from the begin on."""

    @classmethod
    def of(cls, texts: Sequence[Text], angles: Angles) -> _Queries:
        begins = [int(text.rows[0]) for text in texts]
        rows = [
            torch.cat((t.rows[:1].expand(t.first_query - b), t.rows))
            for t, b in zip(texts, begins, strict=True)
        ]
        cos, sin = (cut(part, texts, begins) for part in angles)
        return cls(texts, begins, (cos, sin), rows)

    @property
    def lengths(self) -> list[int]:
        return [len(rows) for rows in self.rows]

    def own_masks(self) -> Iterator[Tensor]:
        """Per text bool [n, 1 + n]: the null row, and positions of the own block up to oneself."""
        for begin, rows in zip(self.begins, self.rows, strict=True):
            places = torch.arange(begin, begin + len(rows))
            own = (places[None, :] >= rows[:, None]) & (places[None, :] <= places[:, None])
            yield torch.cat((torch.ones(len(rows), 1, dtype=torch.bool), own), dim=1)


class GlideDrafter(TrainableDrafter):
    """Layers over frozen embeddings that read the target's last-layer cache; own final norm before the frozen head."""

    settings: GlideSettings
    device_prefixes = ("layers.",)
    adam_parts = ("null_",)

    def __init__(self, settings: GlideSettings):
        super().__init__()
        self.settings = settings
        self.layers = nn.ModuleList(GlideLayer(settings, number) for number in range(settings.num_layers))
        self.norm = RmsNorm(settings.hidden_size, settings.rms_norm_eps)

    def glide_layers(self) -> list[GlideLayer]:
        """The layers, typed."""
        return [layer for layer in self.layers if isinstance(layer, GlideLayer)]

    def forward(self, texts: Sequence[Text], frozen: FrozenTarget) -> DrafterOutput:
        """Run all queries of all texts; predictions at position i are for token i + 1."""
        s = self.settings
        layers = self.glide_layers()
        angles, masks = whole_angles(texts, s), causal_masks(texts)
        x = frozen.embedding(torch.cat([text.ids for text in texts])).float()
        for layer in layers[: s.first_cross]:
            x = causal_layer(layer.own, x, texts, angles, masks)
        queries = _Queries.of(texts, angles)
        for number, layer in enumerate(layers[s.first_cross :]):
            if number == 0:
                x = _whole_attention(layer.own, x, queries, angles, masks)
            else:
                x = _block_attention(layer, x, queries)
            x = layer.own.mlp(self._cross_attention(layer, x, queries))
        parts = zip(x.split(queries.lengths), texts, strict=True)
        return DrafterOutput(self.norm(torch.cat([part[-text.num_queries :] for part, text in parts])))

    def _cross_attention(self, layer: GlideLayer, x: Tensor, queries: _Queries) -> Tensor:
        """Residual stream plus what the queries read of the target before their blocks, and of the null row."""
        s, cross = self.settings, layer.cross
        if cross is None:
            return x
        q = cross.query(x, queries.angles).split(queries.lengths)
        outputs = []
        for query, text, rows in zip(q, queries.texts, queries.rows, strict=True):
            count = int(rows[-1])
            true = text.kv[:count, s.needed_layers.index(s.read_layer)].to(query.dtype)
            seen = torch.arange(count)[None, :] < rows[:, None]
            mask = torch.cat((torch.ones(len(rows), 1, dtype=torch.bool), seen), dim=1)
            null = torch.stack((cross.null_k, cross.null_v), dim=1).to(query.dtype)
            keys, values = torch.cat((null, true)).unflatten(-1, (s.num_kv_heads, s.head_dim)).unbind(1)
            outputs.append(attend(query, keys, values, mask))
        return x + cross.o_proj(torch.cat(outputs))


def _whole_attention(
    layer: DecoderLayer, x: Tensor, queries: _Queries, angles: Angles, masks: Sequence[Tensor | None]
) -> Tensor:
    """Self-attention of the queries over whole texts: x [sum of T, width] -> [queries, width]."""
    texts, lengths = queries.texts, [len(text.ids) for text in queries.texts]
    normed = layer.input_layernorm(x)
    keys, values = (part.split(lengths) for part in layer.key_value(normed, *angles))
    q = layer.query(cut(normed, texts, queries.begins), *queries.angles).split(queries.lengths)
    outputs = []
    for query, k, v, mask, begin in zip(q, keys, values, masks, queries.begins, strict=True):
        seen = mask if mask is not None else torch.ones(len(k), len(k), dtype=torch.bool).tril_()
        outputs.append(attend(query, k, v, seen[begin:]))
    return cut(x, texts, queries.begins) + layer.o_proj(torch.cat(outputs))


def _block_attention(layer: GlideLayer, x: Tensor, queries: _Queries) -> Tensor:
    """Self-attention of the queries inside their blocks: x [queries, width] -> the same."""
    own, lengths = layer.own, queries.lengths
    normed = own.input_layernorm(x)
    q = own.query(normed, *queries.angles).split(lengths)
    keys, values = (part.split(lengths) for part in own.key_value(normed, *queries.angles))
    outputs = []
    for query, k, v, mask in zip(q, keys, values, queries.own_masks(), strict=True):
        null_k, null_v = (part.to(k.dtype).view(1, *k.shape[1:]) for part in (layer.null_k, layer.null_v))
        outputs.append(attend(query, torch.cat((null_k, k)), torch.cat((null_v, v)), mask))
    return x + own.o_proj(torch.cat(outputs))


def cut(x: Tensor, texts: Sequence[Text], begins: Sequence[int]) -> Tensor:
    """Of every text the positions from its begin on: [sum of T, …] -> [queries, …]."""
    parts = x.split([len(text.ids) for text in texts])
    return torch.cat([part[begin:] for part, begin in zip(parts, begins, strict=True)])
