"""Keys and values of every session under one byte budget: a buffer per session that grows in steps of 256 positions.

A session whose drafter reads the target's final hidden states has a second buffer for those. The two are moved, cut and
dropped together, and both count.
"""

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
    hidden_size: int = 0
    """Width of a final hidden state."""

    @property
    def position_bytes(self) -> int:
        """Bytes of one position, keys and values of all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def final_bytes(self) -> int:
        """Bytes of one position's final hidden state, where it is kept as well."""
        return self.hidden_size * self.dtype.itemsize

    def bytes_of(self, final: bool) -> int:
        """Bytes of one position of a session with or without final hidden states."""
        return self.position_bytes + (self.final_bytes if final else 0)


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
    final: Tensor | None = None
    """[capacity, hidden], what the LM head read in the same columns; None: not kept for this session."""

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
        return sum(
            slot.capacity * self.shape.bytes_of(slot.final is not None) for slot in list(self.slots.values())
        )

    def length(self, key: int) -> int:
        """Committed positions held for ``key``; 0 if there are none."""
        slot = self.slots.get(key)
        return slot.length if slot else 0

    @torch.inference_mode()
    def reserve(self, key: int, positions: int, final: bool = False) -> KvSlot:
        """The slot of ``key``, made or grown to hold ``positions``, with or without final hidden states.

        Those that are not asked for any more are dropped.
        Raises `KvFull` for want of room, ValueError when final states are asked for and the slot holds positions
        without them; both keep what is held.
        """
        slot = self.slots.get(key)
        if slot and final and slot.final is None and slot.length:
            raise ValueError(f"{slot.length} positions are held without their final hidden states")
        if slot and not final:
            slot.final = None
        held = slot.capacity if slot else 0
        held_bytes = held * self.shape.bytes_of(slot.final is not None) if slot else 0
        capacity = max(held, -(-max(positions, 1) // STEP) * STEP)
        needed = capacity * self.shape.bytes_of(final) - held_bytes
        if slot and not needed:
            return slot
        free = self.budget_bytes - self.bytes_in_use
        if needed > free:
            raise KvFull(needed, free)
        return self._resize(key, capacity, final)

    def _resize(self, key: int, capacity: int, final: bool) -> KvSlot:
        shape, old = self.shape, self.slots.get(key)
        # Zeros, not garbage: columns that are masked out still get multiplied, and 0 x NaN is NaN.
        buffer = torch.zeros((shape.layers, 2, shape.kv_heads, capacity, shape.head_dim), dtype=shape.dtype)
        states = torch.zeros((capacity, shape.hidden_size), dtype=shape.dtype) if final else None
        if old is None:
            slot = self.slots[key] = KvSlot(buffer, final=states)
            return slot
        buffer[:, :, :, : old.capacity] = old.buffer
        if states is not None and old.final is not None:
            states[: old.capacity] = old.final
        old.buffer, old.final = buffer, states
        return old

    @torch.inference_mode()
    def keep(self, key: int, base: int, columns: tuple[int, ...]) -> None:
        """Move the columns ``base + columns[i]`` to ``base + i``; the slot then holds base + len(columns) positions."""
        slot = self.slots[key]
        if any(column != index for index, column in enumerate(columns)):
            chosen = torch.tensor([base + column for column in columns])
            slot.buffer[:, :, :, base : base + len(columns)] = slot.buffer.index_select(3, chosen)
            if slot.final is not None:
                slot.final[base : base + len(columns)] = slot.final.index_select(0, chosen)
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
