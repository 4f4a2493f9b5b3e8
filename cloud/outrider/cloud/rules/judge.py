"""`judge`: a drafted token stands if the target says it too, or if a linear head finds it good enough.

Judge Decoding (Bachmann et al., "Judge decoding: faster speculative sampling requires going beyond model alignment",
ICLR 2025). The head reads the target's state at the drafted token, which the target has consumed; whoever has written a
mistake shows it there. A token is accepted if the lossless criterion accepts it *or* the head's score reaches delta;
the first that fails both is replaced by the target's own token. Only verdicts cross the wire.

The lossless criterion is:

- for a chain that came with the laws it was drawn from: that of `residual`, replacement included, so that rejection +
  loss = TV (see `outrider.cloud.rules.audit`). The head's score is known at drafted tokens only, so the audit counts
  what was seen there, and is right on average;
- for any other draft: that of `coupled`, at temperature 0 of `greedy`: the token is the target's own. There is no
  audit. A head that lets nothing through leaves the text of `coupled` or `greedy`.

Vetoes, whatever the head says: no end of text and no special token; nothing outside the target's support, nothing less
likely than ``floor`` (at temperature 0: by the law at temperature 1); no more than ``in_a_row`` judged tokens in a row.
Each round ends with a token of the target's own, also one that a near tie in a tree cuts short, so no row is longer
than a round, and nothing need be known of the rounds before, by whatever replica they were judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.judge.head import Position
from outrider.cloud.rules.audit import estimate
from outrider.cloud.rules.contract import ANY_DRAFT, NOTHING, Parameter, read_parameters
from outrider.cloud.rules.nodes import Audit, Decision, Nodes
from outrider.cloud.rules.relaxed import tested
from outrider.cloud.rules.residual import left_over
from outrider.shared.coins import Purpose
from outrider.shared.draft import Draft
from outrider.shared.errors import InvalidField
from outrider.shared.frames import TokenKind
from outrider.shared.sampling import Sampling, law


class Head(Protocol):
    """What the rule wants of a head: `outrider.cloud.judge.head.JudgeHead`."""

    @property
    def delta(self) -> float:
        """The score from which a token is kept, unless a client asks for another one."""

    @property
    def position(self) -> Position:
        """Whether it reads the state at the drafted token or at the one before."""

    def score(self, states: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Probability that the token is good, a scalar array, of one state [hidden]."""


class Judge:
    """The target's token or one that the head lets through."""

    name = "judge"
    needs_hidden = True
    needs_laws = False
    lossy = True
    drafts = ANY_DRAFT

    def __init__(self, head: Head, never: frozenset[int] = frozenset()) -> None:
        """``never`` are ids that are never judged: ends of text and special tokens."""
        self.head = head
        self.never = never
        self.parameters: Mapping[str, Parameter] = MappingProxyType(
            {
                "delta": Parameter(head.delta, 0.0, 1.0, "Score from which the head lets a token through."),
                "floor": Parameter(1e-4, 0.0, 1.0, "Probability below which no token is let through."),
                "in_a_row": Parameter(8, 0, 512, "Judged tokens in a row, at most."),
            }
        )

    def check(self, sampling: Sampling, given: Mapping[str, float] = NOTHING) -> None:
        """Raise `InvalidField` ("rule.parameters") unless ``in_a_row`` is a whole number."""
        count = read_parameters(self, given)["in_a_row"]
        if count != int(count):
            raise InvalidField("rule.parameters", f"in_a_row of judge is {count}, expected a whole number")

    def takes(self, draft: Draft) -> None:
        """Any draft."""

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """Walk down the draft, by its laws if it has any that say something."""
        given = read_parameters(self, given)
        if nodes.draft.laws and nodes.draft.is_chain:
            return self._by_laws(nodes, given)
        return self._by_ids(nodes, given)

    def _by_laws(self, nodes: Nodes, given: Mapping[str, float]) -> Decision:
        path: list[int] = []
        kinds: list[TokenKind] = []
        audit = Audit()
        for node, token in enumerate(nodes.draft.ids):
            target, (ids, draft) = nodes.law(node), nodes.draft_entries(node)
            exact = min(1.0, float(target[token]) / nodes.drafted(node))
            accept = 1.0 if self._lets(nodes, node, kinds, given) else exact
            audit += estimate(target, ids, draft, token, accept)
            kind = tested(nodes, node, exact, accept)
            if kind is None:
                other = nodes.draw(left_over(target, draft, ids), node, Purpose.REPLACE)
                return Decision(tuple(path), other, (*kinds, TokenKind.RECOVERED), audit=audit)
            path.append(node)
            kinds.append(kind)
        bonus = nodes.draw(nodes.law(len(path)), len(path), Purpose.BONUS)
        return Decision(tuple(path), bonus, (*kinds, TokenKind.BONUS), audit=audit)

    def _by_ids(self, nodes: Nodes, given: Mapping[str, float]) -> Decision:
        """As `outrider.cloud.rules.follow.follow`, but where the target's token was not drafted the head is asked."""
        path: list[int] = []
        kinds: list[TokenKind] = []
        near_ties = row = 0
        while True:
            near = nodes.near_tie(row)
            if not nodes.is_exact(row) and (near or nodes.wants_log_probs):
                return _cut(nodes, path, kinds, near_ties)
            near_ties += near
            token = nodes.choice(row).token
            child, kind = nodes.child(row, token), TokenKind.ACCEPTED
            if child is None:
                children = nodes.draft.children(row)
                child = next((node for node in children if self._lets(nodes, node, kinds, given)), None)
                kind = TokenKind.JUDGED
            if child is None:
                end = TokenKind.RECOVERED if children else TokenKind.BONUS
                return Decision(tuple(path), token, (*kinds, end), near_ties)
            path.append(child)
            kinds.append(kind)
            row = child + 1

    def _lets(self, nodes: Nodes, node: int, kinds: list[TokenKind], given: Mapping[str, float]) -> bool:
        """Whether the head lets ``node`` through and nothing forbids it; ``kinds`` are those above it."""
        token, row = nodes.draft.ids[node], nodes.draft.parents[node]
        if token in self.never or token in nodes.stop_ids or _judged_last(kinds) >= given["in_a_row"]:
            return False
        likely = float(_belief(nodes, row)[token])
        if likely <= 0.0 or likely < given["floor"]:
            return False
        read = node + 1 if self.head.position is Position.CANDIDATE else row
        return bool(self.head.score(nodes.hidden(read)) >= given["delta"])


def _cut(nodes: Nodes, path: list[int], kinds: list[TokenKind], near_ties: int) -> Decision:
    """The verdict one token earlier; where the head alone had let that one through, with the target's in its place."""
    *path, last = path
    if kinds[-1] is not TokenKind.JUDGED:
        return Decision(tuple(path), nodes.draft.ids[last], tuple(kinds), near_ties)
    own = nodes.choice(nodes.draft.parents[last]).token
    return Decision(tuple(path), own, (*kinds[:-1], TokenKind.RECOVERED), near_ties)


def _judged_last(kinds: list[TokenKind]) -> int:
    """How many of the last tokens are judged ones, without a break."""
    count = 0
    for kind in reversed(kinds):
        if kind is not TokenKind.JUDGED:
            break
        count += 1
    return count


def _belief(nodes: Nodes, row: int) -> NDArray[np.float64]:
    """The target's law after ``row``; at temperature 0, whose law is one token, that at temperature 1."""
    if not nodes.sampling.greedy:
        return nodes.law(row)
    return law(nodes.logits[row], replace(nodes.sampling, temperature=1.0), nodes.text(row))
