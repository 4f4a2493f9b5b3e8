"""Theorem 2: which rules of one form keep the target's law, and which of them rejects least.

The form (Algorithm 2 of 2411.00841): draft a token x, accept it with probability b(x), otherwise draw from a law P.
Both may depend on the prefix, on nothing else. Unbiased for some P if and only if b ≤ min(1, target / draft) wherever
something is drafted, and then P = (target - b·draft) / rejection. So speculative decoding, the largest such b,
rejects least: total variation per position. The claim is about this form only; block verification and rules over
several drafts are of other forms and do better.
"""

from __future__ import annotations

import numpy as np

from outrider.netsim.errors import BadConfig
from outrider.netsim.theory.chains import Process
from outrider.netsim.theory.pairs import Array, Pair, normalised, positive, ratio

TOLERANCE = 1e-12


def standard(pair: Pair) -> Array:
    """b of speculative decoding, min(1, target / draft), [..., vocabulary]."""
    return ratio(pair.target, pair.draft)


def rejection(pair: Pair, accept: Array) -> Array:
    """Probability that the drafted token is rejected, Σ (1 - b)·draft, [...]."""
    return ((1 - accept) * pair.draft).sum(axis=-1)


def emitted(pair: Pair, accept: Array, replacement: Array) -> Array:
    """Law of the emitted token, b·draft + rejection·P, [..., vocabulary]."""
    return accept * pair.draft + rejection(pair, accept)[..., None] * replacement


def can_be_unbiased(pair: Pair, accept: Array) -> bool:
    """Whether some P makes this b unbiased, in every row."""
    return bool((accept * pair.draft <= pair.target + TOLERANCE).all())


def unbiased_replacement(pair: Pair, accept: Array) -> Array:
    """The P that makes this b unbiased. Raises `BadConfig` if there is none: b is above min(1, target / draft)."""
    if not can_be_unbiased(pair, accept):
        raise BadConfig(
            "accept", "above min(1, target / draft) somewhere: no replacement law makes up for it"
        )
    return normalised(positive(pair.target - accept * pair.draft), pair.target)


def member_rejections(process: Process, scale: float) -> float:
    """Expected rejections over the horizon of the unbiased rule b = scale · min(1, target / draft), scale in [0, 1]."""
    if not 0 <= scale <= 1:
        raise BadConfig("scale", f"expected 0 to 1, got {scale}")
    pairs = zip(process.marginals(), process.steps, strict=True)
    return float(np.sum([weight @ rejection(step, scale * standard(step)) for weight, step in pairs]))
