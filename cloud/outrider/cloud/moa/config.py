"""Settings of a Mixture-of-Attentions drafter, stored as JSON beside its weights.

Everything that decides shapes or row layout stands here; what only concerns training stands in
`outrider.cloud.train.plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.cloud.kinds.settings import SETTINGS_FILE, WEIGHTS_FILE, DrafterSettings, target_shape

__all__ = ["SETTINGS_FILE", "WEIGHTS_FILE", "MoaSettings", "settings_for_target"]


@dataclass(frozen=True, kw_only=True)
class MoaSettings(DrafterSettings):
    """Shapes of a drafter; field names are the JSON keys.

    Sources: "Mixture of Attentions For Speculative Decoding" (arXiv 2410.03804) for the three parts;
    the direct path and the null row are this project's additions.
    """

    kind: str = "moa"
    # --- the drafter's own
    lsa_layers: tuple[int, ...]
    """Target layers whose K/V the layer self-attention reads, ascending."""
    lsa_heads: int
    """Query heads of LSA; independent of the target's, because 2*kv_width need not divide by those."""
    lsa_kv_heads: int
    """Key/value heads of LSA."""
    lsa_intermediate_size: int
    """MLP width of LSA."""
    num_sa_layers: int
    """Causal self-attention layers over frozen embeddings; they cost no wire."""
    direct_layer: int
    """Target layer whose own K/V is added to the memory's projection; -1 switches the path off."""
    num_tli_layers: int
    """N of target layer inference: how many top target layers run frozen on the device."""
    tli_rank: int = 0
    """Rank of the trained corrections to the frozen target layers; merged at export, 0 for none."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the first field that cannot be."""
        if list(self.lsa_layers) != sorted(set(self.lsa_layers)) or not self.lsa_layers:
            raise ValueError(f"lsa_layers must be ascending, distinct and not empty, got {self.lsa_layers}")
        if self.lsa_layers[0] < 0 or self.lsa_layers[-1] >= self.num_target_layers:
            raise ValueError(f"lsa_layers must lie in [0, {self.num_target_layers}), got {self.lsa_layers}")
        if (2 * self.kv_width) % self.lsa_heads or self.lsa_heads % self.lsa_kv_heads:
            raise ValueError(
                f"lsa_heads {self.lsa_heads} must divide {2 * self.kv_width} and be a multiple of lsa_kv_heads"
            )
        if not -1 <= self.direct_layer < self.num_target_layers:
            raise ValueError(f"direct_layer must be -1 or a target layer, got {self.direct_layer}")
        if not 0 <= self.num_tli_layers < self.num_target_layers:
            raise ValueError(
                f"num_tli_layers must lie in [0, {self.num_target_layers}), got {self.num_tli_layers}"
            )
        if self.num_sa_layers < 1:
            raise ValueError(f"num_sa_layers must be at least 1, got {self.num_sa_layers}")

    @property
    def tli_layers(self) -> tuple[int, ...]:
        """Target layers that run on the device, ascending."""
        return tuple(range(self.num_target_layers - self.num_tli_layers, self.num_target_layers))

    @property
    def needed_layers(self) -> tuple[int, ...]:
        """Target layers whose K/V training and the server half read, ascending."""
        direct = () if self.direct_layer < 0 else (self.direct_layer,)
        return tuple(sorted({*self.lsa_layers, *direct, *self.tli_layers}))

    @property
    def own_layers(self) -> int:
        """K/V buffers the device keeps for itself: SA layers, then target layers."""
        return self.num_sa_layers + self.num_tli_layers

    @property
    def stream_layer(self) -> int | None:
        """The first layer that runs on the device; None where none does, as `final` says the same then."""
        return self.num_target_layers - self.num_tli_layers if self.num_tli_layers else None


def settings_for_target(
    config: Any,
    *,
    lsa_layers: tuple[int, ...] | None = None,
    num_sa_layers: int = 3,
    num_tli_layers: int = 3,
    direct: bool = True,
    tli_rank: int = 32,
) -> MoaSettings:
    """Default settings for a Llama-like target, given its transformers config.

    LSA reads three layers (a sixth, a half and five sixths up); the direct path reads the layer just below the
    target layers that run on the device, which is also where the cross-attention is copied from.
    """
    shape = target_shape(config)
    layers, kv_heads = shape["num_target_layers"], shape["num_kv_heads"]
    return MoaSettings(
        **shape,
        lsa_layers=lsa_layers or tuple(sorted({max(0, layers * part // 6 - 1) for part in (1, 3, 5)})),
        lsa_heads=2 * kv_heads,
        lsa_kv_heads=kv_heads,
        lsa_intermediate_size=2 * kv_heads * shape["head_dim"],
        num_sa_layers=num_sa_layers,
        direct_layer=layers - 1 - num_tli_layers if direct else -1,
        num_tli_layers=num_tli_layers,
        tli_rank=tli_rank,
    )
