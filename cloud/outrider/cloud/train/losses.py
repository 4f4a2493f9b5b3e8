"""What a drafter is trained to match: the target's law over the draft vocabulary, and its features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.cloud.kinds.elementwise import law_error

_CHUNK = 512
"""Queries whose logits exist at once: 512 x 12k bfloat16 is 13 MB, which stays near the cache."""
_STEP = 128
"""Chunks are multiples of this."""

FINAL_SHARE = 0.1
"""Weight of the final feature's loss beside the entering stream's."""


@dataclass(frozen=True, slots=True)
class Teachers:
    """What Q queries are compared with."""

    final: Tensor
    """[Q, hidden]: the target's final states (after the norm)."""
    weights: Tensor
    """[Q]: weight of each query, sum 1; 0 where no loss may be."""
    stream: Tensor | None = None
    """[Q, hidden]: residual stream entering `settings.stream_layer`."""

    def select(self, keep: Tensor) -> Teachers:
        """Those queries where bool [Q] `keep` is True; weights keep their values."""
        stream = None if self.stream is None else self.stream[keep]
        return Teachers(self.final[keep], self.weights[keep], stream)


@dataclass(frozen=True, slots=True)
class LossOptions:
    """Weights of the losses at this moment of training."""

    law: float = 1.0
    """Cross entropy against the target's law over the draft vocabulary (forward KL up to a constant)."""
    argmax_share: float = 0.2
    """Teacher mass moved to its best token; what greedy acceptance needs."""
    top: float = 0.0
    """Cross entropy over the target's `top_k` best tokens only (HASS, arXiv 2408.15766)."""
    top_k: int = 10
    """Size of that set."""
    features: float = 0.0
    """Smooth-L1 on features."""
    seed: int = 0
    """Of anything random inside the loss: follows from the run's seed and the step."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Of one step; `total` carries the gradient, the others are for the log."""

    total: Tensor
    law: Tensor
    """Weighted mean cross entropy (law and top-K parts, as weighted by the options)."""
    feature: Tensor
    """Weighted mean smooth-L1, before its weight."""
    agreed: Tensor
    """Weighted share of queries whose best token is the target's."""

    def plus_feature(self, feature: Tensor, weight: float) -> Losses:
        """With one more feature loss."""
        return replace(self, total=self.total + weight * feature, feature=self.feature + feature.detach())


class _Distill(torch.autograd.Function):
    """Weighted cross entropy against the teacher's law, with the gradient computed in the forward pass.

    Keeping logits of all queries for the backward pass would cost half a gigabyte of traffic a step.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, teacher: Tensor, head: Tensor, weights: Tensor, options: LossOptions
    ) -> tuple[Tensor, Tensor]:
        loss = torch.zeros((), dtype=torch.float32)
        gradient = torch.empty_like(x, dtype=torch.float32)
        agreed = torch.empty(len(x), dtype=torch.bool)
        for start in range(0, len(x), _CHUNK):
            part = slice(start, min(start + _CHUNK, len(x)))
            own, true, weight = (_whole(value[part]) for value in (x, teacher, weights))
            logits, wanted = own.to(head.dtype) @ head.T, true.to(head.dtype) @ head.T
            shares = options.law * (1.0 - options.argmax_share), options.law * options.argmax_share
            each, error, same = law_error(logits, wanted, weight, *shares)
            if options.top:
                more, top_error = _top_error(logits, wanted, weight, options)
                each, error = each + more, error + top_error
            count = part.stop - part.start
            loss += each.sum()
            gradient[part] = (error @ head)[:count]
            agreed[part] = same[:count]
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(agreed)
        return loss, agreed

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outputs[0], None, None, None, None


def _top_error(logits: Tensor, wanted: Tensor, weight: Tensor, options: LossOptions) -> tuple[Tensor, Tensor]:
    """Weighted cross entropy over the teacher's best tokens [n], and its gradient by the logits [n, v]."""
    law = wanted.float().softmax(-1)
    if options.top_k < law.shape[-1]:
        law = law * (law >= law.topk(options.top_k, dim=-1).values[:, -1:])
    log_law = logits.float().log_softmax(-1)
    scale = options.top * weight
    error = (log_law.exp() * law.sum(-1, keepdim=True) - law) * scale[:, None]
    return -(law * log_law).sum(-1) * scale, error.to(logits.dtype)


def _whole(part: Tensor) -> Tensor:
    """Filled up with zeros to a multiple of `_STEP` rows: new shapes are dear, see `kinds.fast`."""
    if len(part) % _STEP == 0:
        return part
    out = part.new_zeros(-(-len(part) // _STEP) * _STEP, *part.shape[1:])
    out[: len(part)] = part
    return out


def distill(
    final: Tensor, teacher: Tensor, head: Tensor, weights: Tensor, options: LossOptions
) -> tuple[Tensor, Tensor]:
    """Forward cross entropy of the draft law against the target's, restricted to the draft vocabulary.

    final, teacher [Q, hidden]: what the head reads, drafter's and target's; head [V_d, hidden];
    weights [Q]. Returns (loss, agreed bool [Q]: both have the same best token).
    """
    with torch.autocast("cpu", enabled=False):
        result: tuple[Tensor, Tensor] = _Distill.apply(final, teacher, head, weights, options)
    return result


def law_losses(final: Tensor, teachers: Teachers, head: Tensor, options: LossOptions) -> Losses:
    """Law, top-K and final-feature losses of queries [Q, hidden]; all teachers' weights count."""
    law, agreed = distill(final, teachers.final, head, teachers.weights, options)
    share = (agreed.float() * teachers.weights).sum()
    losses = Losses(law, law.detach(), torch.zeros(()), share)
    if options.features > 0:
        feature = FINAL_SHARE * feature_loss(final, teachers.final, teachers.weights)
        losses = losses.plus_feature(feature, options.features)
    return losses


def stream_loss(entering: Tensor, teachers: Teachers, norm: nn.Module) -> Tensor:
    """Feature loss of the stream that enters the frozen layers, as their input norm sees it."""
    return feature_loss(norm(entering), norm(teachers.stream), teachers.weights)


def feature_loss(drafted: Tensor, true: Tensor, weights: Tensor) -> Tensor:
    """Smooth-L1 between features [Q, hidden], mean over hidden, weighted over queries."""
    each = F.smooth_l1_loss(drafted.float(), true.float(), reduction="none").mean(-1)
    return (each * weights).sum()
