"""Settings of a Mixture-of-Attentions drafter, stored as JSON beside its weights.

Everything that decides shapes or row layout stands here; what only concerns training stands in
`outrider.cloud.train.plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.cloud.kinds.settings import SETTINGS_FILE, WEIGHTS_FILE, DrafterSettings, target_shape

__all__ = ["MEMORIES", "SETTINGS_FILE", "WEIGHTS_FILE", "MoaSettings", "settings_for_target"]

MEMORIES = ("lsa", "weights", "none")
"""What is made of the target's layers: LSA, a learned weighted mean of them, or nothing (direct path only)."""


@dataclass(frozen=True, kw_only=True)
class MoaSettings(DrafterSettings):
    """Shapes of a drafter; field names are the JSON keys.

    Sources: "Mixture of Attentions For Speculative Decoding" (arXiv 2410.03804) for the three parts;
    the direct path, the null row and further blocks are this project's additions.
    """

    kind: str = "moa"
    # --- the server's part
    lsa_layers: tuple[int, ...]
    """Target layers whose K/V the layer self-attention (or the weighted mean) reads, ascending."""
    lsa_heads: int
    """Query heads of LSA; independent of the target's, because 2*kv_width need not divide by those."""
    lsa_kv_heads: int
    """Key/value heads of LSA."""
    lsa_intermediate_size: int
    """MLP width of LSA."""
    memory: str = "lsa"
    """One of `MEMORIES`."""
    feed_final: bool = False
    """Whether the memory also reads the target's final hidden state."""
    # --- the device's part
    num_sa_layers: int
    """Self-attention layers of the first block, causal over frozen embeddings; they cost no wire."""
    direct_layer: int
    """Target layer whose own K/V is added to the memory's projection; -1 switches the path off."""
    later_sa_layers: tuple[int, ...] = ()
    """Self-attention layers of each further block, 0 for cross-attention alone; they read what has no rows yet."""
    later_direct_layers: tuple[int, ...] = ()
    """`direct_layer` of each further block; every block has rows of its own."""
    sa_sources: tuple[int, ...] = ()
    """Target layers that the SA layers of all blocks start from; empty for the default, see `sources`."""
    ca_kv_heads: int = 0
    """Key/value heads of cross-attention, that is the width of its rows; 0 for the target's."""
    num_tli_layers: int
    """N of target layer inference: how many top target layers run on the device."""
    tli_rank: int = 0
    """Rank of the trained corrections to the frozen target layers; merged at export, 0 for none."""
    tli_full: bool = False
    """Train those layers' matrices in full instead (keys and values stay the target's)."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the first field that cannot be."""
        self._check_memory()
        self._check_device()

    def _check_memory(self) -> None:
        if self.memory not in MEMORIES:
            raise ValueError(f"memory must be one of {', '.join(MEMORIES)}, got {self.memory!r}")
        if list(self.lsa_layers) != sorted(set(self.lsa_layers)):
            raise ValueError(f"lsa_layers must be ascending and distinct, got {self.lsa_layers}")
        if self.lsa_layers and not 0 <= self.lsa_layers[0] <= self.lsa_layers[-1] < self.num_target_layers:
            raise ValueError(f"lsa_layers must lie in [0, {self.num_target_layers}), got {self.lsa_layers}")
        if self.memory != "none" and not self.lsa_layers:
            raise ValueError(f"lsa_layers must not be empty with memory={self.memory}")
        if (2 * self.kv_width) % self.lsa_heads or self.lsa_heads % self.lsa_kv_heads:
            raise ValueError(
                f"lsa_heads {self.lsa_heads} must divide {2 * self.kv_width} and be a multiple of lsa_kv_heads"
            )
        if not self.has_memory and -1 in self.direct_layers:
            raise ValueError("direct_layer must name a layer where there is no memory to read")

    def _check_device(self) -> None:
        if len(self.later_sa_layers) != len(self.later_direct_layers):
            raise ValueError("later_sa_layers and later_direct_layers must name the same number of blocks")
        for number, (count, layer) in enumerate(zip(self.sa_layers, self.direct_layers, strict=True)):
            sa, direct = (
                ("later_sa_layers", "later_direct_layers") if number else ("num_sa_layers", "direct_layer")
            )
            if count < (0 if number else 1):
                raise ValueError(f"{sa} must be at least {0 if number else 1}, got {count}")
            if not -1 <= layer < self.num_target_layers:
                raise ValueError(f"{direct} must be -1 or a target layer, got {layer}")
        if not 0 <= self.num_tli_layers < self.num_target_layers:
            raise ValueError(
                f"num_tli_layers must lie in [0, {self.num_target_layers}), got {self.num_tli_layers}"
            )
        if self.tli_rank and self.tli_full:
            raise ValueError("tli_rank must be 0 with tli_full: there is nothing left to correct")
        if self.ca_kv_heads < 0 or self.num_kv_heads % self.row_heads:
            raise ValueError(f"ca_kv_heads must divide {self.num_kv_heads}, got {self.ca_kv_heads}")
        if self.sa_sources and len(self.sa_sources) != sum(self.sa_layers):
            raise ValueError(f"sa_sources must name {sum(self.sa_layers)} layers, got {self.sa_sources}")

    @property
    def has_memory(self) -> bool:
        """Whether rows hold anything besides the direct path."""
        return self.memory != "none" or self.feed_final

    @property
    def sa_layers(self) -> tuple[int, ...]:
        """Self-attention layers per block."""
        return (self.num_sa_layers, *self.later_sa_layers)

    @property
    def direct_layers(self) -> tuple[int, ...]:
        """Layer of the direct path per block, -1 for none."""
        return (self.direct_layer, *self.later_direct_layers)

    @property
    def sources(self) -> tuple[int, ...]:
        """Target layers the SA layers start from: the first ones, then those right above the last direct layer."""
        if self.sa_sources:
            return self.sa_sources
        found: list[int] = []
        begins = (0, *(max(0, layer + 1) for layer in self.direct_layers[:-1]))
        for begin, count in zip(begins, self.sa_layers, strict=True):
            found += [min(begin + n, self.num_target_layers - 1) for n in range(count)]
        return tuple(found)

    @property
    def row_heads(self) -> int:
        """Key/value heads of cross-attention."""
        return self.ca_kv_heads or self.num_kv_heads

    @property
    def row_width(self) -> int:
        """Values of a cross-attention key (or value)."""
        return self.row_heads * self.head_dim

    @property
    def tli_layers(self) -> tuple[int, ...]:
        """Target layers that run on the device, ascending."""
        return tuple(range(self.num_target_layers - self.num_tli_layers, self.num_target_layers))

    @property
    def memory_layers(self) -> tuple[int, ...]:
        """Target layers the memory reads, ascending."""
        return () if self.memory == "none" else self.lsa_layers

    @property
    def needed_layers(self) -> tuple[int, ...]:
        """Target layers whose K/V training and the server half read, ascending."""
        direct = {layer for layer in self.direct_layers if layer >= 0}
        return tuple(sorted({*self.memory_layers, *direct, *self.tli_layers}))

    @property
    def needs_final(self) -> bool:
        """Whether the memory reads the target's final hidden states."""
        return self.feed_final

    @property
    def own_layers(self) -> int:
        """K/V buffers the device keeps for itself: SA layers of all blocks, then target layers."""
        return sum(self.sa_layers) + self.num_tli_layers

    @property
    def stream_layer(self) -> int | None:
        """The first layer that runs on the device; None where none does, as `final` says the same then."""
        return self.num_target_layers - self.num_tli_layers if self.num_tli_layers else None


