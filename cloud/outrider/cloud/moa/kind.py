"""The Mixture-of-Attentions drafter's entry in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.cloud.kinds.base import FrozenTarget, TrainableDrafter
from outrider.cloud.kinds.registry import Kind
from outrider.cloud.moa.config import MoaSettings, settings_for_target
from outrider.cloud.moa.drafter import MoaDrafter
from outrider.cloud.moa.init import initialise
from outrider.cloud.moa.server_half import ServerHalf


def moa_drafter(drafter: TrainableDrafter) -> MoaDrafter:
    """A drafter as the kind it must be here; TypeError if it is another."""
    if not isinstance(drafter, MoaDrafter):
        raise TypeError(f"expected a MoaDrafter, got {type(drafter).__name__}")
    return drafter


def server_half(drafter: TrainableDrafter) -> ServerHalf:
    """What the verifier runs: LSA, its projection, the direct path."""
    moa = moa_drafter(drafter)
    return ServerHalf(moa.settings, moa.memory)


def build_graph(
    drafter: TrainableDrafter,
    frozen: FrozenTarget,
    max_position: int,
    metadata: Mapping[str, str],
    *,
    int8: bool = True,
) -> Any:
    """The device's ONNX model; onnx is loaded only here."""
    from outrider.cloud.moa.graph import build_graph as build

    return build(moa_drafter(drafter), frozen, max_position, dict(metadata), int8=int8)


KIND = Kind(
    name="moa",
    settings_class=MoaSettings,
    shape=settings_for_target,
    build=MoaDrafter,
    initialise=initialise,
    server_half=server_half,
    build_graph=build_graph,
)
