"""The walk of the lossy rules that accept whatever `residual` would, and more (see `outrider.cloud.rules.audit`).

A rule says, per position, with which probability it lets each token through; the greater of that and min(1, t/d) is b.
One coin decides: below min(1, t/d) the token is ACCEPTED, as it would be without loss; below b it is JUDGED. Refused
ones are replaced by Decoding-OPT, or by Decoding-UNO in the rules whose name ends in ``-uno``, which are there to be
compared with.

What the target rules out altogether (t = 0: outside top-k, top-p or min-p, an end of text before the least length) is
not let through: these rules relax the target's taste, not its bans. At temperature 0 that leaves the argmax alone, and
the text is the greedy one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from outrider.cloud.rules.audit import Ids, Probabilities, account, lossless
from outrider.cloud.rules.contract import NOTHING, Parameter, check_chain, read_parameters
from outrider.cloud.rules.nodes import Audit, Decision, Nodes
from outrider.cloud.rules.residual import Law, left_over
from outrider.shared.coins import Purpose
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.frames import TokenKind
from outrider.shared.sampling import Sampling

UNO = "-uno"
"""Ends the names of rules that draw a replacement from the target's law, whatever was refused."""


class Relaxed(ABC):
    """A lossy rule on a chain that was drawn from the laws that came with it."""

    base: ClassVar[str]
    """The rule's name, but for the ending."""
    parameters: ClassVar[Mapping[str, Parameter]]
    needs_hidden = False
    needs_laws = True
    lossy = True
    drafts = frozenset((DraftKind.SAMPLED,))

    def __init__(self, *, uno: bool = False) -> None:
        self.uno = uno
        self.name = self.base + UNO if uno else self.base

    def check(self, sampling: Sampling, given: Mapping[str, float] = NOTHING) -> None:
        """Any sampling will do. Raise `InvalidField` ("rule.parameters") for a number out of range."""
        read_parameters(self, given)

    def takes(self, draft: Draft) -> None:
        """A drawn chain with its laws."""
        check_chain(self, draft)

    @abstractmethod
    def lets(self, target: Law, ids: Ids, draft: Probabilities, given: Mapping[str, float]) -> Probabilities:
        """With which probability each of ``ids`` is let through, [entries]; ``draft`` is d of ``ids``."""

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """Test token after token; the audit is exact."""
        self.takes(nodes.draft)
        given = read_parameters(self, given)
        path: list[int] = []
        kinds: list[TokenKind] = []
        audit = Audit()
        for node, token in enumerate(nodes.draft.ids):
            target, (ids, draft) = nodes.law(node), nodes.draft_entries(node)
            exact = lossless(target, ids, draft)
            accept = np.where(target[ids] > 0.0, np.maximum(exact, self.lets(target, ids, draft, given)), 0.0)
            other = target if self.uno else left_over(target, draft, ids)
            audit += account(target, ids, draft, accept, other)
            here = ids == token
            kind = tested(nodes, node, float(exact[here][0]), float(accept[here][0]))
            if kind is None:
                recovered = nodes.draw(other, node, Purpose.REPLACE)
                return Decision(tuple(path), recovered, (*kinds, TokenKind.RECOVERED), audit=audit)
            path.append(node)
            kinds.append(kind)
        bonus = nodes.draw(nodes.law(len(path)), len(path), Purpose.BONUS)
        return Decision(tuple(path), bonus, (*kinds, TokenKind.BONUS), audit=audit)


def tested(nodes: Nodes, node: int, exact: float, accept: float) -> TokenKind | None:
    """What one coin makes of ``node`` of a chain: kept without loss, kept all the same, or None for refused."""
    coin = nodes.coin(node, Purpose.ACCEPT, node)
    if coin < exact:
        return TokenKind.ACCEPTED
    return TokenKind.JUDGED if coin < accept else None
