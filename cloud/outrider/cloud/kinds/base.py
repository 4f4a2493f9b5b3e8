"""What a drafter of any kind is while it is trained: texts in, features of all queries out, a loss.

A text is cut into *blocks*. A query at position i of a block that begins at b sees what the device would
see when the last verified position with rows is b - 1: target-derived state of positions j < b, and
nothing of the target for b..i. So every answer position is trained under exactly the inference condition,
and running the same text with other cuts gives every depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outrider.cloud.kinds.layers import RmsNorm, decoder_layer, target_like_layer
from outrider.cloud.kinds.settings import DrafterSettings
from outrider.cloud.train.losses import Losses, LossOptions, Teachers, law_losses, stream_loss


@dataclass(frozen=True, slots=True)
class Text:
    """One text of T tokens for a parallel pass."""

    ids: Tensor
    """Target ids, int64 [T]."""
    kv: Tensor
    """True K/V of `settings.needed_layers`, [T, num_needed, 2, kv_width], keys rotated."""
    first_query: int
    """Queries are the positions first_query..T-1."""
    rows: Tensor
    """int64 [T - first_query]: how many leading positions have true rows for that query (block begin).

    Not decreasing, at most the query's own position, and equal for all queries of a block; with
    `first_query` > 0 the first block must begin there or before.
    """
    final: Tensor | None = None
    """[T, hidden]: the target's final states (after the norm), where `settings.needs_final`."""
    staircase: bool = False
    """Own attention of a query reaches back to the begin of its block only; training's curriculum."""

    @property
    def num_queries(self) -> int:
        """Queries of this text."""
        return len(self.ids) - self.first_query


@dataclass(frozen=True, slots=True)
class DrafterOutput:
    """What one pass gives for Q = sum of `num_queries` positions."""

    final: Tensor
    """[Q, hidden]: what the frozen head reads; at position i it predicts token i + 1."""
    entering: Tensor | None = None
    """[Q, hidden]: stream that enters the frozen layers, where `settings.stream_layer` names one."""
    valid: Tensor | None = None
    """bool [Q]: False where this kind cannot predict at all; None = everywhere True."""


class FrozenTarget(nn.Module):
    """Parts of the target a drafter reuses: embedding, top layers, final norm, (reduced) head."""

    def __init__(self, settings: DrafterSettings, num_head_ids: int):
        super().__init__()
        self.embedding = nn.Embedding(settings.vocab_size, settings.hidden_size)
        self.layers = nn.ModuleList(target_like_layer(settings) for _ in settings.tli_layers)
        self.norm = RmsNorm(settings.hidden_size, settings.rms_norm_eps)
        self.head = nn.Linear(settings.hidden_size, num_head_ids, bias=False)
        self.requires_grad_(False)


class TrainableDrafter(nn.Module):
    """A drafter of any kind as the trainer, validation and storage know it."""

    settings: DrafterSettings
    device_prefixes: tuple[str, ...] = ()
    """Parameter names with these prefixes run on the device: their matrices may be stored as int8."""
    adam_parts: tuple[str, ...] = ()
    """Matrices whose name contains one of these go to AdamW, not Muon (identities, low-rank factors)."""
    rate_shares: tuple[tuple[str, float], ...] = ()
    """(name prefix, share): matrices that learn at a share of Muon's rate."""

    def forward(self, texts: Sequence[Text], frozen: FrozenTarget) -> DrafterOutput:
        """Run all queries of all texts under the inference condition of each query."""
        raise NotImplementedError

    def training_loss(
        self, texts: Sequence[Text], teachers: Teachers, frozen: FrozenTarget, options: LossOptions
    ) -> Losses:
        """What a step minimises; by default law and features of `forward`'s own output.

        Kinds whose recipe trains another way (all heads at once, one shifted pass with noise) override
        this. Nothing in `texts` or `teachers` may be changed.
        """
        out = self(texts, frozen)
        keep = teachers.weights > 0 if out.valid is None else (teachers.weights > 0) & out.valid
        kept = teachers.select(keep)
        losses = law_losses(out.final[keep], kept, frozen.head.weight, options)
        if options.features > 0 and out.entering is not None and kept.stream is not None:
            losses = losses.plus_feature(
                stream_loss(out.entering[keep], kept, decoder_layer(frozen.layers[0]).input_layernorm),
                options.features,
            )
        return losses

    def begin_step(self, step: int) -> None:
        """Called before each training step; kinds that learn some parts only now and then switch them here."""

    @torch.no_grad()
    def prepare(self, texts: Sequence[Text]) -> None:
        """Set statistics from sample texts, once, before the first step of a fresh drafter."""

    def correct(self, frozen: FrozenTarget) -> None:
        """Let the frozen layers of `frozen` run with this drafter's corrections, if it has any."""

    def merge(self, frozen: FrozenTarget) -> FrozenTarget:
        """Add corrections, if any, into the weights of `frozen` (as loaded from the target); returns it."""
        return frozen
