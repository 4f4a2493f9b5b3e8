"""The rule a turn asks for, as the command line says it, how drafts for it are drawn, and what is reported of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from outrider.shared.draft import DraftKind
from outrider.shared.errors import ConfigError, InvalidField, OutriderError
from outrider.shared.frames import Rule, RuleReport, Turn
from outrider.shared.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Manner:
    """How a rule that compares laws wants its drafts drawn."""

    kind: DraftKind
    first: int = 1
    """Children of the base, where trees are wanted."""
    below: int = 1
    """Children of any other node."""


_CHAIN = Manner(DraftKind.SAMPLED)
_TREE = Manner(DraftKind.DISTINCT, 4, 4)
"""Without replacement: no rule that takes both kinds accepts more of independent draws."""
_MANNERS: Mapping[str, Manner] = MappingProxyType(
    {
        "residual": _CHAIN,
        "block": _CHAIN,
        "multidraft": _TREE,
        "batch": Manner(DraftKind.SAMPLED, 4, 1),
        "traversal": _TREE,
        "typical-or": _CHAIN,
        "kl": _CHAIN,
    }
    | {
        name + ending: _CHAIN
        for name in ("overaccept", "lenience", "top-m", "relative-margin")
        for ending in ("", "-uno")
    }
)


def manner_of(rule: Rule) -> Manner | None:
    """How drafts for a rule are drawn; None for rules that go by ids alone, and for those not known here."""
    return _MANNERS.get(rule.name)


AUTO = "auto"
OPTION = "--rule"


def asked_rule(text: str, sampling: Sampling) -> Rule:
    """The rule of ``NAME[:PARAMETER=VALUE,…]``; ``auto`` is greedy at temperature 0, else coupled.

    Whether the verifier serves it, it says itself. Raises ConfigError ("--rule").
    """
    if text == AUTO:
        return Rule("greedy" if sampling.greedy else "coupled")
    name, colon, rest = text.partition(":")
    pairs = []
    for word in rest.split(",") if colon else ():
        parameter, equals, value = word.partition("=")
        try:
            pairs.append((parameter.strip(), float(value if equals else "")))
        except ValueError:
            raise ConfigError(OPTION, f"expected PARAMETER=VALUE, got {word!r}") from None
    if not name or len(dict(pairs)) < len(pairs):
        raise ConfigError(OPTION, f"{text!r} is no rule", remedy="say NAME[:PARAMETER=VALUE,…]")
    return Rule(name, tuple(sorted(pairs)))


def refused(error: OutriderError) -> OutriderError:
    """What a command line makes of an answer's error: a rule that cannot be had is a setting that cannot work."""
    if isinstance(error, InvalidField) and error.field.endswith("turn.rule.name"):
        return ConfigError(OPTION, error.why, remedy=error.remedy)
    return error


def report_conflict(report: RuleReport, turn: Turn) -> str | None:
    """Why a report is not on the turn's rule; None if it can be."""
    told = dict(report.rule.parameters)
    if report.rule.name != turn.rule.name:
        return f"the turn asked for {turn.rule.name}, and the report is on {report.rule.name}"
    if any(told.get(name) != value for name, value in turn.rule.parameters):
        return "the report is on other parameters than the turn's"
    return None


def rule_as_json(rule: Rule, report: RuleReport | None) -> dict[str, Any]:
    """The rule with its parameters; with a report every one of them, and the audit."""
    stated = rule if report is None else report.rule
    result: dict[str, Any] = {"name": stated.name, "parameters": dict(stated.parameters)}
    if report is None:
        return result | {"audit": None, "client_laws": None}
    audit = {
        "positions": report.positions,
        "rejection": report.rejection,
        "loss": report.loss,
        "tv": report.tv,
        "gap": report.gap,
    }
    return result | {"audit": audit, "client_laws": report.client_laws}


def rule_lines(rule: Rule, judged: int, report: RuleReport | None) -> list[str]:
    """For people: the rule, what it let through, what that did to the law, and whose laws were trusted."""
    stated = rule if report is None else report.rule
    given = ", ".join(f"{name} {value:g}" for name, value in stated.parameters)
    rows = [f"rule {stated.name}{f' ({given})' if given else ''}, {judged} tokens judged"]
    if report is None:
        return [*rows, "no report on the rule: the text ended before the verifier's word"]
    if report.positions:
        rows.append(
            f"rejection {report.rejection:.3f} + loss {report.loss:.3f} - TV {report.tv:.3f} = {report.gap:+.3f} "
            f"over {report.positions} drafted tokens"
        )
    if report.client_laws:
        rows.append("accepted by draft laws that this device supplied: the verifier does not vouch for them")
    return rows
