"""The device half in torch, step by step, with the exported graph's inputs and outputs: the graph's oracle.

Shapes: n new tokens after t cached own slots, m selected tokens, w = kv_width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.cloud.eagle2.drafter import Eagle2Drafter
from outrider.cloud.kinds.base import FrozenTarget


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """Inputs of one step."""

    ids: Tensor
    """int64 [n]."""
    positions: Tensor
    """int64 [n], absolute."""
    features: Tensor
    """[n, hidden]: of the position before each token; all zeros stands for the start feature."""
    own_mask: Tensor
    """bool [n, t + n]: which cached slots and new tokens a token sees."""
    own_k: Sequence[Tensor]
    """Per layer [t, w], keys rotated."""
    own_v: Sequence[Tensor]
    """Per layer [t, w]."""
    select: Tensor
    """int64 [m]: new tokens that pay for the head."""


@dataclass(frozen=True, slots=True)
class DeviceOutput:
    """Outputs of one step."""

    logits: Tensor
    """[m, V_d], before temperature and noise."""
    features: Tensor
    """[n, hidden]: predicted feature at each new token."""
    new_k: list[Tensor]
    """Per layer [n, w]."""
    new_v: list[Tensor]


class DeviceHalf:
    """Joining layer, decoder layers, norm and head on cached own K/V and the features given."""

    def __init__(self, drafter: Eagle2Drafter, frozen: FrozenTarget):
        self.settings = drafter.settings
        self._drafter, self._frozen = drafter, frozen

    @torch.no_grad()
    def step(self, step: DeviceStep) -> DeviceOutput:
        """Run n new tokens; nothing is remembered between steps."""
        s, drafter = self.settings, self._drafter
        unknown = (step.features == 0).all(dim=1, keepdim=True)
        before = torch.where(unknown, drafter.start, step.features)
        x = drafter.join(step.ids, before, self._frozen)
        heads = (s.num_kv_heads, s.head_dim)
        pairs = zip(step.own_k, step.own_v, strict=True)
        past = [(k.unflatten(-1, heads), v.unflatten(-1, heads)) for k, v in pairs]
        features, fresh = drafter.run(x, step.positions, [len(x)], [past], [step.own_mask])
        logits = self._frozen.head(features[step.select])
        new_k, new_v = ([part[i].flatten(1) for part in fresh] for i in (0, 1))
        return DeviceOutput(logits, features, new_k, new_v)
