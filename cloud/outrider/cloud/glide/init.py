"""Start a GLIDE drafter from its target's layers."""

from __future__ import annotations

import torch

from outrider.cloud.glide.drafter import GlideDrafter
from outrider.cloud.kinds.target import TargetWeights, copy_layer, copy_linear


@torch.no_grad()
def initialise(drafter: GlideDrafter, weights: TargetWeights, seed: int) -> None:
    """Copy `settings.init_layers`, queries and output of every cross-attention from the target's last layer.

    There the true keys and values meet the queries and the output projection that the target has for them. Only the
    last cross-attention adds anything at first: below it, output projections start at zero. Nothing is random, so
    ``seed`` decides nothing.
    """
    del seed
    s = drafter.settings
    prefix = f"model.layers.{s.read_layer}."
    for number, (layer, source) in enumerate(zip(drafter.glide_layers(), s.init_layers, strict=True)):
        copy_layer(layer.own, weights, source)
        if layer.cross is None:
            continue
        layer.cross.norm.weight.copy_(weights.get(f"{prefix}input_layernorm.weight"))
        copy_linear(layer.cross.q_proj, weights, f"{prefix}self_attn.q_proj")
        copy_linear(layer.cross.o_proj, weights, f"{prefix}self_attn.o_proj")
        if number < s.num_layers - 1:
            layer.cross.o_proj.weight.zero_()
    drafter.norm.weight.copy_(weights.get("model.norm.weight"))
