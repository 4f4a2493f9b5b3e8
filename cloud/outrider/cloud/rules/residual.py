"""`residual`: speculative sampling of one chain, token by token.

Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding", 2023, Algorithm 1; Chen et
al., "Accelerating large language model decoding with speculative sampling", 2023. A token x drawn from the draft law
d is accepted with probability min(1, t(x)/d(x)), t the target's law; the first one refused is replaced by a draw from
what the draft left over, [t - d]+ normalised; behind an accepted chain comes a draw from t. Per position the emitted
token has law min(t, d) + TV·[t - d]+/TV = t, whatever d is. A token is accepted with probability 1 - TV(t, d).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.rules.contract import NOTHING, Exact, check_chain
from outrider.cloud.rules.nodes import Audit, Decision, Nodes
from outrider.shared.coins import Purpose
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.frames import TokenKind

Law = NDArray[np.float64]

LEAST_MASS = 1e-12
"""A difference of two laws with less mass is rounding: they are equal, and a rejection has probability ~ 0."""


EVERY = slice(None)


def left_mass(target: Law, draft: Law, ids: NDArray[np.intp] | slice = EVERY, kept: float = 1.0) -> float:
    """Sum of [kept·target - draft]+, where ``draft`` are the probabilities of ``ids`` and 0 elsewhere."""
    return max(0.0, kept - float(np.sum(np.minimum(kept * target[ids], draft))))


def left_over(target: Law, draft: Law, ids: NDArray[np.intp] | slice = EVERY, kept: float = 1.0) -> Law:
    """[kept·target - draft]+ normalised, [vocabulary]: the law of a replacement; ``target`` where nothing is left.

    ``draft`` are the probabilities of ``ids``, 0 elsewhere.
    """
    rest = kept * target
    rest[ids] = np.maximum(rest[ids] - draft, 0.0)
    mass = float(np.sum(rest))
    return rest / mass if mass >= LEAST_MASS else target


def ending(path: list[int], token: int, kind: TokenKind, audit: Audit | None = None) -> Decision:
    """The verdict of a lossless rule: ``path`` accepted, then ``token``."""
    return Decision(tuple(path), token, (*((TokenKind.ACCEPTED,) * len(path)), kind), audit=audit)


class Residual(Exact):
    """The target's law, from a chain that was drawn from the laws that came with it."""

    name = "residual"
    needs_laws = True
    drafts = frozenset((DraftKind.SAMPLED,))

    def takes(self, draft: Draft) -> None:
        """A drawn chain with its laws."""
        check_chain(self, draft)

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """Test token after token; the audit has rejection = tv and no loss."""
        self.takes(nodes.draft)
        path: list[int] = []
        tv = 0.0
        for node, token in enumerate(nodes.draft.ids):
            target, (ids, draft) = nodes.law(node), nodes.draft_entries(node)
            tv += left_mass(target, draft, ids)
            if not nodes.coin(node, Purpose.ACCEPT, node) < float(target[token]) / nodes.drafted(node):
                other = nodes.draw(left_over(target, draft, ids), node, Purpose.REPLACE)
                return ending(path, other, TokenKind.RECOVERED, Audit(node + 1, tv, 0.0, tv))
            path.append(node)
        last = len(path)
        bonus = nodes.draw(nodes.law(last), last, Purpose.BONUS)
        return ending(path, bonus, TokenKind.BONUS, Audit(last, tv, 0.0, tv))
