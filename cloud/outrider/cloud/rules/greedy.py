"""`greedy`: a drafted token is accepted when it is the target's argmax (Stern et al., 2018; temperature 0)."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.cloud.rules.contract import NOTHING, Exact
from outrider.cloud.rules.follow import follow
from outrider.cloud.rules.nodes import Decision, Nodes
from outrider.shared.errors import InvalidField
from outrider.shared.sampling import Sampling


class Greedy(Exact):
    """The text is the target's own greedy text."""

    name = "greedy"

    def check(self, sampling: Sampling, given: Mapping[str, float] = NOTHING) -> None:
        """Refuse a temperature: `InvalidField` ("rule.name")."""
        if not sampling.greedy:
            raise InvalidField(
                "rule.name", f"greedy at temperature {sampling.temperature}", remedy="use coupled"
            )

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """Follow the argmax."""
        return follow(nodes)
