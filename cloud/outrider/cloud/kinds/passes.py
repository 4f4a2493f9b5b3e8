"""Parts of a parallel pass over ragged texts that several kinds share.

Tensors are unbatched: texts stand one after another along the token axis, and only attention knows where one ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.cloud.kinds.base import Text
from outrider.cloud.kinds.layers import DecoderLayer, attend, rotary_angles
from outrider.cloud.kinds.settings import DrafterSettings

Angles = tuple[Tensor, Tensor]


def whole_angles(texts: Sequence[Text], settings: DrafterSettings) -> Angles:
    """Rotary cosine and sine of all tokens of all texts, each [sum of T, head_dim]."""
    positions = torch.cat([torch.arange(len(text.ids)) for text in texts])
    return rotary_angles(positions, settings.head_dim, settings.rope_theta)


def causal_masks(texts: Sequence[Text]) -> list[Tensor | None]:
    """Per text what its tokens see of each other: None for all before them, else bool [T, T]."""
    return [_staircase(text) if text.staircase else None for text in texts]


def causal_layer(
    layer: DecoderLayer, x: Tensor, texts: Sequence[Text], angles: Angles, masks: Sequence[Tensor | None]
) -> Tensor:
    """A decoder layer over whole texts, x [sum of T, width] -> the same."""
    lengths = [len(text.ids) for text in texts]
    normed = layer.input_layernorm(x)
    q = layer.query(normed, *angles).split(lengths)
    k, v = (part.split(lengths) for part in layer.key_value(normed, *angles))
    return layer.finish(x, torch.cat([attend(*parts) for parts in zip(q, k, v, masks, strict=True)]))


def _staircase(text: Text) -> Tensor:
    """bool [T, T]: causal, but a query reaches back to the begin of its block only."""
    mask = torch.ones(len(text.ids), len(text.ids), dtype=torch.bool).tril_()
    mask[text.first_query :] &= torch.arange(len(text.ids))[None, :] >= text.rows[:, None]
    return mask
