"""Settings of an EAGLE-2 drafter (Li et al. 2024, arXiv 2401.15077 and 2406.16858)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.cloud.kinds.settings import DrafterSettings, target_shape


@dataclass(frozen=True, kw_only=True)
class Eagle2Settings(DrafterSettings):
    """Shapes of the drafter: a linear layer that joins token and feature, then Llama layers."""

    kind: str = "eagle2"
    num_layers: int = 7
    """Decoder layers. The paper has one of the target's size; more of them match another drafter's parameters."""
    mlp_size: int
    """MLP width of these layers; the target's, unless parameters are to be matched to another count."""
    feature_noise: float = 0.1
    """Half width of the uniform noise on features in training, in units of the features' root mean square."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the first field that cannot be."""
        for name in ("num_layers", "mlp_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_layers > self.num_target_layers:
            raise ValueError(
                f"num_layers must be at most the target's {self.num_target_layers}, got {self.num_layers}"
            )
        if not 0.0 <= self.feature_noise < 10.0:
            raise ValueError(f"feature_noise must lie in [0, 10), got {self.feature_noise}")

    @property
    def needs_final(self) -> bool:
        """Features are the target's final states."""
        return True

    @property
    def own_layers(self) -> int:
        """One K/V buffer a layer."""
        return self.num_layers


def settings_for_target(
    config: Any, *, num_layers: int | None = None, mlp_size: int | None = None, feature_noise: float = 0.1
) -> Eagle2Settings:
    """Default settings for a Llama-like target, given its transformers config.

    Seven layers, or all that a smaller target has; for SmolLM2-135M they make 25.4 M trained parameters, as many
    as MoA's default.
    """
    shape = target_shape(config)
    return Eagle2Settings(
        **shape,
        num_layers=min(7, shape["num_target_layers"]) if num_layers is None else num_layers,
        mlp_size=mlp_size or shape["intermediate_size"],
        feature_noise=feature_noise,
    )
