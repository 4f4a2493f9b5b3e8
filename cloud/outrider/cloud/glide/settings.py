"""Settings of a GLIDE drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.cloud.kinds.settings import DrafterSettings, target_shape
from outrider.cloud.kinds.sources import check_sources, end_layers


@dataclass(frozen=True, kw_only=True)
class GlideSettings(DrafterSettings):
    """Llama layers with a cross-attention to the target's last-layer K/V (arXiv 2402.02082, section 3.1).

    The paper has one layer with cross-attention. More of them are this project's, so that the number of trained
    parameters can be matched to another kind's.
    """

    kind: str = "glide"
    num_layers: int
    """Decoder layers; 1 in the paper."""
    first_cross: int = 0
    """First layer with cross-attention; those before it are plain decoder layers over the whole text."""
    mlp_size: int = 0
    """MLP width of the layers; 0 for the target's."""
    init_layers: tuple[int, ...]
    """Target layer that each layer's weights start from."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the first field that cannot be."""
        if self.num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {self.num_layers}")
        if not 0 <= self.first_cross < self.num_layers:
            raise ValueError(f"first_cross must lie in [0, {self.num_layers}), got {self.first_cross}")
        if self.mlp_size < 0:
            raise ValueError(f"mlp_size must not be negative, got {self.mlp_size}")
        check_sources(self.init_layers, self.num_layers, self.num_target_layers)

    @property
    def read_layer(self) -> int:
        """The target layer whose K/V the cross-attention reads: the last."""
        return self.num_target_layers - 1

    @property
    def needed_layers(self) -> tuple[int, ...]:
        """That layer alone."""
        return (self.read_layer,)

    @property
    def own_layers(self) -> int:
        """Every layer has self-attention."""
        return self.num_layers

    @property
    def block_layers(self) -> int:
        """Layers above the first cross-attention: their self-attention reads only what has no rows yet."""
        return self.num_layers - 1 - self.first_cross


def settings_for_target(
    config: Any,
    *,
    num_layers: int = 6,
    first_cross: int = 0,
    mlp_size: int = 0,
    init_layers: tuple[int, ...] | None = None,
) -> GlideSettings:
    """Default settings for a Llama-like target, given its transformers config.

    Six layers have about as many parameters as the default MoA drafter trains.
    """
    shape = target_shape(config)
    return GlideSettings(
        **shape,
        num_layers=num_layers,
        first_cross=first_cross,
        mlp_size=mlp_size,
        init_layers=end_layers(num_layers, shape["num_target_layers"])
        if init_layers is None
        else init_layers,
    )
