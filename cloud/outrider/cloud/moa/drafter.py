"""The Mixture-of-Attentions drafter as it is trained: one parallel pass over ragged texts.

A text is cut into *blocks*. A query at position i of a block that begins at b sees what the device would
see when the last verified position with rows is b - 1: the target's true rows for j < b, and nothing of
the target for b..i. So every answer position is trained under exactly the inference condition, and
running the same text with other cuts gives every depth (paper: hidden runs of 5..13 between observed
positions; there the observed ones carry off-distribution loss, here there are none).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from outrider.cloud.kinds.base import DrafterOutput, FrozenTarget, Text, TrainableDrafter
from outrider.cloud.kinds.layers import (
    ADAPTED,
    CorrectedLinear,
    DecoderLayer,
    Linear,
    LowRank,
    attend,
    decoder_layer,
    rotary_angles,
    target_like_layer,
)
from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.moa.lsa import MemoryProjection

__all__ = ["Block", "CrossAttention", "DrafterOutput", "FrozenTarget", "MoaDrafter", "Text"]


class CrossAttention(nn.Module):
    """Device side of the cross-attention layer; its keys and values come from the server."""

    def __init__(self, settings: MoaSettings):
        super().__init__()
        s = settings
        self.layer = DecoderLayer(
            s.hidden_size,
            s.num_heads,
            s.row_heads,
            s.head_dim,
            s.intermediate_size,
            s.rms_norm_eps,
            bias=s.attention_bias,
        )
        # Keys and values come from `MemoryProjection`, so the layer has none of its own.
        del self.layer.k_proj, self.layer.v_proj
        self.null_k = nn.Parameter(torch.zeros(1, s.row_width))
        self.null_v = nn.Parameter(torch.zeros(1, s.row_width))


class Block(nn.Module):
    """Self-attention layers, then cross-attention.

    The first block's self-attention is causal over the whole text: its input is embeddings, so its K/V never
    change. A later block's reads what the target layers on the device read of their own: positions without
    rows (the others are the cross-attention's business), and an always visible null row of each layer. So
    nothing on the device depends on when rows arrived.
    """

    def __init__(self, settings: MoaSettings, sa_layers: int, *, first: bool):
        super().__init__()
        self.sa = nn.ModuleList(target_like_layer(settings) for _ in range(sa_layers))
        self.ca = CrossAttention(settings)
        if not first and sa_layers:
            shape = (sa_layers, settings.kv_width)
            self.sa_null_k = nn.Parameter(torch.zeros(shape))
            self.sa_null_v = nn.Parameter(torch.zeros(shape))

    def layers(self) -> Iterator[DecoderLayer]:
        """The self-attention layers."""
        return map(decoder_layer, self.sa)

    def null(self, layer: int) -> tuple[Tensor, Tensor]:
        """Key and value [1, kv_width] that SA layer `layer` of a later block always sees."""
        return self.sa_null_k[layer : layer + 1], self.sa_null_v[layer : layer + 1]


@dataclass(frozen=True, slots=True)
class _Queries:
    """What every layer needs of the queries of a batch of texts."""

    texts: Sequence[Text]
    cos: Tensor
    sin: Tensor
    own: list[Tensor]
    """Per text bool [num_queries, num_queries]: own positions in the query's block up to itself."""
    seen: list[Tensor]
    """Per text bool [num_queries, c]: positions whose rows the query sees."""

    @property
    def lengths(self) -> list[int]:
        return [text.num_queries for text in self.texts]


class MoaDrafter(TrainableDrafter):
    """SA over frozen embeddings, CA over the server's memory, top layers of the target."""

    settings: MoaSettings
    device_prefixes = ("blocks.", "top.")
    # The direct path starts as an identity, corrections as a product with zero: Muon's orthogonal steps suit neither.
    adam_parts = ("direct_", "null_", "corrections.")
    # What the memory adds is small beside the direct path: at the full rate its updates are mostly noise.
    rate_shares = (("memory.", 0.3),)
    learn_lsa_every = 4
    """Steps between gradients into LSA, the dearest part of a step."""

    def __init__(self, settings: MoaSettings):
        super().__init__()
        self.settings = settings
        self.blocks = nn.ModuleList(
            Block(settings, count, first=number == 0) for number, count in enumerate(settings.sa_layers)
        )
        self.memory = MemoryProjection(settings)
        shapes = [target_like_layer(settings)] * settings.num_tli_layers
        self.corrections = nn.ModuleList(
            nn.ModuleDict({name: LowRank(getattr(shape, name), settings.tli_rank) for name in ADAPTED})
            for shape in (shapes if settings.tli_rank else [])
        )
        self.top = nn.ModuleList(
            nn.ModuleDict({name: _like(getattr(shape, name)) for name in ADAPTED})
            for shape in (shapes if settings.tli_full else [])
        )
        self.register_load_state_dict_pre_hook(_first_names)

    def parts(self) -> list[Block]:
        """The blocks, in order."""
        return [module for module in self.blocks if isinstance(module, Block)]

    def begin_step(self, step: int) -> None:
        """Let gradients reach LSA now and then only."""
        self.memory.learn_lsa = step % self.learn_lsa_every == 0

    @torch.no_grad()
    def prepare(self, texts: Sequence[Text]) -> None:
        """Set the memory's channel statistics from the K/V of sample texts."""
        positions = torch.cat([torch.arange(len(text.ids)) for text in texts])
        self.memory.standardise(torch.cat([text.kv for text in texts]), positions)

    def correct(self, frozen: FrozenTarget) -> None:
        """Let the frozen layers of `frozen` run with this drafter's corrections or matrices, which stay trainable."""
        for layer, name, part in self._adapted(frozen):
            base = getattr(layer, name)
            setattr(layer, name, CorrectedLinear(base, part) if isinstance(part, LowRank) else part)

    @torch.no_grad()
    def merge(self, frozen: FrozenTarget) -> FrozenTarget:
        """Bring corrections or matrices into the weights of `frozen` (as loaded from the target); returns it."""
        for layer, name, part in self._adapted(frozen):
            linear = getattr(layer, name)
            if isinstance(part, LowRank):
                linear.weight.add_(part.delta().to(linear.weight.dtype))
            else:
                linear.load_state_dict(part.state_dict())
        return frozen

    def _adapted(self, frozen: FrozenTarget) -> Iterator[tuple[nn.Module, str, LowRank | nn.Linear]]:
        for layer, parts in zip(frozen.layers, self.corrections or self.top, strict=False):
            for name, part in parts.named_children():
                if isinstance(part, LowRank | nn.Linear):
                    yield layer, name, part

    def forward(self, texts: Sequence[Text], frozen: FrozenTarget) -> DrafterOutput:
        """Run all queries of all texts; predictions at position i are for token i + 1."""
        s = self.settings
        first, *later = self.parts()
        x, angles = self._first_attention(first, texts, frozen)
        x = torch.cat([part[text.first_query :] for part, text in zip(_split(x, texts), texts, strict=True)])
        rows = self._rows(texts)
        queries = _queries(texts, angles)
        x = _cross_attention(first.ca, x, queries, rows[0])
        for block, block_rows in zip(later, rows[1:], strict=True):
            for number, layer in enumerate(block.layers()):
                x = _own_layer(layer, x, queries, [(*block.null(number), _always(t)) for t in texts])
            x = _cross_attention(block.ca, x, queries, block_rows)
        entering = x
        for layer, number in zip(map(decoder_layer, frozen.layers), s.tli_layers, strict=True):
            index = s.needed_layers.index(number)
            true = [text.kv[: seen.shape[1], index] for text, seen in zip(texts, queries.seen, strict=True)]
            before = [(kv[:, 0], kv[:, 1], seen) for kv, seen in zip(true, queries.seen, strict=True)]
            x = _own_layer(layer, x, queries, before)
        return DrafterOutput(x if not s.num_tli_layers else frozen.norm(x), entering)

    def _first_attention(
        self, block: Block, texts: Sequence[Text], frozen: FrozenTarget
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """SA of the first block over whole texts, and the rotary angles of each text."""
        s = self.settings
        angles = [rotary_angles(torch.arange(len(t.ids)), s.head_dim, s.rope_theta) for t in texts]
        cos, sin = torch.cat([pair[0] for pair in angles]), torch.cat([pair[1] for pair in angles])
        x = frozen.embedding(torch.cat([text.ids for text in texts])).float()
        lengths = [len(text.ids) for text in texts]
        masks = [_staircase(text) if text.staircase else None for text in texts]
        for layer in block.layers():
            normed = layer.input_layernorm(x)
            q = layer.query(normed, cos, sin).split(lengths)
            k, v = (part.split(lengths) for part in layer.key_value(normed, cos, sin))
            x = layer.finish(x, torch.cat([attend(*parts) for parts in zip(q, k, v, masks, strict=True)]))
        return x, angles

    def _rows(self, texts: Sequence[Text]) -> list[list[tuple[Tensor, Tensor]]]:
        """Per block and text: memory keys and values of the positions that any query sees."""
        lengths = [int(text.rows[-1]) for text in texts]
        kv = torch.cat([text.kv[:length] for text, length in zip(texts, lengths, strict=True)])
        final = None
        if self.settings.needs_final:
            finals = [_final(text)[:length] for text, length in zip(texts, lengths, strict=True)]
            final = torch.cat(finals)
        positions = torch.cat([torch.arange(length) for length in lengths])
        rows = self.memory(kv, final, positions)
        return [list(zip(k.split(lengths), v.split(lengths), strict=True)) for k, v in rows]


def _first_names(module: nn.Module, state: dict[str, Any], *rest: Any) -> None:
    """Weights written when there was only one block: give their tensors today's names."""
    moved = [("sa.", "blocks.0.sa."), ("ca.", "blocks.0.ca.")]
    for part in ("k_proj", "v_proj", "direct_k", "direct_v"):
        moved.append((f"memory.{part}.", f"memory.projections.0.{part}."))
    for name in list(state):
        for old, new in moved:
            if name.startswith(old):
                state[new + name.removeprefix(old)] = state.pop(name)


def _like(linear: nn.Linear) -> nn.Linear:
    return Linear(linear.in_features, linear.out_features, bias=linear.bias is not None)


def _final(text: Text) -> Tensor:
    if text.final is None:
        raise ValueError("this drafter reads final hidden states, and a text has none")
    return text.final


def _queries(texts: Sequence[Text], angles: Sequence[tuple[Tensor, Tensor]]) -> _Queries:
    parts = [(c[t.first_query :], n[t.first_query :]) for t, (c, n) in zip(texts, angles, strict=True)]
    cos, sin = (torch.cat([pair[i] for pair in parts]) for i in (0, 1))
    seen = [torch.arange(int(text.rows[-1]))[None, :] < text.rows[:, None] for text in texts]
    return _Queries(texts, cos, sin, [_own_mask(text) for text in texts], seen)


def _own_mask(text: Text) -> Tensor:
    """bool [num_queries, num_queries]: own positions rows(i) <= j <= i."""
    positions = torch.arange(text.first_query, len(text.ids))
    return (positions[None, :] >= text.rows[:, None]) & (positions[None, :] <= positions[:, None])


def _staircase(text: Text) -> Tensor:
    """bool [T, T]: causal, but a query reaches back to the begin of its block only."""
    mask = torch.ones(len(text.ids), len(text.ids), dtype=torch.bool).tril_()
    mask[text.first_query :] &= torch.arange(len(text.ids))[None, :] >= text.rows[:, None]
    return mask


def _always(text: Text) -> Tensor:
    return torch.ones(text.num_queries, 1, dtype=torch.bool)


def _cross_attention(
    ca: CrossAttention, x: Tensor, queries: _Queries, rows: Sequence[tuple[Tensor, Tensor]]
) -> Tensor:
    """The null row, and the rows of positions before the query's block."""
    layer = ca.layer
    q = layer.query(layer.input_layernorm(x), queries.cos, queries.sin).split(queries.lengths)
    outputs = []
    for query, text, (k, v), seen in zip(q, queries.texts, rows, queries.seen, strict=True):
        keys, values = (
            torch.cat(pair).to(query.dtype).view(-1, layer.kv_heads, layer.head_dim)
            for pair in ((ca.null_k, k), (ca.null_v, v))
        )
        outputs.append(attend(query, keys, values, torch.cat((_always(text), seen), dim=1)))
    return layer.finish(x, torch.cat(outputs))


def _own_layer(
    layer: DecoderLayer, x: Tensor, queries: _Queries, before: Sequence[tuple[Tensor, Tensor, Tensor]]
) -> Tensor:
    """A layer whose own K/V count inside the query's block only; `before` per text: keys, values, mask."""
    normed = layer.input_layernorm(x)
    q = layer.query(normed, queries.cos, queries.sin).split(queries.lengths)
    own_k, own_v = (part.split(queries.lengths) for part in layer.key_value(normed, queries.cos, queries.sin))
    outputs = []
    for query, k, v, own, (first_k, first_v, seen) in zip(q, own_k, own_v, queries.own, before, strict=True):
        keys, values = (
            torch.cat((first.to(part.dtype).view(-1, layer.kv_heads, layer.head_dim), part))
            for first, part in ((first_k, k), (first_v, v))
        )
        outputs.append(attend(query, keys, values, torch.cat((seen, own), dim=1)))
    return layer.finish(x, torch.cat(outputs))


def _split(x: Tensor, texts: Sequence[Text]) -> Sequence[Tensor]:
    return x.split([len(text.ids) for text in texts])
