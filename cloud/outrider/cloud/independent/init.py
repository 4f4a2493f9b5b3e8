"""Start an independent drafter from its target's layers."""

from __future__ import annotations

import torch

from outrider.cloud.independent.drafter import IndependentDrafter
from outrider.cloud.kinds.target import TargetWeights, copy_layer


@torch.no_grad()
def initialise(drafter: IndependentDrafter, weights: TargetWeights, seed: int) -> None:
    """Copy `settings.init_layers` and the final norm; nothing is random, so ``seed`` decides nothing."""
    del seed
    for layer, number in zip(drafter.decoder_layers(), drafter.settings.init_layers, strict=True):
        copy_layer(layer, weights, number)
    drafter.norm.weight.copy_(weights.get("model.norm.weight"))
