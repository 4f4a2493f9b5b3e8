"""Settings of a Mixture-of-Attentions drafter, stored as JSON beside its weights.

Everything that decides shapes or row layout stands here; what only concerns training stands in
`outrider.cloud.train.trainer`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

SETTINGS_FILE = "drafter.json"
WEIGHTS_FILE = "drafter.safetensors"


@dataclass(frozen=True, kw_only=True)
class MoaSettings:
    """Shapes of a drafter; field names are the JSON keys.

    Sources: "Mixture of Attentions For Speculative Decoding" (arXiv 2410.03804) for the three parts;
    the direct path and the null row are this project's additions.
    """

    # --- copied from the target
    hidden_size: int
    """Width of the residual stream."""
    num_target_layers: int
    """Decoder layers of the target."""
    num_heads: int
    """Query heads of the target, also of SA, CA and the target layers."""
    num_kv_heads: int
    """Key/value heads of the target, also of SA, CA and the target layers."""
    head_dim: int
    """Width of one head."""
    intermediate_size: int
    """MLP width of SA, CA and the target layers."""
    vocab_size: int
    """Target vocabulary (full)."""
    rope_theta: float
    """Base of the rotary embedding."""
    rms_norm_eps: float
    """Epsilon of every RMSNorm."""
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
    draft_vocabulary: tuple[int, ...] = ()
    """Target ids the drafter can propose, in draft order; empty before training has chosen them."""
    kappa: float = 1.0
    """Temperature of the calibrated child law softmax((logits/T + noise)/kappa), fitted on validation."""
    training_step: int = 0
    """Optimiser steps behind the weights."""
    trained_length: int = 0
    """Longest text seen in training, tokens; beyond it acceptance is unmeasured."""

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
    def kv_width(self) -> int:
        """Values of one key (or value) over all heads: the w of every K/V buffer."""
        return self.num_kv_heads * self.head_dim

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

    def to_json(self) -> str:
        """Settings as one JSON object, keys in field order."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> MoaSettings:
        """Parse `to_json` output; ValueError on an unknown or missing key."""
        raw: dict[str, Any] = json.loads(text)
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(raw) - known):
            raise ValueError(f"unknown drafter settings {unknown}; this version knows {sorted(known)}")
        for name in ("lsa_layers", "draft_vocabulary"):
            if name in raw:
                raw[name] = tuple(int(value) for value in raw[name])
        try:
            return cls(**raw)
        except TypeError as error:
            raise ValueError(f"drafter settings are incomplete: {error}") from error

    def save(self, folder: Path) -> None:
        """Write the settings into a weights folder."""
        (folder / SETTINGS_FILE).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> MoaSettings:
        """Read the settings of a weights folder."""
        return cls.from_json((folder / SETTINGS_FILE).read_text(encoding="utf-8"))


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
    layers = int(config.num_hidden_layers)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    kv_heads = int(config.num_key_value_heads)
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        raise ValueError(
            f"only the default rotary embedding is supported, the target uses {rope['rope_type']!r}"
        )
    return MoaSettings(
        hidden_size=int(config.hidden_size),
        num_target_layers=layers,
        num_heads=int(config.num_attention_heads),
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=int(config.intermediate_size),
        vocab_size=int(config.vocab_size),
        rope_theta=float(rope.get("rope_theta", getattr(config, "rope_theta", 10000.0))),
        rms_norm_eps=float(config.rms_norm_eps),
        lsa_layers=lsa_layers or tuple(sorted({max(0, layers * part // 6 - 1) for part in (1, 3, 5)})),
        lsa_heads=2 * kv_heads,
        lsa_kv_heads=kv_heads,
        lsa_intermediate_size=2 * kv_heads * head_dim,
        num_sa_layers=num_sa_layers,
        direct_layer=layers - 1 - num_tli_layers if direct else -1,
        num_tli_layers=num_tli_layers,
        tli_rank=tli_rank,
    )
