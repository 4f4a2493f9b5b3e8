"""Keys and values of every session under one byte budget: a buffer per session that grows in steps of 256 positions."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

STEP = 256
"""Positions a buffer grows by; also the unit attention reads keys in, so that its sums never depend on the length."""


class KvFull(Exception):
    """The byte budget does not allow it. Evict some other session, or refuse this one."""

    def __init__(self, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(f"the KV needs {needed_bytes} more bytes and {free_bytes} are free")
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one position costs."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def position_bytes(self) -> int:
        """Bytes of one position, keys and values of all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(slots=True)
class KvSlot:
    """One session's keys and values. Columns from ``length`` on are scratch (a draft's nodes live there)."""

    buffer: Tensor
    """[layers, 2 (key, value), kv_heads, capacity, head_dim]; column = absolute position of a committed token."""
    length: int = 0
    """Committed positions held."""
    redo: tuple[int, ...] = ()
    """Ids of the last ``len(redo)`` positions, whose columns came from a tree's side branch: the next pass computes
    them again in line, so that what is kept has the bits the target alone would have."""

    @property
    def capacity(self) -> int:
        """Positions the buffer can hold."""
        return int(self.buffer.shape[3])


@dataclass(slots=True)
class KvStore:
    """All slots, by session key."""

    shape: KvShape
    budget_bytes: int
    slots: dict[int, KvSlot] = field(default_factory=dict)

    @property
    def bytes_in_use(self) -> int:
        """Bytes of all buffers."""
        return sum(slot.capacity for slot in list(self.slots.values())) * self.shape.position_bytes

    def length(self, key: int) -> int:
        """Committed positions held for ``key``; 0 if there are none."""
        slot = self.slots.get(key)
        return slot.length if slot else 0

    @torch.inference_mode()
    def reserve(self, key: int, positions: int) -> KvSlot:
        """The slot of ``key``, made or grown to hold ``positions``. Raises `KvFull`, and changes nothing then."""
        slot = self.slots.get(key)
        held = slot.capacity if slot else 0
        if slot and positions <= held:
            return slot
        capacity = -(-max(positions, 1) // STEP) * STEP
        needed = (capacity - held) * self.shape.position_bytes
        free = self.budget_bytes - self.bytes_in_use
        if needed > free:
            raise KvFull(needed, free)
        shape = self.shape
        # Zeros, not garbage: columns that are masked out still get multiplied, and 0 x NaN is NaN.
        buffer = torch.zeros((shape.layers, 2, shape.kv_heads, capacity, shape.head_dim), dtype=shape.dtype)
        if slot is None:
            slot = self.slots[key] = KvSlot(buffer)
        else:
            buffer[:, :, :, :held] = slot.buffer
            slot.buffer = buffer
        return slot

    @torch.inference_mode()
    def keep(self, key: int, base: int, columns: tuple[int, ...]) -> None:
        """Move the columns ``base + columns[i]`` to ``base + i``; the slot then holds base + len(columns) positions."""
        slot = self.slots[key]
        if any(column != index for index, column in enumerate(columns)):
            chosen = torch.tensor([base + column for column in columns])
            slot.buffer[:, :, :, base : base + len(columns)] = slot.buffer.index_select(3, chosen)
        slot.length = base + len(columns)
        slot.redo = ()

    def truncate(self, key: int, length: int) -> None:
        """Keep the first ``length`` positions; unknown keys and shorter slots stay as they are."""
        slot = self.slots.get(key)
        if slot and length < slot.length:
            slot.redo = slot.redo[: max(0, len(slot.redo) - (slot.length - length))]
            slot.length = length

    def evict(self, key: int) -> None:
        """Drop the slot of ``key``; unknown keys are ignored."""
        self.slots.pop(key, None)
