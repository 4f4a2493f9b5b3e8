"""What the verifier runs of the drafter: from the target's K/V of verified tokens to state rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.moa.lsa import MemoryProjection
from outrider.cloud.moa.weights import load_drafter

KeyValue = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class RowPlaneSpec:
    """One kind of state row."""

    plane: int
    """Number of the plane, its place in `ServerHalf.rows`."""
    width: int
    """float32 values of one row, all parts together."""
    parts: int
    """Equal parts of a row that deserve a quantisation scale each (key and value)."""
    content: str
    """What a row holds: `moa.ca_kv`, or `layer27.kv`."""


def row_planes(settings: MoaSettings) -> tuple[RowPlaneSpec, ...]:
    """Cross-attention K/V first, then the K/V of each target layer that runs on the device, ascending."""
    width = 2 * settings.kv_width
    contents = ["moa.ca_kv", *(f"layer{layer}.kv" for layer in settings.tli_layers)]
    return tuple(RowPlaneSpec(plane, width, 2, content) for plane, content in enumerate(contents))


class ServerHalf:
    """LSA, its projection and the key rotation, once per verified token; rows are independent of each other."""

    def __init__(self, settings: MoaSettings, memory: MemoryProjection):
        self.settings = settings
        self.planes = row_planes(settings)
        self._memory = memory.eval().requires_grad_(False)

    @classmethod
    def load(cls, weights_dir: Path, target_config: Any) -> ServerHalf:
        """Read a weights folder. ValueError if it was trained for a target of other shapes."""
        drafter = load_drafter(weights_dir)
        s = drafter.settings
        wanted = (
            int(target_config.num_hidden_layers),
            int(target_config.hidden_size),
            int(target_config.num_key_value_heads),
        )
        found = (s.num_target_layers, s.hidden_size, s.num_kv_heads)
        if wanted != found:
            raise ValueError(
                f"the drafter is for a target of (layers, width, K/V heads) {found}, this one has {wanted}"
            )
        return cls(s, drafter.memory)

    @property
    def lsa_layers(self) -> tuple[int, ...]:
        """All target layers whose K/V `rows` needs, ascending (LSA's, the direct one, the device's)."""
        return self.settings.needed_layers

    @torch.no_grad()
    def rows(self, kv: Mapping[int, KeyValue], positions: Tensor) -> list[Tensor]:
        """State rows of n tokens, one float32 [n, width] per plane.

        kv[layer] = (keys, values), each [kv_heads, n, head_dim], keys rotated at `positions` [n]; any float
        type. KeyError if a layer of `lsa_layers` is missing.
        """
        s = self.settings
        flat = {
            layer: torch.stack([_flatten(part) for part in kv[layer]], dim=1) for layer in s.needed_layers
        }
        direct = None if s.direct_layer < 0 else flat[s.direct_layer]
        k, v = self._memory(torch.stack([flat[layer] for layer in s.lsa_layers], dim=1), direct, positions)
        return [torch.cat((k, v), dim=1), *(flat[layer].flatten(1) for layer in s.tli_layers)]

    def fingerprint(self) -> str:
        """Hex hash of everything rows depend on besides the target: weights, layers, layout."""
        digest = hashlib.sha256()
        s = self.settings
        digest.update(repr((s.lsa_layers, s.direct_layer, s.tli_layers, self.planes)).encode())
        for name, tensor in sorted(self._memory.state_dict().items()):
            digest.update(name.encode() + tensor.to(torch.float32).contiguous().numpy().tobytes())
        return digest.hexdigest()


def _flatten(part: Tensor) -> Tensor:
    """[kv_heads, n, head_dim] -> float32 [n, kv_width]."""
    return part.transpose(0, 1).flatten(1).float()
