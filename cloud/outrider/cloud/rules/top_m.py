"""`top-m`: the target's m likeliest tokens stand.

b = 1 for a token that is among the m likeliest of the target's law (of equal ones the lower ids), else as in
`residual`. How much that loses depends on the law: nothing is said about what the m-th likeliest is worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from outrider.cloud.rules.audit import Ids, Probabilities
from outrider.cloud.rules.contract import NOTHING, Parameter, read_parameters
from outrider.cloud.rules.relaxed import Relaxed
from outrider.cloud.rules.residual import Law
from outrider.shared.errors import InvalidField
from outrider.shared.sampling import Sampling


class TopM(Relaxed):
    """A token stands if the target has fewer than m that are likelier."""

    base = "top-m"
    parameters = MappingProxyType(
        {"m": Parameter(2, 1, 255, "So many of the target's likeliest tokens stand.")}
    )

    def check(self, sampling: Sampling, given: Mapping[str, float] = NOTHING) -> None:
        """Raise `InvalidField` ("rule.parameters") unless m is a whole number."""
        m = read_parameters(self, given)["m"]
        if m != int(m):
            raise InvalidField("rule.parameters", f"m of {self.name} is {m}, expected a whole number")

    def lets(self, target: Law, ids: Ids, draft: Probabilities, given: Mapping[str, float]) -> Probabilities:
        """1 for the likeliest, else 0."""
        return np.isin(ids, likeliest(target, int(given["m"]))).astype(np.float64)


def likeliest(law: Law, count: int) -> Ids:
    """Ids of the ``count`` largest entries, in no particular order; of equal ones the lower ids."""
    if count >= len(law):
        return np.arange(len(law))
    least = np.partition(law, len(law) - count)[len(law) - count]
    above = np.flatnonzero(law > least)
    return np.concatenate((above, np.flatnonzero(law == least)[: count - len(above)]))
