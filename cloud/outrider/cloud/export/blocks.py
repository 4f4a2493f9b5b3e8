"""What the device graphs of all kinds are built of: inputs, attention over segments, decoder layers, the head.

Attention without copying K/V: buffers stay position-major [t, w] (w = all K/V heads side by side). A query
head is spread to width w with zeros outside its own K/V head, so scores of all heads of a segment are one
matrix product with the buffer as it lies, and so is the weighted sum of values. The extra multiplications by
zero cost less than transposing and joining the buffers would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.cloud.export.builder import GraphBuilder
from outrider.cloud.kinds.layers import DecoderLayer, rotary_angles
from outrider.cloud.kinds.settings import DrafterSettings

_HIDDEN_SCORE = -1e30
"""Added to scores of masked keys; finite, so that a fully masked segment next to a visible one stays exact."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Keys and values [count, width] that lie next to others in one softmax."""

    keys: str
    values: str
    size: str
    """Name of the count: segments of one name have one count (`null`, `rows`, `own`, `new`)."""
    bias: str = ""
    """What to add to the scores, [count] (the same for all queries); empty for own tokens, whose bias is
    joined: see `GraphParts.attend`."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Head counts of one attention."""

    query: int
    key_value: int
    width: int
    """Values of one head."""

    @classmethod
    def of(cls, layer: DecoderLayer) -> Heads:
        """Those of a layer."""
        return cls(layer.heads, layer.kv_heads, layer.head_dim)

    def spread(self) -> NDArray[np.float32]:
        """[query, key_value, 1]: 1 where a query head reads that K/V head."""
        groups = self.query // self.key_value
        reads = np.arange(self.query)[:, None] // groups == np.arange(self.key_value)[None, :]
        return reads.astype(np.float32)[:, :, None]


