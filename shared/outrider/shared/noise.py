"""The noise both sides share: a pure function of (seed, absolute position, token id), never of a generator's state.

Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) with

    key      = (seed, position)
    counter  = (token_id // 4, 0, 0, 0)        word = token_id % 4
    u        = high 32 bits of that word
    U        = (u + 1/2) / 2**32               in (0, 1), exact in float64
    E        = -log1p(-U)                      exponential, finest resolution near 0, the end that wins
    g        = -log(E)                         standard Gumbel

so that ``argmax(log law + g)`` is a draw from the law (Gumbel-max). Words are addressed by the *target's* token id: a
drafter with a smaller vocabulary sees the same numbers. The textbook -log(-log(U)) in float32 rounds U to 1 for the
top 128 values and yields infinite noise every few hundred positions; hence float64 and log1p.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

NOISE_VERSION = 1
"""Part of the law fingerprint; changes whenever any number below would."""

GUMBEL_MAX = 22.9
"""No noise value is larger (u = 0 gives 22.87)."""

_MULTIPLIER_0 = 0xD2E7470EE14C6C93
_MULTIPLIER_1 = 0xCA5A826395121157
_WEYL_0 = 0x9E3779B97F4A7C15
_WEYL_1 = 0xBB67AE8584CAA73B
_MASK = 2**64 - 1
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
# Up to so many ids their blocks are computed here; for more, numpy's generator makes all words faster.
_FEW = 512

Words = NDArray[np.uint64]


def philox4x64(counter: ArrayLike, key: tuple[int, int]) -> Words:
    """Philox4x64-10 of counters [..., 4] (uint64) under one key: four words each, [..., 4].

    numpy's own ``Philox(counter=c, key=k)`` steps its counter first: its first four words are those of c + 1.
    """
    counters = np.asarray(counter, np.uint64)
    shape = counters.shape
    c0, c1, c2, c3 = np.ascontiguousarray(counters.reshape(-1, 4).T)
    k0, k1 = (int(part) & _MASK for part in key)
    for _ in range(10):
        high_0, low_0 = _multiply(_MULTIPLIER_0, c0)
        high_1, low_1 = _multiply(_MULTIPLIER_1, c2)
        c0, c1, c2, c3 = high_1 ^ c1 ^ np.uint64(k0), low_1, high_0 ^ c3 ^ np.uint64(k1), low_0
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return np.stack((c0, c1, c2, c3), axis=-1).reshape(shape)


def _multiply(constant: int, words: Words) -> tuple[Words, Words]:
    """High and low 64 bits of constant x word, by 32-bit halves (numpy has no 128-bit product)."""
    const_low, const_high = np.uint64(constant & 0xFFFFFFFF), np.uint64(constant >> 32)
    low, high = words & _LOW, words >> _HALF
    middle = const_high * low + ((const_low * low) >> _HALF)
    cross = const_low * high + (middle & _LOW)
    return const_high * high + (middle >> _HALF) + (cross >> _HALF), words * np.uint64(constant)


def words(
    seed: int, position: int, token_ids: NDArray[np.integer] | None, vocabulary: int
) -> NDArray[np.uint32]:
    """The 32 random bits of each token id (None: of ids 0 … vocabulary-1) at an absolute position."""
    if token_ids is not None and len(token_ids) <= _FEW:
        ids = np.asarray(token_ids, np.uint64)
        counters = np.zeros((*ids.shape, 4), np.uint64)
        counters[..., 0] = ids >> np.uint64(2)
        blocks = philox4x64(counters, (seed, position))
        chosen = np.take_along_axis(blocks, (ids & np.uint64(3)).astype(np.int64)[..., None], -1)[..., 0]
        return (chosen >> _HALF).astype(np.uint32)
    count = vocabulary if token_ids is None else int(np.max(token_ids)) + 1
    # One C loop makes consecutive blocks; it steps the counter first, so it starts at 0 - 1 (mod 2**256).
    stream = np.random.Philox(counter=2**256 - 1, key=(seed & _MASK) | ((position & _MASK) << 64))
    made = (stream.random_raw(count) >> _HALF).astype(np.uint32)
    return made if token_ids is None else made[np.asarray(token_ids)]


def gumbel(
    seed: int, position: int, token_ids: NDArray[np.integer] | None, vocabulary: int
) -> NDArray[np.float64]:
    """Standard Gumbel noise of each token id (None: of ids 0 … vocabulary-1) at an absolute position, float64.

    ``seed`` is 64 bits, ``position`` the absolute position of the token that is being chosen.
    """
    uniform = words(seed, position, token_ids, vocabulary).astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-32
    return -np.log(-np.log1p(-uniform))
