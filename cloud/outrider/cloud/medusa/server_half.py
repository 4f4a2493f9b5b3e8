"""What the verifier runs of a Medusa drafter: nothing but handing over the target's final states.

Only the newest row matters to the device. All of them are sent all the same: which one will be the newest when
the next draft begins is not known before.
"""

from __future__ import annotations

from outrider.cloud.eagle2.server_half import FeatureServerHalf
from outrider.cloud.kinds.base import TrainableDrafter


def server_half(drafter: TrainableDrafter) -> FeatureServerHalf:
    """Plane 0: final hidden states, as for eagle2."""
    return FeatureServerHalf(drafter.settings)
