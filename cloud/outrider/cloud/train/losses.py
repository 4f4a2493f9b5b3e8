"""What the drafter is trained to match: the target's law over the draft vocabulary, and its features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_CHUNK = 512
"""Queries whose logits exist at once: 512 x 12k float32 is 25 MB, which stays near the cache."""


class _Distill(torch.autograd.Function):
    """Weighted cross entropy against the teacher's law, with the gradient computed in the forward pass.

    Keeping logits of all queries for the backward pass would cost half a gigabyte of traffic a step.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, teacher: Tensor, head: Tensor, weights: Tensor, argmax_share: float
    ) -> tuple[Tensor, Tensor]:
        loss = torch.zeros((), dtype=torch.float32)
        gradient = torch.empty_like(x, dtype=torch.float32)
        agreed = torch.empty(len(x), dtype=torch.bool)
        for start in range(0, len(x), _CHUNK):
            part = slice(start, start + _CHUNK)
            logits = (x[part].to(head.dtype) @ head.T).float()
            wanted = (teacher[part].to(head.dtype) @ head.T).float()
            # amax is vectorised on CPUs, argmax is not; ties share the extra mass.
            best = (wanted == wanted.amax(-1, keepdim=True)).float()
            top = logits == logits.amax(-1, keepdim=True)
            agreed[part] = (top & (best > 0)).any(-1)
            law = wanted.softmax(-1).mul_(1.0 - argmax_share)
            law.addcmul_(best, argmax_share / best.sum(-1, keepdim=True))
            log_law = logits.log_softmax(-1)
            weight = weights[part, None]
            loss += -(weight[:, 0] * torch.einsum("nv,nv->n", law, log_law)).sum()
            error = log_law.exp_().sub_(law).mul_(weight)
            gradient[part] = error.to(head.dtype) @ head
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(agreed)
        return loss, agreed

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outputs[0], None, None, None, None


def distill(
    final: Tensor, teacher: Tensor, head: Tensor, weights: Tensor, argmax_share: float
) -> tuple[Tensor, Tensor]:
    """Forward cross entropy of the draft law against the target's, restricted to the draft vocabulary.

    final, teacher [Q, hidden]: what the head reads, drafter's and target's; head [V_d, hidden];
    weights [Q] sum to 1. `argmax_share` of the teacher's mass moves to its best token, which is what
    greedy acceptance needs. Returns (loss, agreed bool [Q]: both have the same best token).
    """
    with torch.autocast("cpu", enabled=False):
        result: tuple[Tensor, Tensor] = _Distill.apply(final, teacher, head, weights, argmax_share)
    return result


def feature_loss(drafted: Tensor, true: Tensor, weights: Tensor) -> Tensor:
    """Smooth-L1 between features [Q, hidden], mean over hidden, weighted over queries."""
    each = F.smooth_l1_loss(drafted.float(), true.float(), reduction="none").mean(-1)
    return (each * weights).sum()
