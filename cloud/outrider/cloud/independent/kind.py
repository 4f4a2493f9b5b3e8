"""The independent drafter's entry in the registry."""

from __future__ import annotations

from outrider.cloud.independent.drafter import IndependentDrafter
from outrider.cloud.independent.init import initialise
from outrider.cloud.independent.server_half import ServerHalf
from outrider.cloud.independent.settings import IndependentSettings, settings_for_target
from outrider.cloud.kinds.base import TrainableDrafter
from outrider.cloud.kinds.registry import Kind, of_kind


def server_half(drafter: TrainableDrafter) -> ServerHalf:
    """What the verifier runs."""
    return ServerHalf(of_kind(drafter, IndependentDrafter).settings)


KIND = Kind(
    name="independent",
    settings_class=IndependentSettings,
    shape=settings_for_target,
    build=IndependentDrafter,
    initialise=initialise,
    server_half=server_half,
    # The target is not read; cuts show only in the staircase, which begins where blocks do.
    dials=frozenset({"staircase", "features"}),
)
