"""How verdicts are reached. One file per rule: a pure function over `Nodes`; no I/O, no generator."""

from __future__ import annotations

from outrider.cloud.rules.batch import Batch
from outrider.cloud.rules.block import Block
from outrider.cloud.rules.contract import NOTHING, Parameter, Rule, check_draft, read_parameters
from outrider.cloud.rules.coupled import Coupled
from outrider.cloud.rules.delta import Delta, Look
from outrider.cloud.rules.greedy import Greedy
from outrider.cloud.rules.multidraft import Multidraft
from outrider.cloud.rules.nodes import Audit, Decision, Nodes
from outrider.cloud.rules.residual import Residual
from outrider.cloud.rules.traversal import Traversal
from outrider.shared import frames
from outrider.shared.errors import InvalidField
from outrider.shared.sampling import Sampling

__all__ = [
    "NOTHING",
    "RULES",
    "Audit",
    "Decision",
    "Nodes",
    "Parameter",
    "Rule",
    "check_draft",
    "find_rule",
    "read_parameters",
]

_ALL: tuple[Rule, ...] = (
    Greedy(),
    Coupled(),
    Residual(),
    Block(),
    Multidraft(),
    Batch(),
    Traversal(),
    Delta(),
    Look(),
)

RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL}


def find_rule(asked: frames.Rule, sampling: Sampling) -> Rule:
    """The rule of that name. Raises `InvalidField` ("rule.name", "rule.parameters") for anything it cannot mean.

    Its parameters: ``read_parameters(rule, dict(asked.parameters))``.
    """
    rule = RULES.get(asked.name)
    if rule is None:
        raise InvalidField("rule.name", f'"{asked.name}" is not one of {", ".join(RULES)}')
    rule.check(sampling, read_parameters(rule, dict(asked.parameters)))
    return rule
