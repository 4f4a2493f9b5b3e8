"""`relative-margin`: what the target finds nearly as likely as its favourite stands.

b = 1 for a token with t(x) >= beta · max t, else as in `residual`. Where the target is sure of itself that is one
token; where it is not, any of the many it could as well have said.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from outrider.cloud.rules.audit import Ids, Probabilities
from outrider.cloud.rules.contract import Parameter
from outrider.cloud.rules.relaxed import Relaxed
from outrider.cloud.rules.residual import Law


class RelativeMargin(Relaxed):
    """A token stands if its probability is at least beta times the largest."""

    base = "relative-margin"
    parameters = MappingProxyType(
        {"beta": Parameter(0.5, 0.0, 1.0, "Least probability that stands, as a share of the largest.")}
    )

    def lets(self, target: Law, ids: Ids, draft: Probabilities, given: Mapping[str, float]) -> Probabilities:
        """1 within the margin, else 0."""
        return (target[ids] >= given["beta"] * np.max(target)).astype(np.float64)
