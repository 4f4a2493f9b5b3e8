"""`typical` and `typical-or`: what is not surprising for the target stands (Medusa: Cai et al., 2024, section 2.3.1).

A token is typical if t(x) > min(epsilon, alpha·exp(-H(t))), H the entropy of the target's law (natural logarithm): the
flatter the law, the less a token needs. The defaults are the paper's, alpha = sqrt(epsilon).

- `typical` is Medusa's rule: of the paths from the base that are typical throughout the longest stands, of equally long
  ones the one the target finds likelier; then the target says its next token. It looks at ids alone and judges any
  draft. What the draft's law was is no part of it, so it refuses tokens that `residual` would have kept: rejection +
  loss lies above TV (by 0.15 of 0.5 on a drafter that is often wrong).
- `typical-or` accepts what is typical *or* what `residual` accepts and replaces as `residual` does, on a chain with its
  laws: rejection + loss = TV.

At temperature 0 both are greedy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.rules.audit import Ids, Probabilities, account
from outrider.cloud.rules.contract import ANY_DRAFT, NOTHING, Parameter, read_parameters
from outrider.cloud.rules.nodes import Audit, Decision, Nodes
from outrider.cloud.rules.relaxed import Relaxed
from outrider.cloud.rules.residual import Law
from outrider.shared.coins import Purpose
from outrider.shared.draft import Draft
from outrider.shared.frames import TokenKind
from outrider.shared.sampling import Sampling

PARAMETERS: Mapping[str, Parameter] = MappingProxyType(
    {
        "epsilon": Parameter(0.09, 0.0, 1.0, "What is likelier is typical whatever the entropy."),
        "alpha": Parameter(0.3, 0.0, 100.0, "What is likelier than alpha·exp(-entropy) is typical."),
    }
)


def threshold(target: Law, given: Mapping[str, float]) -> float:
    """min(epsilon, alpha·exp(-H)): what is likelier is typical."""
    some = target[target > 0.0]
    entropy = -float(np.sum(some * np.log(some)))
    return min(given["epsilon"], given["alpha"] * math.exp(-entropy))


class TypicalOr(Relaxed):
    """A token stands if it is typical, or by chance as without loss."""

    base = "typical-or"
    parameters = PARAMETERS

    def lets(self, target: Law, ids: Ids, draft: Probabilities, given: Mapping[str, float]) -> Probabilities:
        """1 for typical tokens, else 0."""
        return (target[ids] > threshold(target, given)).astype(np.float64)


class Typical:
    """A token stands if it is typical."""

    name = "typical"
    needs_hidden = False
    needs_laws = False
    lossy = True
    drafts = ANY_DRAFT
    parameters = PARAMETERS

    def check(self, sampling: Sampling, given: Mapping[str, float] = NOTHING) -> None:
        """Any sampling will do."""

    def takes(self, draft: Draft) -> None:
        """Any draft."""

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """Keep the longest typical path. A chain that came with its laws is audited, exactly."""
        given = read_parameters(self, given)
        path = self._best_path(nodes, given)
        row = path[-1] + 1 if path else 0
        told = bool(nodes.draft.laws) and nodes.draft.is_chain
        kinds = [TokenKind.ACCEPTED if self._is_own(nodes, node, told) else TokenKind.JUDGED for node in path]
        end = TokenKind.RECOVERED if nodes.draft.children(row) else TokenKind.BONUS
        audit = self._audit(nodes, path, given) if told else None
        return Decision(tuple(path), self._say(nodes, row, told), (*kinds, end), audit=audit)

    @staticmethod
    def _best_path(nodes: Nodes, given: Mapping[str, float]) -> list[int]:
        draft = nodes.draft
        reached: dict[int, tuple[int, float]] = {0: (0, 0.0)}  # per row: tokens kept, sum of log t
        laws: dict[int, tuple[NDArray[np.float64], float]] = {}
        for node, (token, parent) in enumerate(zip(draft.ids, draft.parents, strict=True)):
            if parent not in reached:
                continue
            if parent not in laws:
                law = nodes.law(parent)
                laws[parent] = (law, threshold(law, given))
            law, least = laws[parent]
            if law[token] > least:
                count, likelihood = reached[parent]
                reached[node + 1] = (count + 1, likelihood + math.log(law[token]))
        best = max(reached, key=lambda row: (reached[row], -row))
        return list(draft.path_to(best - 1)) if best else []

    @staticmethod
    def _is_own(nodes: Nodes, node: int, told: bool) -> bool:
        """Whether the rule without loss would have kept ``node``: `residual`, or `coupled` where laws are not told."""
        row, token = nodes.draft.parents[node], nodes.draft.ids[node]
        if not told:
            return nodes.choice(row).token == token
        return nodes.coin(row, Purpose.ACCEPT, node) < float(nodes.law(row)[token]) / nodes.drafted(node)

    @staticmethod
    def _say(nodes: Nodes, row: int, told: bool) -> int:
        """The target's token after ``row``; where the draft was drawn, by a coin that its drafter cannot know."""
        return nodes.draw(nodes.law(row), row, Purpose.REPLACE) if told else nodes.choice(row).token

    @staticmethod
    def _audit(nodes: Nodes, path: list[int], given: Mapping[str, float]) -> Audit:
        audit = Audit()
        for row in range(min(len(path) + 1, len(nodes.draft))):
            target, (ids, draft) = nodes.law(row), nodes.draft_entries(row)
            accept = (target[ids] > threshold(target, given)).astype(np.float64)
            audit += account(target, ids, draft, accept, target)
        return audit
