"""What the verifier runs of the drafter: from the target's K/V of verified tokens to state rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.cloud.kinds.server import KeyValue, RowPlaneSpec
from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.moa.lsa import MemoryProjection
from outrider.cloud.moa.weights import load_drafter


def row_planes(settings: MoaSettings) -> tuple[RowPlaneSpec, ...]:
    """Cross-attention K/V of each block, then the K/V of each target layer that runs on the device, ascending."""
    blocks = range(len(settings.direct_layers))
    found = [(2 * settings.row_width, f"moa.ca_kv.{block}" if block else "moa.ca_kv") for block in blocks]
    found += [(2 * settings.kv_width, f"layer{layer}.kv") for layer in settings.tli_layers]
    return tuple(RowPlaneSpec(plane, width, 2, content) for plane, (width, content) in enumerate(found))


class ServerHalf:
    """LSA, its projections and the key rotation, once per verified token; rows are independent of each other."""

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
    def needed_layers(self) -> tuple[int, ...]:
        """All target layers whose K/V `rows` needs, ascending (LSA's, the direct ones, the device's)."""
        return self.settings.needed_layers

    @property
    def needs_final(self) -> bool:
        """Whether `rows` reads final hidden states (`feed_final`)."""
        return self.settings.needs_final

    @torch.no_grad()
    def rows(self, kv: Mapping[int, KeyValue], final: Tensor | None, positions: Tensor) -> list[Tensor]:
        """State rows of n tokens, one float32 [n, width] per plane.

        kv[layer] = (keys, values), each [kv_heads, n, head_dim], keys rotated at `positions` [n]; any float
        type. KeyError if a layer of `needed_layers` is missing, ValueError if final states are.
        """
        s = self.settings
        flat = torch.zeros(len(positions), len(s.needed_layers), 2, s.kv_width)
        for index, layer in enumerate(s.needed_layers):
            for part in (0, 1):
                flat[:, index, part] = _flatten(kv[layer][part])
        rows = [torch.cat(pair, dim=1) for pair in self._memory(flat, final, positions)]
        return rows + [flat[:, s.needed_layers.index(layer)].flatten(1) for layer in s.tli_layers]

    def fingerprint(self) -> str:
        """Hex hash of everything rows depend on besides the target: weights, layers, head counts, layout."""
        s = self.settings
        named = (s.memory, s.memory_layers, s.lsa_heads, s.lsa_kv_heads, s.feed_final)
        layout = (s.direct_layers, s.row_heads, s.tli_layers, self.planes)
        digest = hashlib.sha256(repr((named, layout)).encode())
        for name, tensor in sorted(self._memory.state_dict().items()):
            digest.update(name.encode() + tensor.to(torch.float32).contiguous().numpy().tobytes())
        return digest.hexdigest()


def _flatten(part: Tensor) -> Tensor:
    """[kv_heads, n, head_dim] -> float32 [n, kv_width]."""
    return part.transpose(0, 1).flatten(1).float()
