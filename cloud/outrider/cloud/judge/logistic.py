"""Logistic regression with an L2 penalty and weighted rows, by Newton's method; numpy alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.judge.head import sigmoid

_STEPS = 50
_ENOUGH = 1e-8
"""Squared Newton decrement, relative to the loss, at which a fit is done."""


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A fitted classifier: logit = x @ weight + bias."""

    weight: NDArray[np.float64]
    bias: float

    def logits(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n] for ``x`` [n, features]."""
        return x @ self.weight + self.bias


def fit_logistic(
    x: NDArray[np.float64],
    good: NDArray[np.bool_],
    *,
    c: float,
    row_weight: NDArray[np.float64],
    start: Linear | None = None,
) -> Linear:
    """Minimise ½ |w|² + c · Σ row_weight · log(1 + exp(∓logit)) over w and an unpenalised bias.

    ``x``: [n, features], standardised; ``good``: [n]. ``start`` only saves steps. Both classes must be there
    (ValueError): otherwise the bias has no minimum.
    """
    if good.all() or not good.any():
        raise ValueError("labels of one class only")
    theta = np.zeros(x.shape[1] + 1) if start is None else np.append(start.weight, start.bias)
    return _newton(x, good.astype(np.float64), c * row_weight, 1.0, theta)


def _newton(
    x: NDArray[np.float64],
    truth: NDArray[np.float64],
    weight: NDArray[np.float64],
    penalty: float,
    theta: NDArray[np.float64],
) -> Linear:
    """Minimise ½ · penalty · |w|² + Σ weight · cross-entropy against ``truth`` (in [0, 1]), from ``theta`` on."""
    full = np.column_stack([x, np.ones(len(x))])
    ridge = np.append(np.full(x.shape[1], penalty), 0.0)

    def loss(at: NDArray[np.float64]) -> float:
        logits = full @ at
        return float(0.5 * ridge @ at**2 + weight @ (np.logaddexp(0.0, logits) - truth * logits))

    now = loss(theta)
    for _ in range(_STEPS):
        chance = sigmoid(full @ theta)
        gradient = ridge * theta + full.T @ (weight * (chance - truth))
        curvature = np.maximum(weight * chance * (1 - chance), 1e-12)
        hessian = (full * curvature[:, None]).T @ full
        hessian[np.diag_indices_from(hessian)] += ridge + 1e-12
        step = np.linalg.solve(hessian, gradient)
        decrement = float(gradient @ step)
        theta, now, moved = _damped(loss, theta, step, now, decrement)
        if not moved or decrement <= _ENOUGH * max(now, 1e-12):
            break
    return Linear(theta[:-1], float(theta[-1]))


def _damped(
    loss: Callable[[NDArray[np.float64]], float],
    theta: NDArray[np.float64],
    step: NDArray[np.float64],
    now: float,
    decrement: float,
) -> tuple[NDArray[np.float64], float, bool]:
    """Halve the step until the loss falls as far as a quadratic promises (Armijo)."""
    size = 1.0
    while size > 1e-8:
        tried = theta - size * step
        there = loss(tried)
        if there <= now - 1e-4 * size * decrement:
            return tried, there, True
        size /= 2
    return theta, now, False


def platt(logits: NDArray[np.float64], good: NDArray[np.bool_]) -> tuple[float, float]:
    """(a, b) such that sigmoid(a · logit + b) is a calibrated chance of being good (Platt 1999).

    Targets are Platt's (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2), which keep a separable set from running away. Raises
    ValueError with one class only. ``a`` is kept positive: calibration never turns an order around.
    """
    num_good, num_bad = int(good.sum()), int((~good).sum())
    if not num_good or not num_bad:
        raise ValueError("labels of one class only")
    truth = np.where(good, (num_good + 1) / (num_good + 2), 1 / (num_bad + 2))
    spread = float(logits.std()) or 1.0
    found = _newton(logits[:, None] / spread, truth, np.ones(len(logits)), 1e-6, np.zeros(2))
    return max(float(found.weight[0]) / spread, 1e-6), found.bias
