"""`lenience`: the draft's law counts for less, b = min(1, t/(lenience·d)).

Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding", 2023, appendix A.5, there with
the replacement of Decoding-OPT. With that no token comes out more than 1/lenience times as often as the target says
it, which `overaccept` above 0 cannot promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from outrider.cloud.rules.audit import Ids, Probabilities
from outrider.cloud.rules.contract import Parameter
from outrider.cloud.rules.relaxed import Relaxed
from outrider.cloud.rules.residual import Law


class Lenience(Relaxed):
    """A token may be drafted 1/lenience times as often as the target says it."""

    base = "lenience"
    parameters = MappingProxyType(
        {
            "lenience": Parameter(
                0.5, 1e-3, 1.0, "What the draft's probabilities are multiplied by; 1 is exact."
            )
        }
    )

    def lets(self, target: Law, ids: Ids, draft: Probabilities, given: Mapping[str, float]) -> Probabilities:
        """min(1, t/(lenience·d))."""
        return (target[ids] / (given["lenience"] * draft)).clip(max=1.0)
