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

import math
import threading

import numpy as np
from numpy.typing import NDArray

NOISE_VERSION = 1
"""Part of the law fingerprint; changes whenever any number below would."""

GUMBEL_MAX = 22.9
"""No noise value is larger (u = 0 gives 22.87)."""

_MASK = 2**64 - 1
_HIGH = np.uint64(32)


class _Streams(threading.local):
    """A generator for each thread: winding one to another place takes a fifth of the time that making one does."""

    def __init__(self) -> None:
        self._stream = np.random.Philox(key=0)
        self._start = self._stream.state
        self._start["state"]["counter"][:] = _MASK
        self._key = self._start["state"]["key"]

    def at(self, seed: int, position: int) -> np.random.Philox:
        """The stream of a seed and a position, at its start; until this thread asks for another one."""
        self._key[:] = seed, position
        self._stream.state = self._start
        return self._stream


_streams = _Streams()


def raw_words(seed: int, position: int, vocabulary: int) -> NDArray[np.uint64]:
    """The words of ids 0 … vocabulary-1 at an absolute position; their high halves are the ids' random bits.

    Consecutive blocks from numpy's Philox, whose raw stream is stable across versions. It steps its counter before
    each block, hence the start at 0 - 1 (mod 2**256). Making them all takes less time than addressing a few dozen.
    """
    return _streams.at(seed & _MASK, position & _MASK).random_raw(vocabulary)


def bits_of(raw: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The random bits of raw words, same shape."""
    return (raw >> _HIGH).astype(np.uint32)


def words(seed: int, position: int, vocabulary: int) -> NDArray[np.uint32]:
    """The 32 random bits of ids 0 … vocabulary-1 at an absolute position."""
    return bits_of(raw_words(seed, position, vocabulary))


def gumbel_of(bits: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Standard Gumbel noise of random words, float64, same shape."""
    uniform = bits.astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-32
    return -np.log(-np.log1p(-uniform))


def gumbel_of_one(raw: int) -> float:
    """`gumbel_of` of one raw word, within rounding."""
    return -math.log(-math.log1p(-((raw >> 32) + 0.5) * 2.0**-32))


def gumbel(
    seed: int, position: int, token_ids: NDArray[np.integer] | None, vocabulary: int
) -> NDArray[np.float64]:
    """Standard Gumbel noise of each token id (None: of ids 0 … vocabulary-1) at an absolute position, float64.

    ``seed`` is 64 bits, ``position`` the absolute position of the token that is being chosen. ``vocabulary`` only says
    how many ids there are when ``token_ids`` does not.
    """
    if token_ids is None:
        return gumbel_of(words(seed, position, vocabulary))
    if len(token_ids) == 0:
        return np.zeros(0)
    return gumbel_of(bits_of(raw_words(seed, position, int(np.max(token_ids)) + 1)[token_ids]))
