"""The independent drafter's entry in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.cloud.independent.drafter import IndependentDrafter
from outrider.cloud.independent.init import initialise
from outrider.cloud.independent.server_half import ServerHalf
from outrider.cloud.independent.settings import IndependentSettings, settings_for_target
from outrider.cloud.kinds.base import FrozenTarget, TrainableDrafter
from outrider.cloud.kinds.registry import Kind


def independent_drafter(drafter: TrainableDrafter) -> IndependentDrafter:
    """A drafter as the kind it must be here; TypeError if it is another."""
    if not isinstance(drafter, IndependentDrafter):
        raise TypeError(f"expected an IndependentDrafter, got {type(drafter).__name__}")
    return drafter


def server_half(drafter: TrainableDrafter) -> ServerHalf:
    """What the verifier runs."""
    return ServerHalf(independent_drafter(drafter).settings)


def build_graph(
    drafter: TrainableDrafter,
    frozen: FrozenTarget,
    max_position: int,
    metadata: Mapping[str, str],
    *,
    int8: bool = True,
) -> Any:
    """The device's ONNX model; onnx is loaded only here."""
    from outrider.cloud.independent.graph import build_graph as build

    return build(independent_drafter(drafter), frozen, max_position, dict(metadata), int8=int8)


KIND = Kind(
    name="independent",
    settings_class=IndependentSettings,
    shape=settings_for_target,
    build=IndependentDrafter,
    initialise=initialise,
    server_half=server_half,
    build_graph=build_graph,
)
