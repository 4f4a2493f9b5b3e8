"""Choosing the next token of many rows from their final hidden states."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

TOP_K = 40
TOP_P = 0.95
_CHUNK = 64


class Picker:
    """Greedy or sampled (top-k 40, then top-p 0.95) ids; noise is a function of (seed, row key, step)."""

    def __init__(self, head: nn.Module, seed: int) -> None:
        self._head, self._seed = head, np.uint64(seed % 2**64)

    def __call__(
        self,
        hidden: Tensor,
        heat: NDArray[np.float32],
        keys: NDArray[np.uint64],
        steps: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """One id per row of `hidden` [rows, width]; `heat` [rows]: 0 is greedy; `keys`, `steps` [rows]."""
        places = candidates(self._head(hidden), TOP_K)
        values = self._rescored(hidden, places)
        order = values.argsort(dim=1, descending=True, stable=True)
        values, places = values.gather(1, order), places.gather(1, order)
        warmth = torch.from_numpy(heat)[:, None]
        share = (values / warmth.clamp_min(1e-4)).softmax(1)
        mass = share.cumsum(1)
        share = share.masked_fill(mass - share >= TOP_P, 0)
        mass = share.cumsum(1)
        dart = torch.from_numpy(uniform(self._seed, keys, steps))[:, None] * mass[:, -1:]
        drawn = (mass <= dart).sum(1, keepdim=True).clamp_max(places.shape[1] - 1)
        best = torch.zeros_like(drawn)
        chosen = places.gather(1, torch.where(warmth > 0, drawn, best))[:, 0]
        return chosen.numpy()

    def _rescored(self, hidden: Tensor, places: Tensor) -> Tensor:
        """Logits of candidates in float32: bfloat16 ones tie at every second token."""
        weight: Tensor = self._head.weight  # type: ignore[assignment]
        values = torch.bmm(weight[places].float(), hidden.float()[:, :, None])[:, :, 0]
        bias = getattr(self._head, "bias", None)
        return values if bias is None else values + bias[places].float()


def candidates(logits: Tensor, count: int) -> Tensor:
    """Ids of the `count` largest logits of each row, [rows, count]; through the maxima of chunks, which is faster."""
    rows, width = logits.shape
    count = min(count, width)
    if width % _CHUNK or width // _CHUNK <= count:
        return logits.topk(count, dim=1).indices
    chunked = logits.view(rows, -1, _CHUNK)
    chunks = chunked.amax(2).topk(count, dim=1).indices
    inside = chunked.gather(1, chunks[:, :, None].expand(-1, -1, _CHUNK)).flatten(1)
    found = inside.float().topk(count, dim=1).indices
    return chunks.gather(1, found // _CHUNK) * _CHUNK + found % _CHUNK


def uniform(seed: np.uint64, keys: NDArray[np.uint64], steps: NDArray[np.int64]) -> NDArray[np.float32]:
    """Numbers in [0, 1) from (seed, key, step): three rounds of SplitMix64 (Steele et al., OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        mixed = _mix(_mix(_mix(np.full(len(keys), seed)) ^ keys.astype(np.uint64)) ^ steps.astype(np.uint64))
    return ((mixed >> np.uint64(40)).astype(np.float64) * 2.0**-24).astype(np.float32)


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
