"""How verdicts are reached. One file per rule: a pure function over `Nodes`; no I/O, no generator."""

from __future__ import annotations

from typing import Protocol

from outrider.cloud.rules.coupled import Coupled
from outrider.cloud.rules.greedy import Greedy
from outrider.cloud.rules.nodes import Decision, Nodes
from outrider.shared import frames
from outrider.shared.errors import InvalidField
from outrider.shared.sampling import Sampling

__all__ = ["RULES", "Decision", "Nodes", "Rule", "find_rule"]


class Rule(Protocol):
    """A verification rule."""

    name: str
    """As on the wire."""
    needs_hidden: bool
    """Whether `Nodes.hidden` must work."""
    parameters: frozenset[str]
    """Names of the parameters it takes."""

    def check(self, sampling: Sampling) -> None:
        """Raise `InvalidField` if the rule does not go with this sampling."""

    def __call__(self, nodes: Nodes) -> Decision:
        """The verdict on one round."""


RULES: dict[str, Rule] = {rule.name: rule for rule in (Greedy(), Coupled())}


def find_rule(asked: frames.Rule, sampling: Sampling) -> Rule:
    """The rule of that name. Raises `InvalidField` ("rule.name", "rule.parameters") for anything it cannot mean."""
    rule = RULES.get(asked.name)
    if rule is None:
        raise InvalidField("rule.name", f'"{asked.name}" is not one of {", ".join(RULES)}')
    unknown = sorted(name for name, _ in asked.parameters if name not in rule.parameters)
    if unknown:
        raise InvalidField("rule.parameters", f"{asked.name} takes no {', '.join(unknown)}")
    rule.check(sampling)
    return rule
