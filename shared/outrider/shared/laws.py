"""Sparse draft laws: what a device samples from is exactly what it sends.

A law on the wire is a list of integers: id ``i`` has probability ``count / 2^bits``. The device cuts its drafter's law
to few ids, rounds it to such integers and only then samples, from the rounded law, so that the verifier reads the very
law the tokens came from and every rule that compares laws stays exact for any cut and any ``bits`` ("quantise, then
sample": QS, arXiv 2507.00605; SQS, arXiv 2510.09942). Sampling first and cutting afterwards would be biased.

The price is acceptance: it changes by at most TV(rounded, original) <= (1 - mass kept) + entries / 2^bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from outrider.shared.errors import InvalidField

MAX_BITS = 16
"""A count fits in u16 (2^16 itself, of a law of one entry, is written 0)."""
MAX_ENTRIES = 255
"""A law's number of entries fits in u8."""


@dataclass(frozen=True, slots=True)
class SparseLaw:
    """A law in integers: ``counts[k] / 2^bits`` for ``ids[k]``, 0 for every other id.

    Raises `InvalidField` ("draft.laws.bits", ".sizes", ".ids", ".counts") for anything that is no law.
    """

    bits: int
    """1 to 16."""
    ids: tuple[int, ...]
    """1 to 255 different token ids."""
    counts: tuple[int, ...]
    """One per id, each at least 1, together exactly 2^bits."""

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MAX_BITS:
            raise InvalidField("draft.laws.bits", f"{self.bits}, expected 1 to {MAX_BITS}")
        if not 1 <= len(self.ids) <= MAX_ENTRIES:
            raise InvalidField(
                "draft.laws.sizes", f"a law of {len(self.ids)} entries, expected 1 to {MAX_ENTRIES}"
            )
        if len(self.counts) != len(self.ids):
            raise InvalidField("draft.laws.counts", f"{len(self.counts)} counts for {len(self.ids)} ids")
        if min(self.ids) < 0:
            raise InvalidField("draft.laws.ids", f"id {min(self.ids)} is negative")
        if len(set(self.ids)) != len(self.ids):
            raise InvalidField("draft.laws.ids", "an id stands twice in one law")
        if min(self.counts) < 1:
            raise InvalidField("draft.laws.counts", f"a count of {min(self.counts)}, expected at least 1")
        if sum(self.counts) != 1 << self.bits:
            raise InvalidField(
                "draft.laws.counts", f"a law's counts sum to {sum(self.counts)}, not to {1 << self.bits}"
            )

    def dense(self, vocabulary: int) -> NDArray[np.float64]:
        """The law of every id, float64 [vocabulary]; exact, since counts and 2^bits are."""
        law = np.zeros(vocabulary)
        law[list(self.ids)] = np.asarray(self.counts, np.float64) / (1 << self.bits)
        return law


def quantise(
    law: NDArray[np.float64],
    *,
    top: int = MAX_ENTRIES,
    mass: float = 1.0,
    bits: int = MAX_BITS,
    ids: NDArray[np.integer] | None = None,
) -> SparseLaw:
    """The likeliest entries of ``law`` [n], rounded to multiples of 2^-bits: largest remainder, none below one.

    Keeps at most ``top`` entries, and of those the fewest whose share of ``law`` reaches ``mass``. ``ids`` [n] are the
    token ids of the entries (None: their indices). Equal entries go by index, the lower first. Ids come out ascending.
    Raises ValueError for a law that is not finite, has a negative entry or no mass, and for dials out of range.
    """
    limit = min(MAX_ENTRIES, 1 << bits)
    if not (1 <= bits <= MAX_BITS and 1 <= top <= limit and 0 < mass <= 1):
        raise ValueError(f"bits {bits}, top {top}, mass {mass}: expected 1 .. 16, 1 .. {limit}, (0, 1]")
    total = float(np.sum(law))
    if not (np.isfinite(total) and total > 0 and float(np.min(law)) >= 0):
        raise ValueError("not a law: an entry is negative or not finite, or all are zero")
    kept = _likeliest(law, top)
    reached = np.cumsum(law[kept]) / total
    kept = np.sort(kept[: int(np.searchsorted(reached, mass, side="left")) + 1])
    counts = _round(law[kept] / np.sum(law[kept]), 1 << bits)
    names = kept if ids is None else ids[kept]
    order = np.argsort(names, kind="stable")
    return SparseLaw(bits, tuple(names[order].tolist()), tuple(counts[order].tolist()))


def sample(law: SparseLaw, coin: float) -> int:
    """The id that ``coin`` in [0, 1) draws: each with probability count / 2^bits."""
    return _draw(law.ids, law.counts, coin)


def sample_distinct(law: SparseLaw, coins: Sequence[float]) -> tuple[int, ...]:
    """Draws without replacement, in draw order: after each, its id is out and the rest is renormalised.

    At most as many as the law has entries; further coins are left over.
    """
    left = dict(zip(law.ids, law.counts, strict=True))
    drawn = []
    for coin in coins[: len(left)]:
        token = _draw(tuple(left), tuple(left.values()), coin)
        drawn.append(token)
        del left[token]
    return tuple(drawn)


def _draw(ids: Sequence[int], counts: Sequence[int], coin: float) -> int:
    reached = list(accumulate(counts))
    ticket = int(coin * reached[-1])
    return next(token for token, upto in zip(ids, reached, strict=True) if ticket < upto)


def _likeliest(law: NDArray[np.float64], top: int) -> NDArray[np.intp]:
    """Indices of the ``top`` largest positive entries, likeliest first, the lower index first among equals."""
    if top < len(law):
        threshold = np.partition(law, len(law) - top)[len(law) - top]
        candidates = np.flatnonzero(law >= threshold)
    else:
        candidates = np.arange(len(law))
    order = candidates[np.argsort(-law[candidates], kind="stable")][:top]
    return order[law[order] > 0]


def _round(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Integers >= 1 that sum to ``total``, one after the other where shares · total is furthest away."""
    ideal = shares * total
    counts = np.maximum(1, np.floor(ideal)).astype(np.int64)
    while missing := total - int(np.sum(counts)):
        if missing > 0:
            counts[int(np.argmax(ideal - counts))] += 1
        else:
            counts[int(np.argmax(np.where(counts > 1, counts - ideal, -np.inf)))] -= 1
    return counts
