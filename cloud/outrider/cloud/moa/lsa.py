"""Layer self-attention and the projection of its memory to cross-attention rows (server side).

Paper: arXiv 2410.03804, section on Layer Self-Attention. Differences, each measured or argued in
docs/training.md: keys are turned back to position 0 before they are read (the server knows positions),
every input channel is standardised with statistics of the corpus, only some layers are read, and the
cross-attention rows start as the true K/V of one late target layer (the direct path).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.moa.layers import DecoderLayer, RmsNorm, rotary_angles, rotate


class LayerSelfAttention(nn.Module):
    """One decoder layer over the axis of target layers, unmasked, then the mean over layers."""

    def __init__(self, settings: MoaSettings):
        super().__init__()
        width = 2 * settings.kv_width
        head_dim = width // settings.lsa_heads
        count = len(settings.lsa_layers)
        self.layer = DecoderLayer(
            width,
            settings.lsa_heads,
            settings.lsa_kv_heads,
            head_dim,
            settings.lsa_intermediate_size,
            settings.rms_norm_eps,
        )
        self.register_buffer("center", torch.zeros(count, width))
        self.register_buffer("scale", torch.ones(count, width))
        cos, sin = rotary_angles(torch.arange(count), head_dim, settings.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    center: Tensor
    scale: Tensor
    cos: Tensor
    sin: Tensor

    def forward(self, kv: Tensor) -> Tensor:
        """[n, num_layers, 2 * kv_width] K/V of n tokens -> [n, 2 * kv_width].

        Tokens never mix here, so new tokens alone give the same as the whole text.
        """
        n, count, width = kv.shape
        x = ((kv.float() - self.center) * self.scale).flatten(0, 1)
        cos, sin = self.cos.repeat(n, 1), self.sin.repeat(n, 1)
        normed = self.layer.input_layernorm(x)
        q = self.layer.query(normed, cos, sin).unflatten(0, (n, count))
        k, v = (part.unflatten(0, (n, count)) for part in self.layer.key_value(normed, cos, sin))
        x = self.layer.finish(x, _attend_layers(q, k, v).flatten(2).flatten(0, 1))
        return x.view(n, count, width).mean(dim=1)


def _attend_layers(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention along axis 1: q [n, layers, heads, d], k and v [n, layers, kv_heads, d] -> like q."""
    groups = q.shape[2] // k.shape[2]
    k, v = (part.repeat_interleave(groups, dim=2) for part in (k, v))
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return out.transpose(1, 2)


class MemoryProjection(nn.Module):
    """Everything the server runs per verified token: LSA, projection, direct path, key rotation."""

    def __init__(self, settings: MoaSettings):
        super().__init__()
        self.settings = settings
        self.learn_lsa = True
        """Whether gradients reach LSA; training lets them only now and then, they are its dearest part."""
        width, hidden = settings.kv_width, settings.hidden_size
        self.lsa = LayerSelfAttention(settings)
        self.to_hidden = nn.Linear(2 * width, hidden)
        self.norm = RmsNorm(hidden, settings.rms_norm_eps)
        self.k_proj = nn.Linear(hidden, width, bias=False)
        self.v_proj = nn.Linear(hidden, width, bias=False)
        if settings.direct_layer >= 0:
            self.direct_k = nn.Linear(width, width, bias=False)
            self.direct_v = nn.Linear(width, width, bias=False)

    def forward(self, lsa_kv: Tensor, direct_kv: Tensor | None, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-attention keys (rotated) and values of n tokens, each [n, kv_width].

        lsa_kv [n, num_lsa_layers, 2, kv_width] and direct_kv [n, 2, kv_width] as the target caches them
        (keys rotated at `positions` [n]).
        """
        s = self.settings
        cos, sin = rotary_angles(positions, s.head_dim, s.rope_theta)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.learn_lsa):
            mixed = self.lsa(self.plain(lsa_kv, positions))
        memory = self.norm(self.to_hidden(mixed))
        k, v = self.k_proj(memory), self.v_proj(memory)
        if direct_kv is not None:
            k = k + self.direct_k(self._turn_back(direct_kv[:, None, 0], cos, sin)[:, 0])
            v = v + self.direct_v(direct_kv[:, 1])
        return rotate(k.view(-1, s.num_kv_heads, s.head_dim), cos, sin).flatten(1), v

    def plain(self, lsa_kv: Tensor, positions: Tensor) -> Tensor:
        """What LSA reads: keys turned back, then values, [n, num_layers, 2 * kv_width]."""
        cos, sin = rotary_angles(positions, self.settings.head_dim, self.settings.rope_theta)
        return torch.cat((self._turn_back(lsa_kv[:, :, 0], cos, sin), lsa_kv[:, :, 1]), dim=-1)

    def _turn_back(self, keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Keys [n, layers, kv_width] as if every token stood at position 0."""
        heads = keys.unflatten(-1, (self.settings.num_kv_heads, self.settings.head_dim)).flatten(1, 2)
        return rotate(heads, cos, -sin).view_as(keys)
