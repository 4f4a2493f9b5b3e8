"""The GLIDE drafter's entry in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.cloud.glide.drafter import GlideDrafter
from outrider.cloud.glide.init import initialise
from outrider.cloud.glide.server_half import ServerHalf
from outrider.cloud.glide.settings import GlideSettings, settings_for_target
from outrider.cloud.kinds.base import FrozenTarget, TrainableDrafter
from outrider.cloud.kinds.registry import Kind
from outrider.cloud.train.blocks import BlockMix

PAPER_MIX = BlockMix(long_share=0.0, whole_share=0.0, withheld_share=0.0, short=(5, 5))
"""Blocks of five, as in the paper. Shares of long and whole spans are options of the training command."""


def glide_drafter(drafter: TrainableDrafter) -> GlideDrafter:
    """A drafter as the kind it must be here; TypeError if it is another."""
    if not isinstance(drafter, GlideDrafter):
        raise TypeError(f"expected a GlideDrafter, got {type(drafter).__name__}")
    return drafter


def server_half(drafter: TrainableDrafter) -> ServerHalf:
    """What the verifier runs."""
    return ServerHalf(glide_drafter(drafter).settings)


def build_graph(
    drafter: TrainableDrafter,
    frozen: FrozenTarget,
    max_position: int,
    metadata: Mapping[str, str],
    *,
    int8: bool = True,
) -> Any:
    """The device's ONNX model; onnx is loaded only here."""
    from outrider.cloud.glide.graph import build_graph as build

    return build(glide_drafter(drafter), frozen, max_position, dict(metadata), int8=int8)


KIND = Kind(
    name="glide",
    settings_class=GlideSettings,
    shape=settings_for_target,
    build=GlideDrafter,
    initialise=initialise,
    server_half=server_half,
    build_graph=build_graph,
    mix=PAPER_MIX,
)
