"""The independent drafter as it is trained: a language model over the same texts, matched to the target's law.

Nothing of the target's state is read, so how a text is cut into blocks changes nothing (but for the staircase).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from outrider.cloud.independent.settings import IndependentSettings
from outrider.cloud.kinds.base import DrafterOutput, FrozenTarget, Text, TrainableDrafter
from outrider.cloud.kinds.layers import DecoderLayer, RmsNorm, decoder_layer, target_like_layer
from outrider.cloud.kinds.passes import causal_layer, causal_masks, whole_angles


class IndependentDrafter(TrainableDrafter):
    """Causal layers over frozen embeddings; own final norm before the frozen head."""

    settings: IndependentSettings
    device_prefixes = ("layers.",)

    def __init__(self, settings: IndependentSettings):
        super().__init__()
        self.settings = settings
        self.layers = nn.ModuleList(
            target_like_layer(settings, settings.mlp_size) for _ in range(settings.num_layers)
        )
        self.norm = RmsNorm(settings.hidden_size, settings.rms_norm_eps)

    def decoder_layers(self) -> list[DecoderLayer]:
        """The layers, typed."""
        return [decoder_layer(layer) for layer in self.layers]

    def forward(self, texts: Sequence[Text], frozen: FrozenTarget) -> DrafterOutput:
        """Run all texts; predictions at position i are for token i + 1."""
        angles, masks = whole_angles(texts, self.settings), causal_masks(texts)
        x = frozen.embedding(torch.cat([text.ids for text in texts])).float()
        for layer in self.decoder_layers():
            x = causal_layer(layer, x, texts, angles, masks)
        parts = zip(x.split([len(text.ids) for text in texts]), texts, strict=True)
        return DrafterOutput(self.norm(torch.cat([part[text.first_query :] for part, text in parts])))
