"""Rules and what they report, as dataclass and as protobuf; both directions use them."""

from __future__ import annotations

from outrider.shared.errors import InvalidField
from outrider.shared.frames import Rule, RuleReport
from outrider.shared.wire_parts import check_count, check_finite
from outrider.v1 import verifier_pb2 as pb

MOST_PARAMETERS = 16
_BOUND = 1e9
_NAME_CHARS = 64
_ROUNDING = 1e-9


def rule_to_wire(rule: Rule) -> pb.Rule:
    """A rule as protobuf."""
    return pb.Rule(name=rule.name, parameters=dict(rule.parameters))


def rule_from_wire(message: pb.Rule, path: str) -> Rule:
    """The rule in ``message``, parameters by name; whether there is such a rule is not looked at.

    Raises InvalidField (under ``path``: "name", "parameters") for a name without bounds and numbers that are none.
    """
    if not 0 < len(message.name) <= _NAME_CHARS:
        raise InvalidField(f"{path}.name", f"must have 1 … {_NAME_CHARS} characters")
    check_count(len(message.parameters), MOST_PARAMETERS, f"{path}.parameters")
    parameters = tuple(
        (name, check_finite(value, -_BOUND, _BOUND, f"{path}.parameters"))
        for name, value in sorted(message.parameters.items())
    )
    return Rule(message.name, parameters)


def report_to_wire(report: RuleReport) -> pb.RuleReport:
    """A report as protobuf."""
    return pb.RuleReport(
        rule=rule_to_wire(report.rule),
        positions=report.positions,
        rejection=report.rejection,
        loss=report.loss,
        tv=report.tv,
        client_laws=report.client_laws,
    )


def report_from_wire(message: pb.RuleReport, path: str) -> RuleReport:
    """The report in ``message``: names that may be shown, sums of at most 1 per position. Raises InvalidField."""
    rule = rule_from_wire(message.rule, f"{path}.rule")
    for name in (rule.name, *(name for name, _ in rule.parameters)):
        if not name.isprintable() or len(name) > _NAME_CHARS:
            raise InvalidField(f"{path}.rule", "a name that cannot be shown")
    most = message.positions * (1 + _ROUNDING)
    return RuleReport(
        rule=rule,
        positions=message.positions,
        rejection=check_finite(message.rejection, 0.0, most, f"{path}.rejection"),
        loss=check_finite(message.loss, 0.0, most, f"{path}.loss"),
        tv=check_finite(message.tv, 0.0, most, f"{path}.tv"),
        client_laws=message.client_laws,
    )
