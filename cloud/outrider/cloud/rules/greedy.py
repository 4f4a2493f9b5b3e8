"""`greedy`: a drafted token is accepted when it is the target's argmax (Stern et al., 2018; temperature 0)."""

from __future__ import annotations

from outrider.cloud.rules.follow import follow
from outrider.cloud.rules.nodes import Decision, Nodes
from outrider.shared.errors import InvalidField
from outrider.shared.sampling import Sampling


class Greedy:
    """The text is the target's own greedy text."""

    name = "greedy"
    needs_hidden = False
    parameters: frozenset[str] = frozenset()

    def check(self, sampling: Sampling) -> None:
        """Refuse a temperature: `InvalidField` ("rule.name")."""
        if not sampling.greedy:
            raise InvalidField(
                "rule.name", f"greedy at temperature {sampling.temperature}", remedy="use coupled"
            )

    def __call__(self, nodes: Nodes) -> Decision:
        """Follow the argmax."""
        return follow(nodes)
