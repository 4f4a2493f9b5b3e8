"""The EAGLE-2 drafter's entry in the registry."""

from __future__ import annotations

from outrider.cloud.eagle2.drafter import Eagle2Drafter
from outrider.cloud.eagle2.init import initialise
from outrider.cloud.eagle2.server_half import FeatureServerHalf
from outrider.cloud.eagle2.settings import Eagle2Settings, settings_for_target
from outrider.cloud.kinds.base import TrainableDrafter
from outrider.cloud.kinds.registry import Kind
from outrider.cloud.train.blocks import BlockMix


def server_half(drafter: TrainableDrafter) -> FeatureServerHalf:
    """What the verifier runs: it hands over final hidden states."""
    return FeatureServerHalf(drafter.settings)


KIND = Kind(
    name="eagle2",
    settings_class=Eagle2Settings,
    shape=settings_for_target,
    build=Eagle2Drafter,
    initialise=initialise,
    server_half=server_half,
    # Training is one shifted pass, so that only withheld rows differ from the rest.
    mix=BlockMix(long_share=0.0, whole_share=0.0, withheld_share=0.03),
    dials=frozenset({"features"}),
)
