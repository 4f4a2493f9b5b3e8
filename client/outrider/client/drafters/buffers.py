"""A drafter's memory: keys and values of the device's own, and the state rows received.

Both are position-major float32 arrays that are only ever sliced from the front, so that onnxruntime reads them without
a copy. They double when full, up to ``max_position``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FIRST_CAPACITY = 512

Array = NDArray[np.float32]
Mask = NDArray[np.bool_]


class OwnCache:
    """Keys and values the device computed itself: per layer [capacity, width], one slot per token or draft node."""

    def __init__(self, layers: int, width: int) -> None:
        self.width = width
        self.keys = [np.zeros((FIRST_CAPACITY, width), np.float32) for _ in range(layers)]
        self.values = [np.zeros((FIRST_CAPACITY, width), np.float32) for _ in range(layers)]

    def write(self, slot: int, keys: Sequence[Array], values: Sequence[Array]) -> None:
        """Store n new rows of every layer at ``slot`` …"""
        self._grow(slot + len(keys[0]) if keys else 0)
        for buffers, news in ((self.keys, keys), (self.values, values)):
            for buffer, new in zip(buffers, news, strict=True):
                buffer[slot : slot + len(new)] = new

    def move(self, source: int, target: int) -> None:
        """Copy one slot to another (a drafted node becomes part of the sequence)."""
        if source == target:
            return
        for buffer in (*self.keys, *self.values):
            buffer[target] = buffer[source]

    def _grow(self, size: int) -> None:
        if not self.keys or size <= len(self.keys[0]):
            return
        capacity = max(size, 2 * len(self.keys[0]))
        self.keys = [grown(buffer, capacity) for buffer in self.keys]
        self.values = [grown(buffer, capacity) for buffer in self.values]


class RowStore:
    """State rows by position: per plane [capacity, width]; a position counts once every plane has it."""

    def __init__(self, widths: Sequence[int], max_position: int) -> None:
        self.widths = tuple(widths)
        self.max_position = max_position
        self.planes = [np.zeros((FIRST_CAPACITY, width), np.float32) for width in widths]
        self.have = np.zeros((len(self.widths), FIRST_CAPACITY), np.bool_)
        self.valid = np.zeros(FIRST_CAPACITY, np.bool_)
        """Per position: the rows of all planes are there."""

    def add(self, plane: int, start: int, rows: Array) -> None:
        """Store rows [count, width]; raises ValueError on an unknown plane, a wrong width, place or value."""
        if not 0 <= plane < len(self.widths):
            raise ValueError(f"no row plane {plane}: this bundle has {len(self.widths)}")
        if rows.ndim != 2 or rows.shape[1] != self.widths[plane]:
            raise ValueError(
                f"rows of plane {plane} have shape {rows.shape}, expected [n, {self.widths[plane]}]"
            )
        stop = start + len(rows)
        if start < 0 or stop > self.max_position:
            raise ValueError(f"rows {start} to {stop} are outside 0 to {self.max_position}")
        if not np.isfinite(rows).all():
            raise ValueError(f"rows {start} to {stop} of plane {plane} are not finite")
        self._grow(stop)
        self.planes[plane][start:stop] = rows
        self.have[plane, start:stop] = True
        self.valid[start:stop] = self.have[:, start:stop].all(axis=0)

    def cut(self, length: int) -> None:
        """Forget the rows of positions ``length`` and beyond."""
        self.have[:, length:] = False
        self.valid[length:] = False

    def known(self, size: int) -> Mask:
        """Which of the first ``size`` positions are valid: [size], a copy."""
        known = np.zeros(size, np.bool_)
        known[: len(self.valid)] = self.valid[:size]
        return known

    def span(self, limit: int) -> int:
        """One past the last valid position below ``limit``; 0 without any."""
        if not self.widths:
            return 0
        known = np.flatnonzero(self.valid[:limit])
        return int(known[-1]) + 1 if len(known) else 0

    def _grow(self, size: int) -> None:
        capacity = len(self.valid)
        if size <= capacity:
            return
        capacity = max(size, 2 * capacity)
        self.planes = [grown(buffer, capacity) for buffer in self.planes]
        self.valid = np.pad(self.valid, (0, capacity - len(self.valid)))
        self.have = np.pad(self.have, ((0, 0), (0, capacity - self.have.shape[1])))


def grown(buffer: Array, capacity: int) -> Array:
    """A copy of ``buffer`` with room for ``capacity`` rows."""
    out = np.zeros((capacity, buffer.shape[1]), np.float32)
    out[: len(buffer)] = buffer
    return out
