"""The device half in torch, step by step, with the exported graph's inputs and outputs: the graph's oracle.

Used by tests and by evaluation without onnxruntime. Shapes: n new tokens after t cached own slots, c row
positions, m selected tokens, w = kv_width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.cloud.kinds.base import FrozenTarget
from outrider.cloud.kinds.layers import DecoderLayer, attend, decoder_layer, rotary_angles
from outrider.cloud.moa.drafter import MoaDrafter


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
    """The same for later blocks and target layers: positions that have valid rows are False; a token sees itself."""
    own_k: Sequence[Tensor]
    """Per own layer [t, w], keys rotated."""
    own_v: Sequence[Tensor]
    """Per own layer [t, w]."""
    rows: Sequence[Tensor]
    """Per plane [c, width]: keys (rotated) then values."""
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
    """SA, CA, target layers and head on cached own K/V and received rows."""

    def __init__(self, drafter: MoaDrafter, frozen: FrozenTarget):
        """`frozen` as the device gets it: with the drafter's corrections merged."""
        self.settings = drafter.settings
        self._blocks = drafter.parts()
        self._frozen = frozen

    @torch.no_grad()
    def step(self, step: DeviceStep) -> DeviceOutput:
        """Run n new tokens; nothing is remembered between steps."""
        s, n = self.settings, len(step.ids)
        run = _Run(step, rotary_angles(step.positions, s.head_dim, s.rope_theta))
        x = self._frozen.embedding(step.ids).float()
        always, seen = torch.ones(n, 1, dtype=torch.bool), step.row_valid[None, :].expand(n, -1)
        for number, block in enumerate(self._blocks):
            for index, layer in enumerate(block.layers()):
                null = (*block.null(index), always) if number else None
                x = run.own_layer(layer, x, step.tli_mask if number else step.own_mask, null)
            null_k, null_v = block.ca.null_k, block.ca.null_v
            row_k, row_v = step.rows[number].chunk(2, dim=1)
            mask = torch.cat((always, seen), dim=1)
            x = run.cross_layer(
                block.ca.layer, x, torch.cat((null_k, row_k)), torch.cat((null_v, row_v)), mask
            )
        top = map(decoder_layer, self._frozen.layers)
        for layer, rows in zip(top, step.rows[len(self._blocks) :], strict=True):
            row_k, row_v = rows.chunk(2, dim=1)
            x = run.own_layer(layer, x, step.tli_mask, (row_k, row_v, seen))
        x = x[step.select]
        if s.num_tli_layers:
            x = self._frozen.norm(x)
        return DeviceOutput(self._frozen.head(x), run.new_k, run.new_v)


class _Run:
    """One step's way through the layers, collecting new K/V."""

    def __init__(self, step: DeviceStep, angles: tuple[Tensor, Tensor]):
        self._step, self._angles = step, angles
        self.new_k: list[Tensor] = []
        self.new_v: list[Tensor] = []

    def own_layer(
        self, layer: DecoderLayer, x: Tensor, own_mask: Tensor, before: tuple[Tensor, Tensor, Tensor] | None
    ) -> Tensor:
        """`before` (keys, values, mask) in front of cached and new own K/V."""
        index = len(self.new_k)
        normed = layer.input_layernorm(x)
        k, v = (part.flatten(1) for part in layer.key_value(normed, *self._angles))
        self.new_k.append(k)
        self.new_v.append(v)
        keys, values, mask = [self._step.own_k[index], k], [self._step.own_v[index], v], own_mask
        if before is not None:
            keys, values = [before[0], *keys], [before[1], *values]
            mask = torch.cat((before[2], own_mask), dim=1)
        q = layer.query(normed, *self._angles)
        return layer.finish(
            x, attend(q, _heads(layer, torch.cat(keys)), _heads(layer, torch.cat(values)), mask)
        )

    def cross_layer(
        self, layer: DecoderLayer, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor
    ) -> Tensor:
        """Keys and values from elsewhere."""
        q = layer.query(layer.input_layernorm(x), *self._angles)
        return layer.finish(x, attend(q, _heads(layer, keys), _heads(layer, values), mask))


def _heads(layer: DecoderLayer, flat: Tensor) -> Tensor:
    return flat.unflatten(-1, (layer.kv_heads, layer.head_dim))
