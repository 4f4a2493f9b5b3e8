"""What the verifier does for a GLIDE drafter: hand out the last layer's K/V as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from outrider.cloud.glide.settings import GlideSettings
from outrider.cloud.kinds.server import KeyValue, RowPlaneSpec


def row_planes(settings: GlideSettings) -> tuple[RowPlaneSpec, ...]:
    """Keys (rotated) and values of the target's last layer."""
    return (RowPlaneSpec(0, 2 * settings.kv_width, 2, f"layer{settings.read_layer}.kv"),)


class ServerHalf:
    """No weights: a row is what the target has cached of that token."""

    def __init__(self, settings: GlideSettings):
        self.settings = settings
        self.planes = row_planes(settings)

    @property
    def needed_layers(self) -> tuple[int, ...]:
        """The last layer."""
        return self.settings.needed_layers

    @property
    def needs_final(self) -> bool:
        """Final states are not read."""
        return False

    @torch.no_grad()
    def rows(self, kv: Mapping[int, KeyValue], final: Tensor | None, positions: Tensor) -> list[Tensor]:
        """One float32 [n, 2 * kv_width]; KeyError if the last layer is missing from ``kv``."""
        del final, positions
        keys, values = kv[self.settings.read_layer]
        return [torch.cat([part.transpose(0, 1).flatten(1).float() for part in (keys, values)], dim=1)]

    def fingerprint(self) -> str:
        """Hex hash of the layout: rows depend on nothing else but the target."""
        return hashlib.sha256(repr(("glide", self.planes)).encode()).hexdigest()
