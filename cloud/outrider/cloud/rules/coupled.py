"""`coupled`: target and drafter throw the same coins (shared-seed Gumbel coupling).

y(n) = argmax over ids of log target law + gumbel(seed, n, id) is a draw from the target's law whatever was drafted, so
accepting a drafted token exactly when it equals y(n) leaves the text that of the target alone with that seed: under any
drafter, any draft length, any retry. A drafter that maximises its own log law + the same noise matches with probability
sum over x of 1 / sum over y of max(t(y)/t(x), d(y)/d(x)) (Daliri, Musco, Suresh, "Coupling without communication and
drafter-invariant speculative decoding", 2025), and only ids cross the wire.
"""

from __future__ import annotations

from collections.abc import Mapping

from outrider.cloud.rules.contract import NOTHING, Exact
from outrider.cloud.rules.follow import follow
from outrider.cloud.rules.nodes import Decision, Nodes


class Coupled(Exact):
    """The text is what the target alone samples with the same seed; at temperature 0 its greedy text."""

    name = "coupled"

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """Follow the target's draws."""
        return follow(nodes)
