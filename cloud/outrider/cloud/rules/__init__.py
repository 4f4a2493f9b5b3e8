"""How verdicts are reached. One file per rule: a pure function over `Nodes`; no I/O, no generator."""

from __future__ import annotations

from outrider.cloud.rules.book import EXACT, KNOWN, Rulebook, rulebook, served_names
from outrider.cloud.rules.contract import (
    NOTHING,
    Parameter,
    Rule,
    check_draft,
    read_parameters,
    runs_ahead,
    trusts_laws,
)
from outrider.cloud.rules.judge import Judge
from outrider.cloud.rules.nodes import Audit, Decision, Nodes
from outrider.shared import frames
from outrider.shared.sampling import Sampling

__all__ = [
    "EXACT",
    "KNOWN",
    "NOTHING",
    "RULES",
    "Audit",
    "Decision",
    "Judge",
    "Nodes",
    "Parameter",
    "Rule",
    "Rulebook",
    "check_draft",
    "find_rule",
    "read_parameters",
    "rulebook",
    "runs_ahead",
    "served_names",
    "trusts_laws",
]

RULES: dict[str, Rule] = {rule.name: rule for rule in KNOWN.rules}


def find_rule(asked: frames.Rule, sampling: Sampling) -> Rule:
    """`Rulebook.find` among all rules that need no more than their name, served here or not."""
    return KNOWN.find(asked, sampling)
