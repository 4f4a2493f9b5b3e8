"""Loops in written text: cutting them while they are written, and saying how much a corpus loops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PERIODS = 64
"""Longest period that is seen, tokens."""
_SHORTEST = 20


class LoopWatch:
    """Sees, per slot, when the newest tokens repeat what stands before them for the third time.

    A loop of period p is recognised when the last 2p tokens (at least 20, as digits, dashes and spaces repeat in good
    text) each equal the token p before them; the text is then kept up to the end of the second repetition.
    """

    def __init__(self, slots: int) -> None:
        self._period = np.arange(1, PERIODS + 1)
        self._needed = np.maximum(2 * self._period, _SHORTEST)
        self._run = np.zeros((slots, PERIODS), np.int64)

    def clear(self, slot: int) -> None:
        """Forget a slot's text."""
        self._run[slot] = 0

    def add(
        self,
        slots: NDArray[np.int64],
        tokens: NDArray[np.int64],
        written: NDArray[np.int64],
        count: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Note one new token per slot, already in `written` [all slots, width] with its `count` [all slots].

        Returns how many tokens to keep of each text that loops now, 0 for the others.
        """
        before = count[slots, None] - 1 - self._period
        same = (written[slots[:, None], np.maximum(before, 0)] == tokens[:, None]) & (before >= 0)
        run = np.where(same, self._run[slots] + 1, 0)
        self._run[slots] = run
        looping = run >= self._needed
        first = looping.argmax(1)
        rows = np.arange(len(slots))
        keep = count[slots] - run[rows, first] + self._period[first]
        return np.where(looping[rows, first], keep, 0)
