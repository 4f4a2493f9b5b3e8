"""Building blocks shared by the training drafter, the server half and the exported device half.

Names inside a `DecoderLayer` are those of transformers' Llama layer, so target layers load by name.
Tensors are unbatched: texts stand one after another along the token axis, and only attention knows
where one ends (see `drafter.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outrider.cloud.kinds.elementwise import rms_norm, silu_times, turn
from outrider.cloud.kinds.fast import fast_attend, fast_linear
from outrider.cloud.kinds.settings import DrafterSettings


class RmsNorm(nn.Module):
    """Root-mean-square norm, computed in float32; weights start at 1."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width], same dtype."""
        low = torch.get_autocast_dtype("cpu") if _fast() else x.dtype
        return rms_norm(x, self.weight, self.eps, low)


class Linear(nn.Linear):
    """A linear layer that training runs faster; see `fast.py`."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return fast_linear(x, self.weight, self.bias) if _fast() else super().forward(x)


def _fast() -> bool:
    """Whether this is training (or validation): low precision is allowed, and shapes are ragged."""
    return torch.is_autocast_enabled("cpu")


def rotary_angles(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary embedding at integer positions [n]; two float32 [n, head_dim]."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions.float()[:, None] * theta ** -exponents[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads [n, heads, head_dim] by angles [n, head_dim]; with -sin it turns back."""
    return turn(x, cos, sin)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax attention of one text, query heads grouped so that K/V heads are never repeated.

    q [n, heads, d]; k, v [m, kv_heads, d]; mask bool [n, m] (True = visible, at least one per row),
    None = causal (n == m). Returns [n, heads * d]. Written out because on CPUs the backward pass of the
    fused kernel takes three times as long at these sizes.
    """
    if _fast():
        return fast_attend(q, k, v, mask)
    n, heads, width = q.shape
    kv_heads = k.shape[1]
    if mask is None:
        mask = torch.ones(n, n, dtype=torch.bool, device=q.device).tril_()
    bias = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, float("-inf"))
    groups = heads // kv_heads
    wide = (q * width**-0.5).transpose(0, 1).reshape(kv_heads, groups * n, width)
    # Contiguous operands: batched products of permuted ones fall back to slow kernels.
    keys, values = k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()
    scores = torch.bmm(wide, keys.transpose(1, 2)).view(heads, n, -1) + bias
    law = scores.softmax(-1).view(kv_heads, groups * n, -1)
    return torch.bmm(law, values).view(heads, n, width).transpose(0, 1).reshape(n, -1)


class DecoderLayer(nn.Module):
    """Weights and the two halves around attention of one pre-norm Llama layer."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        mlp: int,
        eps: float,
        *,
        bias: bool = False,
    ):
        """`bias`: queries, keys and values have one (Qwen2)."""
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.input_layernorm = RmsNorm(width, eps)
        self.q_proj = Linear(width, heads * head_dim, bias=bias)
        self.k_proj = Linear(width, kv_heads * head_dim, bias=bias)
        self.v_proj = Linear(width, kv_heads * head_dim, bias=bias)
        self.o_proj = Linear(heads * head_dim, width, bias=False)
        self.post_attention_layernorm = RmsNorm(width, eps)
        self.gate_proj = Linear(width, mlp, bias=False)
        self.up_proj = Linear(width, mlp, bias=False)
        self.down_proj = Linear(mlp, width, bias=False)

    def query(self, normed: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotated queries [n, heads, head_dim] of a normed stream [n, width]."""
        return rotate(self.q_proj(normed).view(-1, self.heads, self.head_dim), cos, sin)

    def key_value(self, normed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values, each [n, kv_heads, head_dim], of a normed stream [n, width]."""
        k = self.k_proj(normed).view(-1, self.kv_heads, self.head_dim)
        return rotate(k, cos, sin), self.v_proj(normed).view(-1, self.kv_heads, self.head_dim)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Output projection, residual and MLP: x [n, width], attended [n, heads * head_dim]."""
        return self.mlp(x + self.o_proj(attended))

    def mlp(self, x: Tensor) -> Tensor:
        """Norm, SwiGLU and residual: x [n, width]."""
        normed = self.post_attention_layernorm(x)
        return x + self.down_proj(silu_times(self.gate_proj(normed), self.up_proj(normed)))


def decoder_layer(module: nn.Module) -> DecoderLayer:
    """An element of a module list as what it is; TypeError if it is something else."""
    if not isinstance(module, DecoderLayer):
        raise TypeError(f"expected a DecoderLayer, got {type(module).__name__}")
    return module


def target_like_layer(settings: DrafterSettings, mlp_size: int = 0) -> DecoderLayer:
    """A layer with the target's shapes: SA, CA and the frozen target layers; `mlp_size` 0 for the target's."""
    return DecoderLayer(
        settings.hidden_size,
        settings.num_heads,
        settings.num_kv_heads,
        settings.head_dim,
        mlp_size or settings.intermediate_size,
        settings.rms_norm_eps,
        bias=settings.attention_bias,
    )


ADAPTED = ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Projections of a target layer that may be corrected; keys and values stay, as verified ones are the target's."""


class LowRank(nn.Module):
    """A correction x -> b(a(x)) of a frozen linear layer; zero at the start (LoRA, arXiv 2106.09685)."""

    def __init__(self, base: nn.Linear, rank: int):
        super().__init__()
        self.a = Linear(base.in_features, rank, bias=False)
        self.b = Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def delta(self) -> Tensor:
        """The correction as a full matrix [out, in]."""
        return self.b.weight @ self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        corrected: Tensor = self.b(self.a(x))
        return corrected


class CorrectedLinear(nn.Module):
    """A frozen linear layer plus its correction, for training; merged everywhere else."""

    def __init__(self, base: nn.Linear, correction: LowRank):
        super().__init__()
        self.base, self.correction = base, correction

    def forward(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        return self.base(x) + self.correction(x)
