"""`delta` and `look`: any draft at all, without its laws.

For tokens that were *chosen* (likeliest first, a tree pruned by confidence, text found by lookup) a ratio of target to
draft law is biased: they did not come from that law. Taken as point masses they are exact:

- `delta` tests a node's children in order and accepts x with probability t(x); once refused, x is out and t is
  normalised. The walk goes on below an accepted child; with all refused the next token is drawn from what is left of t.
  This is rejection sampling with d = 1 at x (as in the released code of EAGLE-2: Li et al., 2024).
- `look` draws y from t once and goes on below the child that is y, or ends with y.

Both have the target's law for any draft that was made without knowing the coins, and the same law of verdicts: a node's
children S are accepted with probability t(S). `coupled` differs in that the device knows its coins in advance and
matches them more often.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from outrider.cloud.rules.contract import NOTHING, Exact
from outrider.cloud.rules.nodes import Decision, Nodes
from outrider.cloud.rules.residual import Law, ending
from outrider.shared.coins import Purpose
from outrider.shared.frames import TokenKind


def without(law: Law, token: int) -> Law:
    """``law`` given that it is not ``token``, [vocabulary]; all zero if it can be nothing else."""
    rest = law.copy()
    rest[token] = 0.0
    mass = float(np.sum(rest))
    return rest / mass if mass > 0.0 else rest


class Delta(Exact):
    """The target's law, from any draft: each child is a point mass."""

    name = "delta"

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """Walk down the tree, a coin per child."""
        path: list[int] = []
        row = 0
        while children := nodes.draft.children(row):
            target = nodes.law(row)
            for child in children:
                token = nodes.draft.ids[child]
                if nodes.coin(row, Purpose.ACCEPT, child) < float(target[token]):
                    break
                target = without(target, token)
            else:
                return ending(path, nodes.draw(target, row, Purpose.REPLACE), TokenKind.RECOVERED)
            path.append(child)
            row = child + 1
        return ending(path, nodes.draw(nodes.law(row), row, Purpose.BONUS), TokenKind.BONUS)


class Look(Exact):
    """The target's law, from any draft: the target draws, then looks whether that was drafted."""

    name = "look"

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """Walk down the tree, a draw per row."""
        path: list[int] = []
        row = 0
        while True:
            token = nodes.draw(nodes.law(row), row, Purpose.REPLACE)
            child = nodes.child(row, token)
            if child is None:
                kind = TokenKind.RECOVERED if nodes.draft.children(row) else TokenKind.BONUS
                return ending(path, token, kind)
            path.append(child)
            row = child + 1
