"""The Medusa drafter as it is trained and validated (Cai et al. 2024, arXiv 2401.10774).

Heads read one final hidden state of the target. From the state of the last verified position t, whose
successor the target itself has chosen, head k (from 0) drafts token t + 2 + k; no head knows what the
others drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.cloud.kinds.base import DrafterOutput, FrozenTarget, Text, TrainableDrafter
from outrider.cloud.kinds.layers import Linear
from outrider.cloud.medusa.settings import MedusaSettings
from outrider.cloud.train.losses import Losses, LossOptions, Teachers, law_losses


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b), nothing but x at the start (upstream's block; its bias starts random)."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[n, width] -> the same."""
        return x + F.silu(self.linear(x))


class MedusaDrafter(TrainableDrafter):
    """Independent heads over the newest final state; the vocabulary projection is the target's head."""

    settings: MedusaSettings
    device_prefixes = ("heads.",)

    def __init__(self, settings: MedusaSettings):
        super().__init__()
        s = settings
        self.settings = settings
        self.heads = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(s.hidden_size) for _ in range(s.num_blocks)))
            for _ in range(s.num_medusa_heads)
        )

    def forward(self, texts: Sequence[Text], frozen: FrozenTarget) -> DrafterOutput:
        """All queries from the state of their newest row; invalid without any row and beyond the last head."""
        del frozen
        states, depths = (torch.cat(parts) for parts in zip(*map(_newest, texts), strict=True))
        valid = (depths >= 0) & (depths < len(self.heads))
        final = torch.zeros_like(states)
        for number, head in enumerate(self.heads):
            mine = depths == number
            final[mine] = head(states[mine])
        return DrafterOutput(final, valid=valid)

    def training_loss(
        self, texts: Sequence[Text], teachers: Teachers, frozen: FrozenTarget, options: LossOptions
    ) -> Losses:
        """Medusa's recipe: every head at every position, weighted down by depth; no feature loss.

        Blocks do not matter. A head has loss where the state it reads belongs to the last prompt token or
        to an answer, as at inference.
        """
        finals, kept = [], []
        weights = teachers.weights.split([text.num_queries for text in texts])
        true = teachers.final.split([text.num_queries for text in texts])
        for number, head in enumerate(self.heads):
            for text, weight, final in zip(texts, weights, true, strict=True):
                states = _final(text)[max(0, text.first_query - 1) : len(text.ids) - 1 - number]
                queries = slice(text.num_queries - len(states), None) if len(states) else slice(0, 0)
                keep = weight[queries] > 0
                finals.append(head(states[keep].float()))
                decayed = weight[queries][keep] * self.settings.head_decay**number
                kept.append(Teachers(final[queries][keep], decayed))
        all_kept = Teachers(torch.cat([t.final for t in kept]), torch.cat([t.weights for t in kept]))
        return _mean_log(
            law_losses(torch.cat(finals), all_kept, frozen.head.weight, replace(options, features=0.0)),
            all_kept.weights.sum(),
        )


def _newest(text: Text) -> tuple[Tensor, Tensor]:
    """Per query: the newest known final state [Q, hidden] and how far behind it is (-1 without any row)."""
    positions = torch.arange(text.first_query, len(text.ids))
    depths = torch.where(text.rows > 0, positions - text.rows, -1)
    return _final(text)[(text.rows - 1).clamp_min(0)].float(), depths


def _final(text: Text) -> Tensor:
    """The target's final states of a text; ValueError if the text was made without."""
    if text.final is None:
        raise ValueError("medusa reads the target's final states, this text has none")
    return text.final


def _mean_log(losses: Losses, weight: Tensor) -> Losses:
    """For the log, means over heads: the weights of all heads together are more than 1."""
    return replace(losses, law=losses.law / weight, agreed=losses.agreed / weight)
