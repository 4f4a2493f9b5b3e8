"""Layers of the Mixture-of-Attentions drafter: those that all kinds share."""

from __future__ import annotations

from outrider.cloud.kinds.layers import (
    ADAPTED,
    CorrectedLinear,
    DecoderLayer,
    LowRank,
    RmsNorm,
    attend,
    decoder_layer,
    rotary_angles,
    rotate,
    target_like_layer,
)

__all__ = [
    "ADAPTED",
    "CorrectedLinear",
    "DecoderLayer",
    "LowRank",
    "RmsNorm",
    "attend",
    "decoder_layer",
    "rotary_angles",
    "rotate",
    "target_like_layer",
]
