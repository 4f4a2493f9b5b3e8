"""Which layers of the target a stack of fewer layers starts from."""

from __future__ import annotations

from collections.abc import Sequence


def end_layers(count: int, target_layers: int) -> tuple[int, ...]:
    """The first and the last layers in equal parts (one more of the first): what reads embeddings, and what the head
    reads, stand where they stood."""
    first = (count + 1) // 2
    chosen = [*range(first), *range(target_layers - (count - first), target_layers)]
    return tuple(min(max(layer, 0), target_layers - 1) for layer in chosen)


def even_layers(count: int, target_layers: int) -> tuple[int, ...]:
    """Layers at even distances, the first and the last among them."""
    if count == 1:
        return (0,)
    return tuple(round(number * (target_layers - 1) / (count - 1)) for number in range(count))


def check_sources(layers: Sequence[int], count: int, target_layers: int) -> None:
    """Raise ValueError unless there is one layer of the target for each of ``count``."""
    if len(layers) != count or not all(0 <= layer < target_layers for layer in layers):
        raise ValueError(f"init_layers must name {count} layers in [0, {target_layers}), got {tuple(layers)}")
