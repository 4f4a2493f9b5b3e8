"""What a rule is: what it declares, what it refuses, and how its parameters are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Protocol

from outrider.cloud.rules.nodes import Decision, Nodes
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import InvalidField
from outrider.shared.sampling import Sampling

ANY_DRAFT = frozenset(DraftKind)
"""For rules that are exact whatever was drafted."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number a rule takes."""

    default: float
    low: float
    high: float
    """Both bounds are allowed values."""
    what: str
    """What it does, for people."""


NOTHING: Mapping[str, float] = MappingProxyType({})
NO_PARAMETERS: Mapping[str, Parameter] = MappingProxyType({})


class Judging(Protocol):
    """What a rule declares of the drafts it can judge."""

    @property
    def name(self) -> str:
        """As on the wire."""

    @property
    def needs_laws(self) -> bool:
        """Whether `Nodes.draft_law` must work."""

    @property
    def drafts(self) -> frozenset[DraftKind]:
        """The kinds of draft it judges without bias."""


class Rule(Judging, Protocol):
    """A verification rule: a pure function over `Nodes`."""

    @property
    def needs_hidden(self) -> bool:
        """Whether `Nodes.hidden` must work."""

    @property
    def lossy(self) -> bool:
        """Whether it lets tokens through that the target would not have said."""

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The numbers it takes, by name."""

    def check(self, sampling: Sampling, given: Mapping[str, float] = NOTHING) -> None:
        """Raise `InvalidField` ("rule.…") if the rule does not go with this sampling and these parameters."""

    def takes(self, draft: Draft) -> None:
        """Raise `InvalidField` ("draft.…") for a draft it would judge with bias, or whose shape it cannot judge."""

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """The verdict on one round; ``given`` are all its parameters, see `read_parameters`.

        Raises `InvalidField` ("draft.…") as `takes` does.
        """


class Exact:
    """What lossless rules have in common: no parameters, any sampling; and, unless they say otherwise, any draft."""

    name: ClassVar[str]
    needs_hidden = False
    needs_laws = False
    lossy = False
    drafts = ANY_DRAFT
    parameters = NO_PARAMETERS

    def check(self, sampling: Sampling, given: Mapping[str, float] = NOTHING) -> None:
        """Any sampling will do."""

    def takes(self, draft: Draft) -> None:
        """Raise `InvalidField` unless it is of a kind that the rule judges without bias."""
        check_draft(self, draft)


def read_parameters(rule: Rule, asked: Mapping[str, float]) -> Mapping[str, float]:
    """Every parameter of ``rule``: as asked, else by default. Raises `InvalidField` ("rule.parameters")."""
    unknown = sorted(set(asked) - set(rule.parameters))
    if unknown:
        known = ", ".join(rule.parameters) or "no parameters"
        raise InvalidField("rule.parameters", f"{rule.name} takes {known}; came with {', '.join(unknown)}")
    for name, value in asked.items():
        bounds = rule.parameters[name]
        if not bounds.low <= value <= bounds.high:
            raise InvalidField(
                "rule.parameters", f"{name} of {rule.name} is {value}, expected {bounds.low} to {bounds.high}"
            )
    return {name: asked.get(name, parameter.default) for name, parameter in rule.parameters.items()}


def trusts_laws(rule: Rule, draft: Draft) -> bool:
    """Whether the verdict on ``draft`` would depend on laws that nobody but the client vouches for."""
    return bool(draft.laws) and (rule.needs_laws or rule.lossy)


def runs_ahead(rule: Rule) -> bool:
    """Whether the target may go on alone under ``rule``: only where every token is the target's own anyway."""
    return not (rule.lossy or rule.needs_laws)


_BIAS = {
    DraftKind.CHOSEN: "its tokens were chosen, not drawn, and accepting them by target / draft law would favour them",
    DraftKind.SAMPLED: "its siblings were drawn with replacement, and the rule would take an equal one for gone",
    DraftKind.DISTINCT: "its siblings were drawn without replacement, and each changes the law of the next",
}


def check_draft(rule: Judging, draft: Draft) -> None:
    """Raise `InvalidField` ("draft.kind", "draft.laws") unless ``rule`` can judge ``draft`` without bias.

    Without siblings a draw with and one without replacement are the same thing. An empty draft suits every rule.
    """
    if not len(draft):
        return
    drawn = frozenset((DraftKind.SAMPLED, DraftKind.DISTINCT))
    either = drawn if draft.kind in drawn and not draft.has_siblings else frozenset((draft.kind,))
    if not either & rule.drafts:
        wanted = " or ".join(kind.name for kind in sorted(rule.drafts))
        raise InvalidField(
            "draft.kind",
            f"{rule.name} judges {wanted} drafts; this one is {draft.kind.name}: {_BIAS[draft.kind]}",
            remedy="draft as the rule asks, or use delta or coupled, which are exact for any draft",
        )
    if rule.needs_laws and not draft.laws:
        raise InvalidField("draft.laws", f"{rule.name} compares laws, and the draft came without")


def check_chain(rule: Judging, draft: Draft) -> None:
    """`check_draft`, for rules that judge one chain: also raises `InvalidField` ("draft.parents") for a tree."""
    check_draft(rule, draft)
    if not draft.is_chain:
        raise InvalidField(
            "draft.parents", f"{rule.name} judges chains, this is a tree", remedy="use multidraft"
        )
