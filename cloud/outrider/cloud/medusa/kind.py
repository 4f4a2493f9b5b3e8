"""The Medusa drafter's entry in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.cloud.kinds.base import FrozenTarget, TrainableDrafter
from outrider.cloud.kinds.registry import Kind
from outrider.cloud.medusa.drafter import MedusaDrafter
from outrider.cloud.medusa.init import initialise
from outrider.cloud.medusa.server_half import server_half
from outrider.cloud.medusa.settings import MedusaSettings, settings_for_target
from outrider.cloud.train.blocks import BlockMix


def build_graph(
    drafter: TrainableDrafter,
    frozen: FrozenTarget,
    max_position: int,
    metadata: Mapping[str, str],
    *,
    int8: bool = True,
) -> Any:
    """The device's ONNX model; onnx is loaded only here. TypeError for a drafter of another kind."""
    from outrider.cloud.medusa.graph import build_graph as build

    if not isinstance(drafter, MedusaDrafter):
        raise TypeError(f"expected a MedusaDrafter, got {type(drafter).__name__}")
    return build(drafter, frozen, max_position, dict(metadata), int8=int8)


KIND = Kind(
    name="medusa",
    settings_class=MedusaSettings,
    shape=settings_for_target,
    build=MedusaDrafter,
    initialise=initialise,
    server_half=server_half,
    build_graph=build_graph,
    # Every head learns at every position, whatever the cut; without a row there is nothing to learn.
    mix=BlockMix(long_share=0.0, whole_share=0.0, withheld_share=0.0),
)
