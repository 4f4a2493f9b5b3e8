"""The Mixture-of-Attentions drafter's entry in the registry."""

from __future__ import annotations

from outrider.cloud.kinds.base import TrainableDrafter
from outrider.cloud.kinds.registry import Kind, of_kind
from outrider.cloud.moa.config import MoaSettings, settings_for_target
from outrider.cloud.moa.drafter import MoaDrafter
from outrider.cloud.moa.init import initialise
from outrider.cloud.moa.server_half import ServerHalf


def server_half(drafter: TrainableDrafter) -> ServerHalf:
    """What the verifier runs: LSA, its projection, the direct path."""
    moa = of_kind(drafter, MoaDrafter)
    return ServerHalf(moa.settings, moa.memory)


KIND = Kind(
    name="moa",
    settings_class=MoaSettings,
    shape=settings_for_target,
    build=MoaDrafter,
    initialise=initialise,
    server_half=server_half,
)
