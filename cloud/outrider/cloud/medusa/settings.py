"""Settings of a Medusa drafter (Cai et al. 2024, arXiv 2401.10774)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.cloud.kinds.settings import DrafterSettings, target_shape


@dataclass(frozen=True, kw_only=True)
class MedusaSettings(DrafterSettings):
    """Shapes of the drafter: heads, and residual blocks in each."""

    kind: str = "medusa"
    num_medusa_heads: int = 6
    """Heads; the last drafts as many tokens beyond the newest row's successor, and then there is nothing."""
    num_blocks: int = 13
    """Residual blocks x + SiLU(W x + b) of each head. Upstream has one; more match another drafter's parameters."""
    head_decay: float = 0.8
    """Each head weighs that much of the one before it in training."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the first field that cannot be."""
        for name in ("num_medusa_heads", "num_blocks"):
            if not 1 <= getattr(self, name) <= 64:
                raise ValueError(f"{name} must lie in 1 to 64, got {getattr(self, name)}")
        if not 0.0 < self.head_decay <= 1.0:
            raise ValueError(f"head_decay must lie in (0, 1], got {self.head_decay}")

    @property
    def needs_final(self) -> bool:
        """The newest verified token's final state is all that heads read."""
        return True


def settings_for_target(
    config: Any, *, num_medusa_heads: int = 6, num_blocks: int = 13, head_decay: float = 0.8
) -> MedusaSettings:
    """Default settings for a Llama-like target, given its transformers config.

    For SmolLM2-135M a block has 0.33 M trained parameters, so six heads of 13 have 25.9 M, as many as MoA's default.
    """
    return MedusaSettings(
        **target_shape(config),
        num_medusa_heads=num_medusa_heads,
        num_blocks=num_blocks,
        head_decay=head_decay,
    )
