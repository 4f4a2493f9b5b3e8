"""`kl`: where draft and target agree closely enough, what was drafted stands.

b = 1 for every token of a position with KL(d‖t) = sum of d·log(d/t) < kappa (natural logarithm), else as in `residual`.
That judge heads come to little more than such a threshold is the claim of "Judge decoding from first principles"
(arXiv 2601.04766); it is the control every judge has to beat. The direction is the one a sparse d allows: KL(t‖d) is
infinite as soon as the target can say a token that the draft's cut law cannot. Under top-k or top-p of the target's
own, KL(d‖t) is infinite where d reaches beyond them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from outrider.cloud.rules.audit import Ids, Probabilities
from outrider.cloud.rules.contract import Parameter
from outrider.cloud.rules.relaxed import Relaxed
from outrider.cloud.rules.residual import Law


class Kl(Relaxed):
    """A token stands if the two laws differ by less than kappa there."""

    base = "kl"
    parameters = MappingProxyType(
        {"kappa": Parameter(0.1, 0.0, 100.0, "Divergence below which a draft stands, nats; 0 is exact.")}
    )

    def lets(self, target: Law, ids: Ids, draft: Probabilities, given: Mapping[str, float]) -> Probabilities:
        """1 everywhere or 0 everywhere."""
        return np.full(len(ids), float(divergence(target, ids, draft) < given["kappa"]))


def divergence(target: Law, ids: Ids, draft: Probabilities) -> float:
    """KL(d‖t) in nats, 0 to infinity; ``draft`` is d of ``ids``, each above 0, and 0 elsewhere."""
    if not float(np.min(target[ids])) > 0.0:
        return float("inf")
    return max(0.0, float(np.sum(draft * np.log(draft / target[ids]))))