def settings_for_target(
    config: Any,
    *,
    lsa_layers: tuple[int, ...] | None = None,
    num_sa_layers: int = 2,
    later_sa_layers: tuple[int, ...] = (0,),
    num_tli_layers: int = 3,
    direct_layer: int | None = None,
    later_direct_layers: tuple[int, ...] | None = None,
    tli_rank: int | None = None,
    tli_full: bool | None = None,
) -> MoaSettings:
    """Default settings for a Llama-like target, given its transformers config.

    Two blocks: two self-attention layers and a cross-attention, then another cross-attention (docs/training.md,
    "How the default was chosen"). LSA reads three layers (a sixth, a half and five sixths up). The direct paths
    of the blocks read layers at even distances, the last one just below the target layers that run on the
    device; each block's cross-attention is copied from its layer. The top layers are trained in full unless a
    rank is given.
    """
    shape = target_shape(config)
    layers, kv_heads, blocks = shape["num_target_layers"], shape["num_kv_heads"], 1 + len(later_sa_layers)
    below = layers - num_tli_layers
    even = tuple(max(0, min(below - 1, round(below * (block + 1) / blocks))) for block in range(blocks))
    full = bool(num_tli_layers) and not tli_rank if tli_full is None else tli_full
    return MoaSettings(
        **shape,
        lsa_layers=tuple(sorted({max(0, layers * part // 6 - 1) for part in (1, 3, 5)}))
        if lsa_layers is None
        else lsa_layers,
        lsa_heads=2 * kv_heads,
        lsa_kv_heads=kv_heads,
        lsa_intermediate_size=2 * kv_heads * shape["head_dim"],
        num_sa_layers=num_sa_layers,
        later_sa_layers=later_sa_layers,
        direct_layer=even[0] if direct_layer is None else direct_layer,
        later_direct_layers=even[1:] if later_direct_layers is None else later_direct_layers,
        num_tli_layers=num_tli_layers,
        tli_rank=tli_rank or 0,
        tli_full=full,
    )
