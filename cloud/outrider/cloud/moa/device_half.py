"""The device half in torch, step by step, with the exported graph's inputs and outputs: the graph's oracle.

Used by tests and by evaluation without onnxruntime. Shapes: n new tokens after t cached own slots, c row
positions, m selected tokens, w = kv_width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.cloud.moa.drafter import FrozenTarget, MoaDrafter
from outrider.cloud.moa.layers import DecoderLayer, attend, decoder_layer, rotary_angles


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """Inputs of one step."""

    ids: Tensor
    """int64 [n]."""
    positions: Tensor
    """int64 [n], absolute."""
    own_mask: Tensor
    """bool [n, t + n]: which cached slots and new tokens a token sees in self-attention."""
    tli_mask: Tensor
    """The same for target layers: positions that have valid rows are False; a token sees itself."""
    own_k: Sequence[Tensor]
    """Per own layer [t, w], keys rotated."""
    own_v: Sequence[Tensor]
    """Per own layer [t, w]."""
    rows: Sequence[Tensor]
    """Per plane [c, 2w]: keys (rotated) then values."""
    row_valid: Tensor
    """bool [c]."""
    select: Tensor
    """int64 [m]: new tokens that pay for the head."""


@dataclass(frozen=True, slots=True)
class DeviceOutput:
    """Outputs of one step."""

    logits: Tensor
    """[m, V_d], before temperature and noise."""
    new_k: list[Tensor]
    """Per own layer [n, w]."""
    new_v: list[Tensor]


class DeviceHalf:
    """SA, CA, frozen target layers and head on cached own K/V and received rows."""

    def __init__(self, drafter: MoaDrafter, frozen: FrozenTarget):
        self.settings = drafter.settings
        self._drafter, self._frozen = drafter, frozen

    @torch.no_grad()
    def step(self, step: DeviceStep) -> DeviceOutput:
        """Run n new tokens; nothing is remembered between steps."""
        s = self.settings
        cos, sin = rotary_angles(step.positions, s.head_dim, s.rope_theta)
        x = self._frozen.embedding(step.ids).float()
        new_k: list[Tensor] = []
        new_v: list[Tensor] = []
        none = torch.zeros(len(step.ids), 0, dtype=torch.bool)
        for layer in map(decoder_layer, self._drafter.sa):
            x = self._own(layer, x, step, (cos, sin), step.own_mask, (None, none), new_k, new_v)
        x = self._cross_attention(x, step, cos, sin)
        seen = step.row_valid[None, :].expand(len(step.ids), -1)
        for layer, rows in zip(map(decoder_layer, self._frozen.layers), step.rows[1:], strict=True):
            x = self._own(layer, x, step, (cos, sin), step.tli_mask, (rows, seen), new_k, new_v)
        x = x[step.select]
        if s.num_tli_layers:
            x = self._frozen.norm(x)
        return DeviceOutput(self._frozen.head(x), new_k, new_v)

    def _own(
        self,
        layer: DecoderLayer,
        x: Tensor,
        step: DeviceStep,
        angles: tuple[Tensor, Tensor],
        own_mask: Tensor,
        rows: tuple[Tensor | None, Tensor],
        new_k: list[Tensor],
        new_v: list[Tensor],
    ) -> Tensor:
        index = len(new_k)
        normed = layer.input_layernorm(x)
        k, v = (part.flatten(1) for part in layer.key_value(normed, *angles))
        new_k.append(k)
        new_v.append(v)
        keys, values = [step.own_k[index], k], [step.own_v[index], v]
        if rows[0] is not None:
            row_k, row_v = rows[0].chunk(2, dim=1)
            keys, values = [row_k, *keys], [row_v, *values]
        mask = torch.cat((rows[1], own_mask), dim=1)
        q = layer.query(normed, *angles)
        return layer.finish(x, attend(q, self._heads(keys), self._heads(values), mask))

    def _cross_attention(self, x: Tensor, step: DeviceStep, cos: Tensor, sin: Tensor) -> Tensor:
        ca = self._drafter.ca
        row_k, row_v = step.rows[0].chunk(2, dim=1)
        mask = torch.cat((torch.ones(1, dtype=torch.bool), step.row_valid))[None, :].expand(len(x), -1)
        q = ca.layer.query(ca.layer.input_layernorm(x), cos, sin)
        k, v = self._heads([ca.null_k, row_k]), self._heads([ca.null_v, row_v])
        return ca.layer.finish(x, attend(q, k, v, mask))

    def _heads(self, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts).unflatten(-1, (self.settings.num_kv_heads, self.settings.head_dim))
