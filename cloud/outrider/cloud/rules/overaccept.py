"""`overaccept`: the theory paper's family, b = min(1, (t + epsilon)/d).

Yin, Chen, Huang, Wang, NeurIPS 2024, section 4.2. Rejections fall to sum of [d - t - epsilon]+, at a loss of
sum of min(epsilon, [d - t]+) per position with Decoding-OPT. At epsilon 0 `overaccept` is `residual`; `overaccept-uno`
is lossy even there.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from outrider.cloud.rules.audit import Ids, Probabilities
from outrider.cloud.rules.contract import Parameter
from outrider.cloud.rules.relaxed import Relaxed
from outrider.cloud.rules.residual import Law


class Overaccept(Relaxed):
    """A token may be drafted more often than the target says it, by epsilon."""

    base = "overaccept"
    parameters = MappingProxyType(
        {"epsilon": Parameter(0.1, 0.0, 1.0, "Probability added to the target's; 0 adds nothing.")}
    )

    def lets(self, target: Law, ids: Ids, draft: Probabilities, given: Mapping[str, float]) -> Probabilities:
        """min(1, (t + epsilon)/d)."""
        return ((target[ids] + given["epsilon"]) / draft).clip(max=1.0)
