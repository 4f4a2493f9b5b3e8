"""Which rules a verifier serves, by name.

Lossless rules are served unless the operator says otherwise: each has the target's law, they cost nothing until they
are asked for, and what one of them cannot judge without bias it refuses. Lossy rules are opt-in twice: the operator
has to serve them (``--rules lossless,overaccept``, or ``--judge`` with a head), since it is the target's name that the
text is given out under, and the client has to ask for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.cloud.rules.batch import Batch
from outrider.cloud.rules.block import Block
from outrider.cloud.rules.contract import Rule, read_parameters
from outrider.cloud.rules.coupled import Coupled
from outrider.cloud.rules.delta import Delta, Look
from outrider.cloud.rules.greedy import Greedy
from outrider.cloud.rules.judge import Judge
from outrider.cloud.rules.kl import Kl
from outrider.cloud.rules.lenience import Lenience
from outrider.cloud.rules.multidraft import Multidraft
from outrider.cloud.rules.overaccept import Overaccept
from outrider.cloud.rules.relative_margin import RelativeMargin
from outrider.cloud.rules.residual import Residual
from outrider.cloud.rules.top_m import TopM
from outrider.cloud.rules.traversal import Traversal
from outrider.cloud.rules.typical import Typical, TypicalOr
from outrider.shared import frames
from outrider.shared.errors import ConfigError, InvalidField
from outrider.shared.sampling import Sampling

OPTION = "--rules"
ALL = "all"
LOSSLESS = "lossless"
"""What `served_names` takes for a group of rules."""


@dataclass(frozen=True, slots=True)
class Rulebook:
    """Some rules, each by its name; the order is that of Describe."""

    rules: tuple[Rule, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """As on the wire."""
        return tuple(rule.name for rule in self.rules)

    def named(self, name: str) -> Rule:
        """The rule of that name. Raises `InvalidField` ("rule.name") with the names there are."""
        for rule in self.rules:
            if rule.name == name:
                return rule
        raise InvalidField(
            "rule.name",
            f"{name!r} is unknown or not served here",
            remedy=f"use one of {', '.join(self.names)}",
        )

    def stated(self, asked: frames.Rule) -> frames.Rule:
        """``asked`` with every parameter it has, defaults included. Raises `InvalidField` as `find`."""
        given = read_parameters(self.named(asked.name), dict(asked.parameters))
        return frames.Rule(asked.name, tuple(sorted(given.items())))

    def find(self, asked: frames.Rule, sampling: Sampling) -> Rule:
        """The rule that is asked for. Raises `InvalidField` ("rule.name", "rule.parameters") if it cannot be had so.

        Its parameters: ``read_parameters(rule, dict(asked.parameters))``.
        """
        rule = self.named(asked.name)
        rule.check(sampling, read_parameters(rule, dict(asked.parameters)))
        return rule


EXACT = Rulebook(
    (Greedy(), Coupled(), Residual(), Block(), Multidraft(), Batch(), Traversal(), Delta(), Look())
)
"""The lossless rules: what is served by default."""

LOSSY: tuple[Rule, ...] = (
    *(kind(uno=uno) for kind in (Overaccept, Lenience, TopM, RelativeMargin) for uno in (False, True)),
    Typical(),
    TypicalOr(),
    Kl(),
)

KNOWN = Rulebook((*EXACT.rules, *LOSSY))
"""Every rule that needs no more than its name."""


def served_names(words: Iterable[str]) -> tuple[str, ...]:
    """The rules that ``words`` mean: names, ``lossless`` or ``all``, in the order of `KNOWN`.

    Raises ConfigError ("--rules") for an unknown name, and for none at all.
    """
    wanted: set[str] = set()
    for word in words:
        if word in (ALL, LOSSLESS):
            wanted.update((KNOWN if word == ALL else EXACT).names)
        elif word in KNOWN.names:
            wanted.add(word)
        elif word == Judge.name:
            raise ConfigError(OPTION, "judge needs a head", remedy="say --judge HEAD.json, which serves it")
        else:
            known = ", ".join((LOSSLESS, ALL, *KNOWN.names))
            raise ConfigError(OPTION, f"there is no rule {word!r}", remedy=f"choose from {known}")
    if not wanted:
        raise ConfigError(OPTION, "no rule is left to serve")
    return tuple(name for name in KNOWN.names if name in wanted)


def rulebook(names: Sequence[str], judge: Judge | None = None) -> Rulebook:
    """The rules of these ``names`` (see `served_names`), and ``judge`` if there is one."""
    return Rulebook((*map(KNOWN.named, names), *(() if judge is None else (judge,))))
