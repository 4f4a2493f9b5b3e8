"""Attention of one packed pass: every session's rows against its own keys, in pieces of a fixed size.

Registered with transformers under a name of its own and with no mask function, so that the model builds no mask.
The state travels as one keyword argument, ``outrider=Step``, through the model's own code: nothing is patched and
nothing is kept in a module.

A row's bits must not depend on what else is in the pass (linear layers: `outrider.cloud.linear`). Hence *tiles*:
the kernel always sees 8 query rows (times the heads that share a key head) and a multiple of 256 keys. Masked keys add
exact zeros, so neither filler rows nor spare columns show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from outrider.cloud.kv import STEP, KvSlot

NAME = "outrider"
TILE_ROWS = 8

# Told to every attention function and without effect here. Any other argument that is set changes the mathematics
# (a sliding window, a soft cap, sinks): models accept them silently, so they are refused.
_HARMLESS = {"position_ids", "use_cache", "cache_position", "is_causal", "output_hidden_states"}


class UnsupportedAttention(Exception):
    """The model asks its attention for something this engine does not compute."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows lo … hi-1 of the pass: one session's new tokens, going to columns start … of its slot."""

    slot: KvSlot
    lo: int
    hi: int
    start: int
    mask: Tensor
    """[tiles, 1, group x 8, keys], 0 or -inf; ``group`` query heads share a key head."""


@dataclass(frozen=True, slots=True)
class Step:
    """One packed pass."""

    segments: tuple[Segment, ...]


def visible(start: int, pending: int, ancestors: Sequence[Sequence[int]], keys: int) -> NDArray[np.bool_]:
    """Which keys each row may see, [pending + nodes, keys].

    ``pending`` rows in a line at columns start …, then one row per draft node at the columns behind them;
    ``ancestors[i]``: columns, counted from the first node's, of node i's path, itself included.
    """
    rows = pending + len(ancestors)
    allowed = np.zeros((rows, keys), np.bool_)
    allowed[:, : start + pending] = True
    allowed[:pending, start : start + pending] = np.tri(pending, dtype=np.bool_)
    base = start + pending
    for node, path in enumerate(ancestors):
        allowed[pending + node, [base + column for column in path]] = True
    return allowed


def tile_mask(allowed: NDArray[np.bool_], group: int, dtype: torch.dtype) -> Tensor:
    """`visible` as the additive mask of a segment's tiles; filler rows see what the first row sees."""
    rows, keys = allowed.shape
    tiles = -(-rows // TILE_ROWS)
    padded = np.repeat(allowed[:1], tiles * TILE_ROWS, axis=0)
    padded[:rows] = allowed
    plain = torch.zeros((tiles, 1, 1, TILE_ROWS, keys), dtype=dtype)
    plain.masked_fill_(~torch.from_numpy(padded).view(tiles, 1, 1, TILE_ROWS, keys), -torch.inf)
    return plain.expand(tiles, 1, group, TILE_ROWS, keys).reshape(tiles, 1, group * TILE_ROWS, keys)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    outrider: Step,
    dropout: float = 0.0,
    **others: object,
) -> tuple[Tensor, None]:
    """transformers' attention function: query [1, heads, rows, dim], key and value [1, kv_heads, rows, dim], rotated.

    Writes the new keys and values, returns [1, rows, heads, dim]. Raises `UnsupportedAttention`.
    """
    foreign = sorted(name for name, what in others.items() if what is not None and name not in _HARMLESS)
    if foreign or attention_mask is not None or dropout:
        raise UnsupportedAttention(f"the model's attention uses {', '.join(foreign) or 'a mask or dropout'}")
    queries = query[0].transpose(0, 1)  # [rows, heads, dim], contiguous: this is how the projections left it
    result = torch.zeros_like(queries, memory_format=torch.contiguous_format)
    layer: int = module.layer_idx  # type: ignore[assignment]
    for segment in outrider.segments:
        lo, hi, stop = segment.lo, segment.hi, segment.start + segment.hi - segment.lo
        keys, values = segment.slot.buffer[layer]
        keys[:, segment.start : stop] = key[0, :, lo:hi]
        values[:, segment.start : stop] = value[0, :, lo:hi]
        result[lo:hi] = _tiled(queries[lo:hi], keys, values, segment.mask, scaling)
    return result[None], None


def _tiled(rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Attention of rows [n, heads, dim] over keys and values [kv_heads, capacity, dim], tile by tile in one call."""
    count, heads, dim = rows.shape
    tiles, length = mask.shape[0], mask.shape[3]
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    if count < tiles * TILE_ROWS:
        rows = torch.cat((rows, rows.new_zeros(tiles * TILE_ROWS - count, heads, dim)))
    # Query heads that share a key head become rows of one product: fewer, larger products, and no copy of the keys.
    folded = rows.view(tiles, TILE_ROWS, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
    attended = scaled_dot_product_attention(
        folded.reshape(tiles, kv_heads, group * TILE_ROWS, dim),
        keys[None, :, :length].expand(tiles, -1, -1, -1),
        values[None, :, :length].expand(tiles, -1, -1, -1),
        attn_mask=mask,
        scale=scaling,
    )
    unfolded = attended.view(tiles, kv_heads, group, TILE_ROWS, dim).permute(0, 3, 1, 2, 4)
    return unfolded.reshape(tiles * TILE_ROWS, heads, dim)[:count]


def padded_keys(length: int) -> int:
    """Keys a pass reads for ``length`` positions: the next multiple of 256."""
    return -(-length // STEP) * STEP


AttentionInterface.register(NAME, attend)
