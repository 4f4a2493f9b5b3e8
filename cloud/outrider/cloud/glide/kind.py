"""The GLIDE drafter's entry in the registry."""

from __future__ import annotations

from outrider.cloud.glide.drafter import GlideDrafter
from outrider.cloud.glide.init import initialise
from outrider.cloud.glide.server_half import ServerHalf
from outrider.cloud.glide.settings import GlideSettings, settings_for_target
from outrider.cloud.kinds.base import TrainableDrafter
from outrider.cloud.kinds.registry import Kind, of_kind
from outrider.cloud.train.blocks import BlockMix

PAPER_MIX = BlockMix(long_share=0.0, whole_share=0.0, withheld_share=0.0, short=(5, 5))
"""Blocks of five, as in the paper. Shares of long and whole spans are options of the training command."""


def server_half(drafter: TrainableDrafter) -> ServerHalf:
    """What the verifier runs."""
    return ServerHalf(of_kind(drafter, GlideDrafter).settings)


KIND = Kind(
    name="glide",
    settings_class=GlideSettings,
    shape=settings_for_target,
    build=GlideDrafter,
    initialise=initialise,
    server_half=server_half,
    mix=PAPER_MIX,
)
