"""A target law and a draft law over the same tokens, and what the two have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.netsim.errors import BadConfig

Array = NDArray[np.float64]

SUM_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """What the target says next, and what the draft says; any number of such pairs in the leading axes.

    Raises `BadConfig` unless both have one shape and every row is a law (finite, not negative, sum 1 up to 1e-9).
    """

    target: Array  # [..., vocabulary]
    draft: Array  # [..., vocabulary]

    def __post_init__(self) -> None:
        if self.target.shape != self.draft.shape or self.target.ndim == 0 or self.target.shape[-1] == 0:
            raise BadConfig("pair", f"target is {self.target.shape}, draft is {self.draft.shape}")
        for name, law in (("target", self.target), ("draft", self.draft)):
            if not np.isfinite(law).all() or (law < 0).any():
                raise BadConfig(name, "a law holds finite numbers from 0 up")
            off = float(np.abs(law.sum(axis=-1) - 1).max(initial=0.0))
            if off > SUM_TOLERANCE:
                raise BadConfig(name, f"a law sums to 1, this one is {off:.3g} off")

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.target.shape[-1]

    def rows(self, index: NDArray[np.int64]) -> Pair:
        """The pairs of these rows, [len(index), vocabulary]."""
        return Pair(self.target[index], self.draft[index])


def positive(values: Array) -> Array:
    """[a]+ of each entry."""
    return np.maximum(values, 0.0)


def normalised(mass: Array, otherwise: Array) -> Array:
    """Each row divided by its sum; rows with next to no mass (below 1e-12) become the row of `otherwise`."""
    total = mass.sum(axis=-1, keepdims=True)
    empty = total < 1e-12
    return np.where(empty, otherwise, mass / np.where(empty, 1.0, total))


def tv(pair: Pair) -> Array:
    """Total variation between target and draft, [...]: the share of drafts that speculative decoding rejects."""
    return positive(pair.target - pair.draft).sum(axis=-1)


def residual(pair: Pair) -> Array:
    """Law of the token that replaces a rejected one, nrm([target - draft]+), [..., vocabulary]."""
    return normalised(positive(pair.target - pair.draft), pair.target)


def ratio(target: Array, draft: Array) -> Array:
    """min(1, target / draft), and 1 where nothing is drafted; [..., vocabulary]."""
    drafted = draft > 0
    return np.where(drafted, np.minimum(1.0, target / np.where(drafted, draft, 1.0)), 1.0)


# The two golden pairs of the tests: one rejected token to choose from, and two.
G1 = Pair(np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.3, 0.2]))
G2 = Pair(np.array([0.05, 0.10, 0.15, 0.30, 0.40]), np.array([0.40, 0.25, 0.15, 0.15, 0.05]))


def bernoulli(u: float, v: float) -> Pair:
    """Draft Bernoulli(u), target Bernoulli(v), tokens 1 and 0."""
    return Pair(np.array([v, 1 - v]), np.array([u, 1 - u]))


def uniform(draft_size: int, target_size: int) -> Pair:
    """Draft uniform on `draft_size` tokens, target uniform on the first `target_size` of them."""
    if not 1 <= target_size <= draft_size:
        raise BadConfig("uniform", f"expected 1 <= {target_size} <= {draft_size}")
    target = np.zeros(draft_size)
    target[:target_size] = 1 / target_size
    return Pair(target, np.full(draft_size, 1 / draft_size))


def random_pairs(
    rng: np.random.Generator, shape: tuple[int, ...], vocabulary: int, concentration: float = 1.0
) -> Pair:
    """Independent Dirichlet laws, `shape` + [vocabulary]; a small concentration makes them peaked."""
    alpha = np.full(vocabulary, concentration)
    return Pair(rng.dirichlet(alpha, size=shape), rng.dirichlet(alpha, size=shape))
