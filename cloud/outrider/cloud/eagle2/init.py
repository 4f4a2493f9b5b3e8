"""Start an EAGLE-2 drafter from its target, as every kind here does."""

from __future__ import annotations

import torch
from torch import nn

from outrider.cloud.eagle2.drafter import Eagle2Drafter
from outrider.cloud.kinds.layers import DecoderLayer, decoder_layer
from outrider.cloud.kinds.target import TargetWeights, copy_layer

TOKEN_SHARE = 1.0
"""Size of the token's part of the joined stream, in units of the target's own embedding."""


@torch.no_grad()
def initialise(drafter: Eagle2Drafter, weights: TargetWeights, seed: int) -> None:
    """Layers = the target's last ones, norm = its final norm, and the feature passes through.

    The feature is turned back into a residual stream by undoing the final norm's weights. MLPs of another
    width than the target's get its first rows; further ones start without effect.
    """
    s = drafter.settings
    generator = torch.Generator().manual_seed(seed)
    final = weights.get("model.norm.weight")
    drafter.norm.weight.copy_(final)
    safe = torch.where(final.abs() < 0.05, torch.ones_like(final), final)
    drafter.from_feature.weight.copy_(torch.diag(1.0 / safe))
    drafter.from_token.weight.copy_(TOKEN_SHARE * torch.eye(s.hidden_size))
    first = s.num_target_layers - s.num_layers
    for number, layer in enumerate(map(decoder_layer, drafter.layers), start=first):
        if s.mlp_size == s.intermediate_size:
            copy_layer(layer, weights, number)
        else:
            _copy_resized(layer, weights, number, generator)
    drafter.start.zero_()


def _copy_resized(
    layer: DecoderLayer, weights: TargetWeights, number: int, generator: torch.Generator
) -> None:
    """Copy a target layer into one whose MLP has another width."""
    shape = layer.gate_proj, layer.up_proj, layer.down_proj
    width = layer.gate_proj.in_features
    size = weights.get(f"model.layers.{number}.mlp.gate_proj.weight").shape[0]
    whole = [
        nn.Linear(width, size, bias=False),
        nn.Linear(width, size, bias=False),
        nn.Linear(size, width, bias=False),
    ]
    layer.gate_proj, layer.up_proj, layer.down_proj = whole
    copy_layer(layer, weights, number)
    layer.gate_proj, layer.up_proj, layer.down_proj = shape
    shared = min(size, shape[0].out_features)
    for mine, theirs in zip(shape[:2], whole[:2], strict=True):
        mine.weight.normal_(0.0, width**-0.5, generator=generator)
        mine.weight[:shared] = theirs.weight[:shared]
    shape[2].weight.zero_()
    shape[2].weight[:, :shared] = whole[2].weight[:, :shared]
