"""Layer self-attention and the projections of its memory to cross-attention rows (server side).

Paper: arXiv 2410.03804, section on Layer Self-Attention. Differences, each measured or argued in
docs/training.md: keys are turned back to position 0 before they are read (the server knows positions),
every input channel is standardised with statistics of the corpus, only some layers are read, and the
cross-attention rows start as the true K/V of one late target layer (the direct path).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.cloud.kinds.layers import DecoderLayer, Linear, RmsNorm, rotary_angles, rotate
from outrider.cloud.moa.config import MoaSettings


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


class LayerMean(nn.Module):
    """A learned weighted mean of the layers instead of LSA: what the attention between layers is worth."""

    def __init__(self, settings: MoaSettings):
        super().__init__()
        width, count = 2 * settings.kv_width, len(settings.lsa_layers)
        self.weights = nn.Parameter(torch.zeros(count))
        self.register_buffer("center", torch.zeros(count, width))
        self.register_buffer("scale", torch.ones(count, width))

    center: Tensor
    scale: Tensor

    def forward(self, kv: Tensor) -> Tensor:
        """[n, num_layers, 2 * kv_width] K/V of n tokens -> [n, 2 * kv_width]."""
        x = (kv.float() - self.center) * self.scale
        return torch.einsum("l,nlw->nw", self.weights.softmax(0), x)


class RowProjection(nn.Module):
    """From the memory to one block's keys and values, and that block's direct path."""

    def __init__(self, settings: MoaSettings, direct_layer: int):
        super().__init__()
        width, hidden = settings.row_width, settings.hidden_size
        if settings.has_memory:
            self.k_proj = Linear(hidden, width, bias=False)
            self.v_proj = Linear(hidden, width, bias=False)
        if direct_layer >= 0:
            self.direct_k = Linear(settings.kv_width, width, bias=False)
            self.direct_v = Linear(settings.kv_width, width, bias=False)

    def forward(self, memory: Tensor | None, direct: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        """Keys (not rotated) and values [n, row_width] of memory [n, hidden] and direct [n, kv_width] each."""
        parts: list[tuple[Tensor, Tensor]] = []
        if memory is not None:
            parts.append((self.k_proj(memory), self.v_proj(memory)))
        if direct is not None:
            parts.append((self.direct_k(direct[0]), self.direct_v(direct[1])))
        (k, v), *more = parts
        for other_k, other_v in more:
            k, v = k + other_k, v + other_v
        return k, v


class MemoryProjection(nn.Module):
    """Everything the server runs per verified token: LSA, projections, direct paths, key rotation."""

    def __init__(self, settings: MoaSettings):
        super().__init__()
        self.settings = settings
        self.learn_lsa = True
        """Whether gradients reach LSA; training lets them only now and then, they are its dearest part."""
        hidden = settings.hidden_size
        self.lsa: LayerSelfAttention | LayerMean | None = None
        if settings.memory != "none":
            self.lsa = (LayerSelfAttention if settings.memory == "lsa" else LayerMean)(settings)
            self.to_hidden = Linear(2 * settings.kv_width, hidden)
        if settings.feed_final:
            self.final_norm = RmsNorm(hidden, settings.rms_norm_eps)
            self.from_final = Linear(hidden, hidden, bias=False)
        if settings.has_memory:
            self.norm = RmsNorm(hidden, settings.rms_norm_eps)
        self.projections = nn.ModuleList(RowProjection(settings, layer) for layer in settings.direct_layers)

    def per_block(self) -> list[RowProjection]:
        """The projections, in the blocks' order."""
        return [module for module in self.projections if isinstance(module, RowProjection)]

    def forward(self, kv: Tensor, final: Tensor | None, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Per block: cross-attention keys (rotated) and values of n tokens, each [n, row_width].

        kv [n, num_needed, 2, kv_width] of `settings.needed_layers` as the target caches them (keys rotated at
        `positions` [n]); final [n, hidden], read only with `feed_final`. Tokens never mix, so new tokens alone
        give the same as the whole text.
        """
        s = self.settings
        cos, sin = rotary_angles(positions, s.head_dim, s.rope_theta)
        memory = self._memory(kv, final, positions)
        rows = []
        for projection, layer in zip(self.per_block(), s.direct_layers, strict=True):
            direct = None
            if layer >= 0:
                true = kv[:, s.needed_layers.index(layer)]
                direct = self._turn_back(true[:, None, 0], cos, sin)[:, 0], true[:, 1]
            k, v = projection(memory, direct)
            rows.append((rotate(k.view(-1, s.row_heads, s.head_dim), cos, sin).flatten(1), v))
        return rows

    def _memory(self, kv: Tensor, final: Tensor | None, positions: Tensor) -> Tensor | None:
        """[n, hidden]; None where rows are the direct paths alone."""
        s = self.settings
        parts = []
        if self.lsa is not None:
            chosen = kv[:, [s.needed_layers.index(layer) for layer in s.lsa_layers]]
            learn = self.learn_lsa or s.memory != "lsa"
            with torch.set_grad_enabled(torch.is_grad_enabled() and learn):
                mixed = self.lsa(self.plain(chosen, positions))
            parts.append(self.to_hidden(mixed))
        if s.feed_final:
            if final is None:
                raise ValueError("this drafter's rows read final hidden states, and there are none")
            parts.append(self.from_final(self.final_norm(final.float())))
        return self.norm(torch.stack(parts).sum(0)) if parts else None

    def plain(self, lsa_kv: Tensor, positions: Tensor) -> Tensor:
        """[n, layers, 2, kv_width] as LSA reads it: keys turned back, then values, [n, layers, 2 * kv_width]."""
        cos, sin = rotary_angles(positions, self.settings.head_dim, self.settings.rope_theta)
        return torch.cat((self._turn_back(lsa_kv[:, :, 0], cos, sin), lsa_kv[:, :, 1]), dim=-1)

    @torch.no_grad()
    def standardise(self, kv: Tensor, positions: Tensor) -> None:
        """Set the channel statistics from sample K/V [n, num_needed, 2, kv_width] at `positions` [n]."""
        if self.lsa is None:
            return
        s = self.settings
        plain = self.plain(kv[:, [s.needed_layers.index(layer) for layer in s.lsa_layers]].float(), positions)
        self.lsa.center.copy_(plain.mean(0))
        self.lsa.scale.copy_(1.0 / plain.std(0).clamp_min(1e-3))

    def _turn_back(self, keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Keys [n, layers, kv_width] as if every token stood at position 0."""
        heads = keys.unflatten(-1, (self.settings.num_kv_heads, self.settings.head_dim)).flatten(1, 2)
        return rotate(heads, cos, -sin).view_as(keys)
