"""The optima of Theorems 2, 4 and 5 again, from their definitions, by linear programming. Needs scipy (`sim` extra).

Nothing here uses a closed form, so agreement says that the closed forms are optima and not only formulas.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

from outrider.netsim.theory.pairs import Array, Pair
from outrider.netsim.theory.unbiased import rejection


def least_rejection(pair: Pair) -> float:
    """Theorem 2: least rejection over all unbiased (b, P), for one pair [vocabulary].

    In a = b·draft and w = ρP: minimise Σw subject to a + w = target, 0 ≤ a ≤ draft, w ≥ 0.
    """
    size = pair.vocabulary
    cost = np.concatenate([np.zeros(size), np.ones(size)])
    both = np.hstack([np.eye(size), np.eye(size)])
    return _solve(cost, equal=(both, pair.target), upper=np.concatenate([pair.draft, np.full(size, np.inf)]))


def least_loss(pair: Pair, accept: Array) -> float:
    """Theorem 4: least total variation over P, for one pair and one b, both [vocabulary].

    In P and s ≥ |b·draft + ρP - target|: minimise ½Σs subject to ΣP = 1.
    """
    size = pair.vocabulary
    rho, short = float(rejection(pair, accept)), pair.target - accept * pair.draft
    cost = np.concatenate([np.zeros(size), np.full(size, 0.5)])
    below = np.vstack(
        [np.hstack([rho * np.eye(size), -np.eye(size)]), np.hstack([-rho * np.eye(size), -np.eye(size)])]
    )
    one = np.concatenate([np.ones(size), np.zeros(size)])[None, :]
    return _solve(cost, equal=(one, np.ones(1)), below=(below, np.concatenate([short, -short])))


def least_loss_at(pair: Pair, rejected: float) -> float:
    """Theorem 5: least loss over *all* b and P that reject with exactly this probability; TV - rejected on the line.

    In a = b·draft, w = ρP and s ≥ |a + w - target|: minimise ½Σs subject to Σw = rejected, Σa = 1 - rejected.
    """
    size = pair.vocabulary
    eye, zero = np.eye(size), np.zeros(size)
    cost = np.concatenate([zero, zero, np.full(size, 0.5)])
    below = np.vstack([np.hstack([eye, eye, -eye]), np.hstack([-eye, -eye, -eye])])
    sums = np.vstack([np.concatenate([zero, zero + 1, zero]), np.concatenate([zero + 1, zero, zero])])
    return _solve(
        cost,
        equal=(sums, np.array([rejected, 1 - rejected])),
        below=(below, np.concatenate([pair.target, -pair.target])),
        upper=np.concatenate([pair.draft, np.full(2 * size, np.inf)]),
    )


def _solve(
    cost: Array,
    *,
    equal: tuple[Array, Array],
    below: tuple[Array, Array] | None = None,
    upper: Array | None = None,
) -> float:
    """Minimum of cost·x over x ≥ 0. Raises `ArithmeticError` if the solver finds none: there always is one here."""
    left, right = below if below is not None else (None, None)
    ceiling = np.full(len(cost), np.inf) if upper is None else upper
    bounds = np.column_stack([np.zeros(len(cost)), ceiling])
    found = linprog(cost, A_ub=left, b_ub=right, A_eq=equal[0], b_eq=equal[1], bounds=bounds, method="highs")
    if found.status != 0:
        raise ArithmeticError(f"no optimum: {found.message}")
    return float(found.fun)