class GraphParts:
    """Larger parts on a `GraphBuilder`; what several layers share is made once."""

    def __init__(self, settings: DrafterSettings, max_position: int, *, int8: bool):
        """`max_position` is the length of the rotary tables."""
        self.s, self.b = settings, GraphBuilder(int8)
        self._max_position = max_position
        self._made: dict[tuple[str, ...], str] = {}

    # ------------------------------------------------------------------------------------------------ inputs

    def declare(
        self, own_layers: int, own_width: int, row_widths: Sequence[int], *, row_mask: bool = False
    ) -> None:
        """The inputs every kind has: tokens, masks, own K/V, rows by plane, and what the head wants.

        Kinds without rows have no `rows.p` and no `row_valid`, kinds without own layers no masks. `row_mask`
        adds `tli_mask`, the mask of layers that see own K/V only where no rows are.
        """
        b = self.b
        b.input("ids", np.int64, ["n"])
        if own_layers:
            b.input("positions", np.int64, ["n"])
            b.input("own_mask", np.bool_, ["n", "t+n"])
        if row_mask:
            b.input("tli_mask", np.bool_, ["n", "t+n"])
        for part in ("own_k", "own_v"):
            for layer in range(own_layers):
                b.input(f"{part}.{layer}", np.float32, ["t", own_width])
        for plane, width in enumerate(row_widths):
            b.input(f"rows.{plane}", np.float32, ["c", width])
        if row_widths:
            b.input("row_valid", np.bool_, ["c"])
        b.input("select", np.int64, ["m"])
        self.declare_head()

    def declare_head(self) -> None:
        """The head's inputs: noise, temperature, calibration, children."""
        b = self.b
        b.input("noise", np.float32, [len(self.s.draft_vocabulary)])
        b.input("inv_temperature", np.float32, [1])
        b.input("inv_kappa", np.float32, [1])
        b.input("k", np.int64, [1])

    def row_segment(self, plane: int) -> Segment:
        """Keys and values of a row plane whose rows are key then value."""
        key = ("rows", str(plane))
        if key not in self._made:
            parts = self.b.node("Split", f"rows.{plane}", axis=1, num_outputs=2, outputs=2)
            self._made[key], self._made[(*key, "values")] = parts
        return Segment(self._made[key], self._made[(*key, "values")], "rows", self._bias("row_valid"))

    def null_segment(self, name: str, key: Any, value: Any) -> Segment:
        """A trained key and value [1, width] that is always visible."""
        b = self.b
        seen = b.constant("null_bias", np.zeros(1, dtype=np.float32))
        keys, values = b.constant(f"{name}.null_k", array(key)), b.constant(f"{name}.null_v", array(value))
        return Segment(keys, values, "null", seen)

    def _bias(self, mask: str) -> str:
        key = ("bias", mask)
        if key not in self._made:
            zero = self.b.constant("bias_seen", np.zeros((), dtype=np.float32))
            hidden = self.b.constant("bias_hidden", np.full((), _HIDDEN_SCORE, dtype=np.float32))
            self._made[key] = str(self.b.node("Where", mask, zero, hidden))
        return self._made[key]

    def _own_bias(self, mask: str) -> str:
        """[n, 1, t + n]: cached slots, then the new tokens."""
        key = ("own_bias", mask)
        if key not in self._made:
            self._made[key] = str(self.b.node("Unsqueeze", self._bias(mask), self.b.ints(1)))
        return self._made[key]

    # ------------------------------------------------------------------------------------------------ layers

    def own_layer(
        self,
        x: str,
        name: str,
        layer: DecoderLayer,
        index: int,
        mask: str = "own_mask",
        before: Sequence[Segment] = (),
    ) -> str:
        """A decoder layer with own K/V `index`: see `own_attention`; x [n, width] -> the same."""
        return self.finish(x, self.own_attention(x, name, layer, index, mask, before), name, layer)

    def own_attention(
        self,
        x: str,
        name: str,
        layer: DecoderLayer,
        index: int,
        mask: str = "own_mask",
        before: Sequence[Segment] = (),
    ) -> str:
        """Norm and attention over segments `before`, cached slots, then the new tokens, up to the output projection.

        x [n, width] -> [n, query * width]; declares the outputs new_k.index and new_v.index.
        """
        b, heads = self.b, Heads.of(layer)
        w, query_width = heads.key_value * heads.width, heads.query * heads.width
        parts = (layer.q_proj, layer.k_proj, layer.v_proj)
        weight = np.concatenate([array(part.weight) for part in parts])
        bias = np.concatenate([array(part.bias) for part in parts]) if has_bias(layer.q_proj) else None
        normed = self.norm(x, f"{name}.norm", layer.input_layernorm)
        mixed = b.linear(normed, f"{name}.qkv", weight, bias)
        turning, v = b.node("Split", mixed, b.ints(query_width + w, w), axis=1, outputs=2)
        turned = self.rotate(turning, heads.query + heads.key_value, heads.width)
        q, k = b.node("Split", turned, b.ints(query_width, w), axis=1, outputs=2)
        b.output(f"new_k.{index}", np.float32, ["n", w], k)
        b.output(f"new_v.{index}", np.float32, ["n", w], v)
        own = [Segment(f"own_k.{index}", f"own_v.{index}", "own"), Segment(k, v, "new")]
        return self.attend(q, [*before, *own], heads, mask)

    def cross_layer(self, x: str, name: str, layer: DecoderLayer, segments: Sequence[Segment]) -> str:
        """A decoder layer whose keys and values are `segments` alone; x [n, width] -> the same."""
        heads = Heads.of(layer)
        q = self.query(self.norm(x, f"{name}.norm", layer.input_layernorm), f"{name}.q", layer.q_proj, heads)
        return self.finish(x, self.attend(q, segments, heads), name, layer)

    def query(self, normed: str, name: str, projection: Any, heads: Heads) -> str:
        """Rotated queries [n, query * width] of a normed stream."""
        bias = array(projection.bias) if has_bias(projection) else None
        turning = self.b.linear(normed, name, array(projection.weight), bias)
        return self.rotate(turning, heads.query, heads.width)

    def norm(self, x: str, name: str, norm: Any) -> str:
        """A module's root-mean-square norm over the last axis."""
        return self.b.rms_norm(x, name, array(norm.weight), self.s.rms_norm_eps)

    def finish(self, x: str, attended: str, name: str, layer: DecoderLayer) -> str:
        """Output projection and MLP, both residual."""
        return self.mlp(self.b.node("Add", x, self.output(attended, name, layer)), name, layer)

    def output(self, attended: str, name: str, layer: DecoderLayer) -> str:
        """Output projection of an attention, without the residual."""
        return self.b.linear(attended, f"{name}.o", array(layer.o_proj.weight))

    def mlp(self, x: str, name: str, layer: DecoderLayer) -> str:
        """Norm, SwiGLU and residual."""
        b = self.b
        normed = self.norm(x, f"{name}.norm2", layer.post_attention_layernorm)
        weight = np.concatenate((array(layer.gate_proj.weight), array(layer.up_proj.weight)))
        both = b.linear(normed, f"{name}.gate_up", weight)
        gate, up = b.node("Split", both, axis=1, num_outputs=2, outputs=2)
        inner = b.node("Mul", b.node("Mul", gate, b.node("Sigmoid", gate)), up)
        return str(b.node("Add", x, b.linear(inner, f"{name}.down", array(layer.down_proj.weight))))

    # --------------------------------------------------------------------------------------------- attention

    def rotate(self, x: str, heads: int, width: int) -> str:
        """Rotary embedding at `positions`: x [n, heads * width]."""
        b, key = self.b, ("rotary", str(width))
        if key not in self._made:
            cos, sin = rotary_angles(torch.arange(self._max_position), width, self.s.rope_theta)
            self._made[key] = b.constant(f"cos.{width}", array(cos[:, : width // 2]))
            b.constant(f"sin.{width}", array(sin[:, : width // 2]))
        if ("positions",) not in self._made:
            self._made[("positions",)] = b.node("Unsqueeze", "positions", b.ints(0))
        wide = b.node("Unsqueeze", x, b.ints(0))
        tables = (f"cos.{width}", f"sin.{width}", self._made[("positions",)])
        return str(b.node("Squeeze", b.node("RotaryEmbedding", wide, *tables, num_heads=heads), b.ints(0)))

    def attend(self, q: str, segments: Sequence[Segment], heads: Heads, mask: str = "") -> str:
        """q [n, query * width] over all segments' keys in one softmax -> [n, query * width].

        `mask` [n, t+n] covers the segments without a bias, which stand last; empty if there are none.
        """
        b, kv_width = self.b, heads.key_value * heads.width
        form = f"{heads.query}_{heads.key_value}_{heads.width}"
        spread = heads.spread()
        wide = b.node("Reshape", q, b.ints(0, heads.query, 1, heads.width))
        wide = b.node("Mul", wide, b.constant(f"spread_{form}", spread * np.float32(heads.width**-0.5)))
        wide = b.node("Reshape", wide, b.ints(-1, kv_width))
        scores = [b.node("Gemm", wide, segment.keys, transB=1) for segment in segments]
        joined = b.node("Concat", *scores, axis=1) if len(scores) > 1 else scores[0]
        total = self._total(segments)
        joined = b.node("Reshape", joined, b.node("Concat", b.ints(-1, heads.query), total, axis=0))
        law = b.node("Softmax", b.node("Add", joined, self._joined_bias(segments, mask)), axis=-1)
        law = b.node("Reshape", law, b.node("Concat", b.ints(-1), total, axis=0))
        parts = [law]
        if len(segments) > 1:
            parts = b.node("Split", law, self._sizes(segments), axis=1, outputs=len(segments))
        mixed = b.node("MatMul", parts[0], segments[0].values)
        for part, segment in zip(parts[1:], segments[1:], strict=True):
            mixed = b.node("Gemm", part, segment.values, mixed)
        mixed = b.node("Reshape", mixed, b.ints(-1, heads.query, heads.key_value, heads.width))
        mixed = b.node("Mul", mixed, b.constant(f"gather_{form}", spread))
        mixed = b.node("ReduceSum", mixed, b.ints(2), keepdims=0)
        return str(b.node("Reshape", mixed, b.ints(-1, heads.query * heads.width)))

    def _joined_bias(self, segments: Sequence[Segment], mask: str) -> str:
        """Biases of the segments next to each other, as wide as the scores; made once per kind of layer."""
        key = ("joined", *(segment.bias for segment in segments), mask)
        if key not in self._made:
            b = self.b
            flat = [segment.bias for segment in segments if segment.bias]
            if not mask:
                self._made[key] = b.node("Concat", *flat, axis=0) if len(flat) > 1 else flat[0]
            elif not flat:
                self._made[key] = self._own_bias(mask)
            else:
                # Rows are the same for all queries, so their bias is repeated for n.
                together = b.node("Concat", *flat, axis=0) if len(flat) > 1 else flat[0]
                shape = b.node("Concat", b.node("Shape", "ids"), b.ints(1), b.node("Shape", together), axis=0)
                wide = b.node("Expand", together, shape)
                self._made[key] = b.node("Concat", wide, self._own_bias(mask), axis=2)
        return self._made[key]

    def _sizes(self, segments: Sequence[Segment]) -> str:
        """int64 vector of the segments' counts."""
        key = ("sizes", *(segment.size for segment in segments))
        if key not in self._made:
            counts = [self.b.node("Shape", segment.keys, start=0, end=1) for segment in segments]
            self._made[key] = self.b.node("Concat", *counts, axis=0)
        return self._made[key]

    def _total(self, segments: Sequence[Segment]) -> str:
        key = ("total", *(segment.size for segment in segments))
        if key not in self._made:
            self._made[key] = self.b.node("ReduceSum", self._sizes(segments), keepdims=1)
        return self._made[key]

    # -------------------------------------------------------------------------------------------------- head

    def head(self, x: str, weight: Any, norm: Any = None) -> None:
        """Perturbed scores of the draft vocabulary: k best with target ids, and the calibrated normaliser.

        x [m, hidden] is already what pays for the head; `weight` [V_d, hidden] a parameter, `norm` a final
        norm module or None. Declares the outputs scores, token_ids and logsumexp.
        """
        b = self.b
        if norm is not None:
            x = self.norm(x, "final_norm", norm)
        logits = b.linear(x, "head", array(weight))
        scores = b.node("Add", b.node("Mul", logits, "inv_temperature"), "noise")
        best, places = b.node("TopK", scores, "k", axis=-1, largest=1, sorted=1, outputs=2)
        vocabulary = b.constant("vocabulary", np.array(self.s.draft_vocabulary, dtype=np.int64))
        total = self._log_sum_exp(b.node("Mul", scores, "inv_kappa"), b.node("Mul", best, "inv_kappa"))
        b.output("scores", np.float32, ["m", "k"], best)
        b.output("token_ids", np.int64, ["m", "k"], b.node("Gather", vocabulary, places))
        b.output("logsumexp", np.float32, ["m"], total)

    def _log_sum_exp(self, values: str, best: str) -> str:
        """Over the last axis; ``best`` begins with the largest. ReduceLogSumExp is ten times slower in onnxruntime."""
        b = self.b
        largest = b.node("Gather", best, b.ints(0), axis=1)
        total = b.node("ReduceSum", b.node("Exp", b.node("Sub", values, largest)), b.ints(-1), keepdims=1)
        return str(b.node("Squeeze", b.node("Add", b.node("Log", total), largest), b.ints(-1)))


def has_bias(linear: Any) -> bool:
    """Whether a linear layer has a bias."""
    return getattr(linear, "bias", None) is not None


def array(tensor: Any) -> NDArray[np.float32]:
    """A parameter as a float32 array."""
    value: NDArray[np.float32] = tensor.detach().float().numpy()
    return value
