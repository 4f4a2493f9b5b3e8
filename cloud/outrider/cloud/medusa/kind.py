"""The Medusa drafter's entry in the registry."""

from __future__ import annotations

from outrider.cloud.kinds.registry import Kind
from outrider.cloud.medusa.drafter import MedusaDrafter
from outrider.cloud.medusa.init import initialise
from outrider.cloud.medusa.server_half import server_half
from outrider.cloud.medusa.settings import MedusaSettings, settings_for_target
from outrider.cloud.train.blocks import BlockMix

KIND = Kind(
    name="medusa",
    settings_class=MedusaSettings,
    shape=settings_for_target,
    build=MedusaDrafter,
    initialise=initialise,
    server_half=server_half,
    # Every head learns at every position, whatever the cut; without a row there is nothing to learn.
    mix=BlockMix(long_share=0.0, whole_share=0.0, withheld_share=0.0),
    dials=frozenset({"spans"}),
)
