"""Theorems 4 and 5: what accepting too much costs, and how to pay the least for it.

For an acceptance rule b let ρ = Σ (1 - b)·draft be its rejection. The loss of (b, P) is the total variation between the
emitted law b·draft + ρP and the target.

- Theorem 4: the least loss over P is Σ [b·draft - target]+, reached by P = nrm([target - b·draft]+) (*OPT*). Drawing
  the replacement from the target itself (*UNO*) loses at least as much.
- Theorem 5: if b ≥ min(1, target / draft) everywhere, rejection + least loss = TV(target, draft), exactly; for any b
  and P the sum is not less. So `gap` = rejection + loss - TV ≥ 0 says how far a rule is from the best it could be.
- For every b ≥ min(1, target / draft), [target - b·draft]+ = [target - draft]+: OPT needs no other residual than
  speculative decoding's own.

Source: 2411.00841, §4; formulas derived for this project.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.netsim.errors import BadConfig
from outrider.netsim.theory.pairs import Array, Pair, normalised, positive, ratio, tv
from outrider.netsim.theory.unbiased import emitted, rejection, standard


@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """What a rule costs at a position; arrays of one shape, [...]."""

    rejection: Array
    """Probability that the drafted token is rejected."""
    loss: Array
    """Total variation between the emitted law and the target."""
    distance: Array
    """Total variation between target and draft."""

    @property
    def gap(self) -> Array:
        """rejection + loss - distance, never below 0; 0 on the line."""
        return self.rejection + self.loss - self.distance


def epsilon_rule(pair: Pair, epsilon: float) -> Array:
    """The paper's family, b = min(1, (target + ε) / draft), [..., vocabulary]. Raises `BadConfig` for ε < 0."""
    if not epsilon >= 0:
        raise BadConfig("epsilon", f"expected 0 or more, got {epsilon}")
    return ratio(pair.target + epsilon, pair.draft)


def lenience_rule(pair: Pair, lenience: float) -> Array:
    """b = min(1, target / (ℓ·draft)), 0 < ℓ ≤ 1."""
    if not 0 < lenience <= 1:
        raise BadConfig("lenience", f"expected above 0, at most 1, got {lenience}")
    return ratio(pair.target, lenience * pair.draft)


def top_rule(pair: Pair, size: int) -> Array:
    """Accept the target's `size` likeliest tokens always (ties: the lower id), the others as speculative decoding."""
    order = np.argsort(-pair.target, axis=-1, kind="stable")[..., :size]
    accept = standard(pair)
    np.put_along_axis(accept, order, 1.0, axis=-1)
    return accept


def best_replacement(pair: Pair, accept: Array) -> Array:
    """The canonical optimal P, nrm([target - b·draft]+), [..., vocabulary] (Theorem 4, Decoding-OPT)."""
    return normalised(positive(pair.target - accept * pair.draft), pair.target)


def least_loss(pair: Pair, accept: Array) -> Array:
    """Theorem 4's optimum Σ [b·draft - target]+, [...]."""
    return positive(accept * pair.draft - pair.target).sum(axis=-1)


def is_best(pair: Pair, accept: Array, replacement: Array, tolerance: float = 1e-12) -> bool:
    """Whether P is one of *all* optimal ones: 0 ≤ ρP ≤ target - b·draft where that is positive, P = 0 elsewhere."""
    missing = positive(pair.target - accept * pair.draft)
    return bool((rejection(pair, accept)[..., None] * replacement <= missing + tolerance).all())


def priced(pair: Pair, accept: Array, replacement: Array) -> Price:
    """The price of any b and P, from the emitted law itself."""
    loss = np.abs(emitted(pair, accept, replacement) - pair.target).sum(axis=-1) / 2
    return Price(rejection(pair, accept), loss, tv(pair))


def opt(pair: Pair, accept: Array) -> Price:
    """Decoding-OPT: this b with the best P."""
    return priced(pair, accept, best_replacement(pair, accept))


def uno(pair: Pair, accept: Array) -> Price:
    """Decoding-UNO: this b, and a draw from the target on rejection."""
    return priced(pair, accept, pair.target)


def epsilon_price(pair: Pair, epsilon: float) -> Price:
    """OPT with the ε-rule in closed form: rejection Σ [draft - target - ε]+, loss Σ min(ε, [draft - target]+)."""
    excess = positive(pair.draft - pair.target)
    return Price(positive(excess - epsilon).sum(axis=-1), np.minimum(epsilon, excess).sum(axis=-1), tv(pair))
