"""Elementwise parts of drafters, as plain functions that a compiler can turn into one loop each.

Written out in torch operations each is several passes over memory; compiled it is one. `compile_all` needs
a C++ compiler and takes a minute the first time, so that only long training runs call it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def _rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    full = x.float()
    full = full * torch.rsqrt(full.square().mean(-1, keepdim=True) + eps)
    return (full * weight.float()).to(dtype)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    full = x.float()
    turned = torch.cat((-full[..., half:], full[..., :half]), dim=-1)
    return (full * cos[:, None, :] + turned * sin[:, None, :]).to(x.dtype)


def _silu_times(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _law_error(
    logits: Tensor, wanted: Tensor, weight: Tensor, law_share: float, best_share: float
) -> tuple[Tensor, Tensor, Tensor]:
    full, true = logits.float(), wanted.float()
    # amax is vectorised on CPUs, argmax is not; ties share the extra mass.
    best = true == true.amax(-1, keepdim=True)
    agreed = (best & (full == full.amax(-1, keepdim=True))).any(-1)
    law = true.softmax(-1) * law_share + best * (best_share / best.sum(-1, keepdim=True))
    log_law = full.log_softmax(-1)
    loss = -(law * log_law).sum(-1) * weight
    error = (log_law.exp() * (law_share + best_share) - law) * weight[:, None]
    return loss, error.to(logits.dtype), agreed


class _Loops:
    """What runs: the functions above, or what a compiler made of them."""

    rms_norm: Callable[..., Any] = staticmethod(_rms_norm)
    turn: Callable[..., Any] = staticmethod(_turn)
    silu_times: Callable[..., Any] = staticmethod(_silu_times)
    law_error: Callable[..., Any] = staticmethod(_law_error)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Root-mean-square norm over the last axis, computed in float32, as `dtype`."""
    out: Tensor = _Loops.rms_norm(x, weight, eps, dtype)
    return out


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of heads [n, heads, d] by angles [n, d]; in float32, as x's type."""
    out: Tensor = _Loops.turn(x, cos, sin)
    return out


def silu_times(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU(gate) * up, the inside of a SwiGLU."""
    out: Tensor = _Loops.silu_times(gate, up)
    return out


def law_error(
    logits: Tensor, wanted: Tensor, weight: Tensor, law_share: float, best_share: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted cross entropy [n], its gradient by the logits [n, v], and whether best tokens agree [n].

    The teacher's law is `law_share` of softmax(wanted) and `best_share` on its best token; weight [n].
    """
    loss, error, agreed = _Loops.law_error(logits, wanted, weight, law_share, best_share)
    return loss, error, agreed


def compile_all() -> bool:
    """Compile the functions of this module for this process; False where there is no C++ compiler."""
    if not any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        return False
    # Trained and frozen weights, float32 and bfloat16, with and without gradients: each is a form of its own.
    torch._dynamo.config.recompile_limit = 64
    for name, function in (
        ("rms_norm", _rms_norm),
        ("turn", _turn),
        ("silu_times", _silu_times),
        ("law_error", _law_error),
    ):
        setattr(_Loops, name, staticmethod(torch.compile(function, dynamic=True)))
    return True
