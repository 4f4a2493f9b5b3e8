"""Accounts over whole texts: a lossy rule's next prefix is its own output, not the target's.

With prefixes drawn from the rule's *output* law, Σ_n E[rejection] + Σ_n E[loss] = Σ_n E[TV] for every rule on the line
of Theorem 5 (more for the others), and the total variation between the laws of whole texts is at most Σ_n E[loss]
(exchange one position after the other). So small losses per token add up over a text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from outrider.netsim.theory.chains import Process
from outrider.netsim.theory.overaccept import best_replacement, epsilon_rule, priced
from outrider.netsim.theory.pairs import Array, Pair
from outrider.netsim.theory.unbiased import emitted

Rule = Callable[[Pair], tuple[Array, Array]]
"""From the pairs to (b, P), each [..., vocabulary]."""


def opt_rule(epsilon: float) -> Rule:
    """Decoding-OPT with the ε-rule; ε = 0 is speculative decoding."""

    def rule(pair: Pair) -> tuple[Array, Array]:
        accept = epsilon_rule(pair, epsilon)
        return accept, best_replacement(pair, accept)

    return rule


def uno_rule(epsilon: float) -> Rule:
    """Decoding-UNO with the ε-rule; biased also at ε = 0."""

    def rule(pair: Pair) -> tuple[Array, Array]:
        return epsilon_rule(pair, epsilon), pair.target

    return rule


@dataclass(frozen=True, slots=True)
class Account:
    """Sums over the horizon, in expectation over the rule's own output."""

    rejections: float
    loss: float
    distance: float

    @property
    def gap(self) -> float:
        """rejections + loss - distance: 0 on the line, positive off it."""
        return self.rejections + self.loss - self.distance


def account(process: Process, rule: Rule) -> Account:
    """Exact account of a rule over the horizon."""
    weight, sums = np.ones(1), np.zeros(3)
    for step in process.steps:
        accept, replacement = rule(step)
        price = priced(step, accept, replacement)
        sums += [weight @ price.rejection, weight @ price.loss, weight @ price.distance]
        weight = process.advance(weight[:, None] * emitted(step, accept, replacement))
    return Account(float(sums[0]), float(sums[1]), float(sums[2]))


def text_distance(process: Process, rule: Rule) -> float:
    """Total variation between the laws of whole texts, the rule's and the target's, by enumeration.

    Raises `BadConfig` when there are too many prefixes to enumerate.
    """
    whole = process.by_prefix()
    output, target = np.ones(1), np.ones(1)
    for step in whole.steps:
        output = whole.advance(output[:, None] * emitted(step, *rule(step)))
        target = whole.advance(target[:, None] * step.target)
    return float(np.abs(output - target).sum() / 2)
