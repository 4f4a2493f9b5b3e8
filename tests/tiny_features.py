"""Tiny EAGLE-2 and Medusa drafters with random weights, and an EAGLE-2 device half driven step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from outrider.cloud.eagle2.device_half import DeviceHalf, DeviceStep
from outrider.cloud.eagle2.drafter import Eagle2Drafter
from outrider.cloud.eagle2.settings import Eagle2Settings
from outrider.cloud.kinds.base import FrozenTarget, Text, TrainableDrafter
from outrider.cloud.medusa.drafter import MedusaDrafter
from outrider.cloud.medusa.settings import MedusaSettings
from outrider.cloud.train.blocks import rows_of_blocks
from tests.tiny_kinds import SHAPE

HIDDEN, VOCABULARY = int(SHAPE["hidden_size"]), int(SHAPE["vocab_size"])
D = TypeVar("D", bound=TrainableDrafter)


def eagle2_settings(num_layers: int = 2, feature_noise: float = 0.1) -> Eagle2Settings:
    """Hidden 32, 4 query heads on 2 K/V heads of 8, half of 64 ids."""
    return Eagle2Settings(**SHAPE, num_layers=num_layers, mlp_size=40, feature_noise=feature_noise)


def medusa_settings(num_heads: int = 4, num_blocks: int = 2) -> MedusaSettings:
    """The same target."""
    return MedusaSettings(**SHAPE, num_medusa_heads=num_heads, num_blocks=num_blocks)


def random_eagle2(settings: Eagle2Settings, seed: int = 0) -> tuple[Eagle2Drafter, FrozenTarget]:
    """Every parameter random."""
    return _random(Eagle2Drafter(settings), seed), _frozen(seed)


def random_medusa(settings: MedusaSettings, seed: int = 0) -> tuple[MedusaDrafter, FrozenTarget]:
    """Every parameter random."""
    return _random(MedusaDrafter(settings), seed), _frozen(seed)


def random_features(length: int, seed: int = 1) -> Tensor:
    """Stand-in for the target's final states [length, HIDDEN], with the outlying channels that real ones have."""
    features = torch.randn(length, HIDDEN, generator=torch.Generator().manual_seed(seed))
    features[:, :2] *= 10.0
    return features


def feature_text(ids: Tensor, features: Tensor, begins: list[int], first_query: int | None = None) -> Text:
    """A text cut into blocks that begin at `begins`."""
    rows = rows_of_blocks(begins, len(ids))
    first = begins[0] if first_query is None else first_query
    return Text(ids, torch.zeros(len(ids), 0, 2, 16), first, rows[first - begins[0] :], features)


def _random(drafter: D, seed: int) -> D:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for buffer in drafter.buffers():
            buffer.uniform_(0.5, 1.5, generator=generator)
        for parameter in drafter.parameters():
            # Small enough that feeding predictions back does not amplify the last bits.
            parameter.normal_(0.0, 0.2, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(1.0)
    return drafter.eval()


def _frozen(seed: int) -> FrozenTarget:
    settings = eagle2_settings()
    frozen = FrozenTarget(settings, len(settings.draft_vocabulary))
    generator = torch.Generator().manual_seed(seed + 1000)
    with torch.no_grad():
        for parameter in frozen.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return frozen.eval()


@dataclass
class Device:
    """A device's view: own K/V of what it fed, true features of the first `num_rows` positions, its own beyond."""

    half: DeviceHalf
    true: Tensor
    num_rows: int

    def __post_init__(self) -> None:
        s = self.half.settings
        self.own_k = [torch.zeros(0, s.kv_width) for _ in range(s.own_layers)]
        self.own_v = [torch.zeros(0, s.kv_width) for _ in range(s.own_layers)]
        self.features = torch.zeros(1, s.hidden_size)
        """Feature before each token fed so far, and before the next."""

    def feed(self, ids: Tensor) -> Tensor:
        """Feed the next n tokens, one at a time beyond the rows; logits [n, V_d] at each."""
        known = max(0, min(len(ids), self.num_rows - len(self.own_k[0])))
        parts = ([ids[:known]] if known else []) + list(ids[known:].split(1))
        return torch.cat([self._feed_part(part) for part in parts if len(part)])

    def _feed_part(self, ids: Tensor) -> Tensor:
        past, n = len(self.own_k[0]), len(ids)
        true = self.true[past : min(past + n, self.num_rows)]
        before = torch.cat((self.features[-1:], true))[:n]
        out = self.half.step(
            DeviceStep(
                ids=ids,
                positions=torch.arange(past, past + n),
                features=before,
                own_mask=torch.ones(n, past + n, dtype=torch.bool).tril(past),
                own_k=self.own_k,
                own_v=self.own_v,
                select=torch.arange(n),
            )
        )
        self.own_k = [torch.cat(pair) for pair in zip(self.own_k, out.new_k, strict=True)]
        self.own_v = [torch.cat(pair) for pair in zip(self.own_v, out.new_v, strict=True)]
        self.features = torch.cat((self.features, true if len(true) else out.features))
        return out.logits
