"""Settings of an independent drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.cloud.kinds.settings import DrafterSettings, target_shape
from outrider.cloud.kinds.sources import check_sources, end_layers


@dataclass(frozen=True, kw_only=True)
class IndependentSettings(DrafterSettings):
    """A small language model of the target's build, between its embedding and its head.

    The baseline of arXiv 2410.03804 that knows nothing of the target's state: no rows, nothing on the wire but ids.
    """

    kind: str = "independent"
    num_layers: int
    """Decoder layers."""
    mlp_size: int = 0
    """MLP width of the layers; 0 for the target's."""
    init_layers: tuple[int, ...]
    """Target layer that each layer's weights start from."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the first field that cannot be."""
        if self.num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {self.num_layers}")
        if self.mlp_size < 0:
            raise ValueError(f"mlp_size must not be negative, got {self.mlp_size}")
        check_sources(self.init_layers, self.num_layers, self.num_target_layers)

    @property
    def own_layers(self) -> int:
        """Every layer has K/V of its own."""
        return self.num_layers


def settings_for_target(
    config: Any,
    *,
    num_layers: int = 7,
    mlp_size: int = 0,
    init_layers: tuple[int, ...] | None = None,
) -> IndependentSettings:
    """Default settings for a Llama-like target, given its transformers config.

    Seven layers have about as many parameters as the default MoA drafter trains.
    """
    shape = target_shape(config)
    return IndependentSettings(
        **shape,
        num_layers=num_layers,
        mlp_size=mlp_size,
        init_layers=end_layers(num_layers, shape["num_target_layers"])
        if init_layers is None
        else init_layers,
    )
