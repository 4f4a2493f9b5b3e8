"""Start a drafter from its target: copied layers learn in 45 k tokens what random ones learn in 330 k."""

from __future__ import annotations

import torch
from torch import nn

from outrider.cloud.kinds.layers import decoder_layer
from outrider.cloud.kinds.target import TargetWeights, copy_layer, frozen_target
from outrider.cloud.moa.drafter import MoaDrafter

__all__ = ["TargetWeights", "copy_layer", "frozen_target", "initialise"]


@torch.no_grad()
def initialise(drafter: MoaDrafter, weights: TargetWeights, seed: int) -> None:
    """Fill a fresh drafter: SA = the target's first layers, CA = the layer below the frozen ones.

    LSA and its projection start random and small; the direct path starts as the identity, so that the
    first cross-attention is exactly the target's own attention over true keys and values.
    """
    s = drafter.settings
    generator = torch.Generator().manual_seed(seed)
    for number, layer in enumerate(drafter.sa):
        copy_layer(decoder_layer(layer), weights, number)
    copy_layer(drafter.ca.layer, weights, s.direct_layer if s.direct_layer >= 0 else s.num_target_layers - 1)
    memory = drafter.memory
    for module in memory.lsa.modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(0.0, module.in_features**-0.5, generator=generator)
    memory.to_hidden.weight.normal_(0.0, memory.to_hidden.in_features**-0.5, generator=generator)
    memory.to_hidden.bias.zero_()
    small = 0.1 if s.direct_layer >= 0 else 1.0
    for projection in (memory.k_proj, memory.v_proj):
        projection.weight.normal_(0.0, small * s.hidden_size**-0.5, generator=generator)
    if s.direct_layer >= 0:
        nn.init.eye_(memory.direct_k.weight)
        nn.init.eye_(memory.direct_v.weight)
