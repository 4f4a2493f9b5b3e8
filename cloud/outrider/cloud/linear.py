"""Linear layers whose rows do not depend on how many rows go through at once, and that are fast for few rows.

A matrix product picks its kernel by shape, and kernels differ in the order of their sums: the same row gets other bits
in a batch of 8 than in a batch of 64. Two things keep a row's bits fixed here: weights packed once for oneDNN, whose
kernels agree over many row counts, and a *tile*, the largest number of rows per call up to which they were measured to
agree on this machine. More rows than that go through in several calls.

Packing also pays on its own: at 8 rows the packed layers take about half the time of the plain ones in float32, and the
head about a third in bfloat16 (a plain product reads the weights in an order made for many rows).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

ROW_COUNTS = (8, 16, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512)
SMALL_COUNTS = (2, 4, 6)
WIDE_HEAD = 16_384
"""Layers with more outputs than this are heads: only few rows go through, so the tile need not be large."""

Product = Callable[[Tensor], Tensor]


class PackedLinear(nn.Module):
    """Stands in for ``nn.Linear``: [..., in_features] -> [..., out_features], in calls of at most ``tile`` rows."""

    def __init__(self, product: Product, out_features: int, tile: int) -> None:
        super().__init__()
        self.product = product
        self.out_features = out_features
        self.tile = tile

    def forward(self, rows: Tensor) -> Tensor:
        """The product (and bias) of every row."""
        flat = rows.reshape(-1, rows.shape[-1])
        if flat.shape[0] <= self.tile:
            product = self.product(flat)
        else:
            product = torch.cat([self.product(part) for part in flat.split(self.tile)])
        return product.view(*rows.shape[:-1], self.out_features)


def pack_linears(model: nn.Module) -> int:
    """Replace every ``nn.Linear`` of ``model`` in place; returns the *granule* rows must be padded to (2, 4 or 8).

    Weights that nothing else holds are freed as they are packed. Measures each distinct shape once.
    """
    tiles: dict[tuple[int, int, bool], tuple[int, int]] = {}
    granule = 2
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if not isinstance(layer, nn.Linear):
                continue
            product = packed_product(layer)
            shape = (layer.in_features, layer.out_features, layer.bias is not None)
            if shape not in tiles:
                tiles[shape] = measure(product, layer.in_features, layer.out_features, layer.weight.dtype)
            tile, least = tiles[shape]
            granule = max(granule, least)
            setattr(parent, name, PackedLinear(product, layer.out_features, tile))
    return granule


def packed_product(layer: nn.Linear) -> Product:
    """``rows`` [n, in] -> [n, out] with weights packed for oneDNN, or the plain product where that is not to be had."""
    weight = layer.weight.detach()
    bias: Tensor | None = getattr(layer, "bias", None)
    if weight.device.type == "cpu" and torch.backends.mkldnn.is_available():
        pointwise = torch.ops.mkldnn._linear_pointwise
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        return lambda rows: pointwise(rows, packed, bias, "none", [], "")
    return lambda rows: nn.functional.linear(rows, weight, bias)


@torch.inference_mode()
def measure(product: Product, in_features: int, out_features: int, dtype: torch.dtype) -> tuple[int, int]:
    """(tile, granule): row counts that are multiples of granule, up to tile, give every row the same bits.

    Against calls of 8 rows, the fallback that needs no agreement at all.
    """
    most = 64 if out_features > WIDE_HEAD else ROW_COUNTS[-1]
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(most, in_features, generator=generator).to(dtype)
    expected = torch.cat([product(part) for part in rows.split(8)])
    tile = 8
    for count in (count for count in ROW_COUNTS if 8 < count <= most):
        if not torch.equal(product(rows[:count]), expected[:count]):
            break
        tile = count
    agree = {count: torch.equal(product(rows[:count]), expected[:count]) for count in SMALL_COUNTS}
    granule = 2 if all(agree.values()) else 4 if agree[4] else 8
    return tile, granule
