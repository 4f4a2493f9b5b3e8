"""Start a Medusa drafter: heads begin as the identity, so that each drafts what the target's own head says."""

from __future__ import annotations

import torch

from outrider.cloud.kinds.target import TargetWeights
from outrider.cloud.medusa.drafter import MedusaDrafter, ResidualBlock


@torch.no_grad()
def initialise(drafter: MedusaDrafter, weights: TargetWeights, seed: int) -> None:
    """All blocks without effect, as upstream; nothing is random and nothing is copied."""
    del weights, seed
    for module in drafter.modules():
        if isinstance(module, ResidualBlock):
            module.linear.weight.zero_()
            module.linear.bias.zero_()
