"""The device half as an ONNX graph: SA, CA, frozen target layers and the reduced head.

Attention without copying K/V: buffers stay position-major [t, w] (w = all K/V heads side by side). A query
head is spread to width w with zeros outside its own K/V head, so scores of all heads of a segment are one
matrix product with the buffer as it lies, and so is the weighted sum of values. The extra multiplications by
zero cost less than transposing and joining the buffers would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from outrider.cloud.export.builder import GraphBuilder
from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.moa.drafter import FrozenTarget, MoaDrafter
from outrider.cloud.moa.layers import DecoderLayer, decoder_layer, rotary_angles

_HIDDEN_SCORE = -1e30
"""Added to scores of masked keys; finite, so that a fully masked segment next to a visible one stays exact."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """Keys and values [count, width] next to each other in one softmax, and what to add to their scores."""

    keys: str
    values: str
    bias: str
    """[n, 1, count] or broadcastable."""


def build_graph(
    drafter: MoaDrafter, frozen: FrozenTarget, max_position: int, metadata: dict[str, str], *, int8: bool
) -> onnx.ModelProto:
    """The whole device graph; inputs and outputs are described in docs/training.md, "The bundle"."""
    return _DeviceGraph(drafter, frozen, max_position, int8).build(metadata)


class _DeviceGraph:
    def __init__(self, drafter: MoaDrafter, frozen: FrozenTarget, max_position: int, int8: bool):
        self.s, self.drafter, self.frozen = drafter.settings, drafter, frozen
        self.b = GraphBuilder(int8)
        self.max_position = max_position

    def build(self, metadata: dict[str, str]) -> onnx.ModelProto:
        s, b = self.s, self.b
        self._declare()
        x = b.embedding("ids", "embedding", _array(self.frozen.embedding.weight))
        for number, layer in enumerate(self.drafter.sa):
            x = self._own_layer(x, f"sa.{number}", decoder_layer(layer), number, [])
        x = self._cross_attention(x)
        for number, layer in enumerate(self.frozen.layers):
            x = self._own_layer(
                x, f"tli.{number}", decoder_layer(layer), s.num_sa_layers + number, [self._rows[number]]
            )
        self._head(b.node("Gather", x, "select", axis=0))
        return b.model("moa", metadata)

    def _declare(self) -> None:
        """Inputs, and what all layers share: rotary tables, masks as biases, segment sizes."""
        s, b, w = self.s, self.b, self.s.kv_width
        b.input("ids", np.int64, ["n"])
        b.input("positions", np.int64, ["n"])
        b.input("own_mask", np.bool_, ["n", "t+n"])
        if s.num_tli_layers:
            b.input("tli_mask", np.bool_, ["n", "t+n"])
        for part in ("own_k", "own_v"):
            for layer in range(s.own_layers):
                b.input(f"{part}.{layer}", np.float32, ["t", w])
        for plane in range(1 + s.num_tli_layers):
            b.input(f"rows.{plane}", np.float32, ["c", 2 * w])
        b.input("row_valid", np.bool_, ["c"])
        b.input("select", np.int64, ["m"])
        b.input("noise", np.float32, [len(s.draft_vocabulary)])
        b.input("inv_temperature", np.float32, [1])
        b.input("inv_kappa", np.float32, [1])
        b.input("k", np.int64, [1])
        self._rotary_tables()
        self._row_bias = self._bias("row_valid")
        own = self._own_bias("own_mask")
        self._own_biases = [own] * s.num_sa_layers
        if s.num_tli_layers:
            self._own_biases += [self._own_bias("tli_mask")] * s.num_tli_layers
        self._rows = [self._row_segment(plane) for plane in range(1 + s.num_tli_layers)]
        self._ca_rows, self._rows = self._rows[0], self._rows[1:]

    def _rotary_tables(self) -> None:
        cos, sin = rotary_angles(torch.arange(self.max_position), self.s.head_dim, self.s.rope_theta)
        half = self.s.head_dim // 2
        self._cos = self.b.constant("cos", _array(cos[:, :half]))
        self._sin = self.b.constant("sin", _array(sin[:, :half]))
        self._positions = self.b.node("Unsqueeze", "positions", self.b.ints(0))

    def _bias(self, mask: str) -> str:
        zero = self.b.constant("bias_seen", np.zeros((), dtype=np.float32))
        hidden = self.b.constant("bias_hidden", np.full((), _HIDDEN_SCORE, dtype=np.float32))
        return str(self.b.node("Where", mask, zero, hidden))

    def _own_bias(self, mask: str) -> str:
        """[n, 1, t + n]: cached slots, then the new tokens; they share one bias, see `_attend`."""
        return str(self.b.node("Unsqueeze", self._bias(mask), self.b.ints(1)))

    def _row_segment(self, plane: int) -> _Segment:
        keys, values = self.b.node("Split", f"rows.{plane}", axis=1, num_outputs=2, outputs=2)
        return _Segment(keys, values, self._row_bias)

    def _own_layer(self, x: str, name: str, layer: DecoderLayer, index: int, before: list[_Segment]) -> str:
        """SA or target layer: rows (if any), cached own slots, then the new tokens themselves."""
        s, b, w = self.s, self.b, self.s.kv_width
        weight = np.concatenate([_array(p.weight) for p in (layer.q_proj, layer.k_proj, layer.v_proj)])
        normed = b.rms_norm(x, f"{name}.norm", _array(layer.input_layernorm.weight), s.rms_norm_eps)
        query_width = s.num_heads * s.head_dim
        mixed = b.linear(normed, f"{name}.qkv", weight)
        turning, v = b.node("Split", mixed, b.ints(query_width + w, w), axis=1, outputs=2)
        turned = self._rotate(turning, s.num_heads + s.num_kv_heads)
        q, k = b.node("Split", turned, b.ints(query_width, w), axis=1, outputs=2)
        b.output(f"new_k.{index}", np.float32, ["n", w], k)
        b.output(f"new_v.{index}", np.float32, ["n", w], v)
        own = [_Segment(f"own_k.{index}", f"own_v.{index}", ""), _Segment(k, v, "")]
        attended = self._attend(q, [*before, *own], self._own_biases[index])
        return self._finish(x, attended, name, layer)

    def _cross_attention(self, x: str) -> str:
        s, b, ca = self.s, self.b, self.drafter.ca
        layer: DecoderLayer = ca.layer
        normed = b.rms_norm(x, "ca.norm", _array(layer.input_layernorm.weight), s.rms_norm_eps)
        q = self._rotate(b.linear(normed, "ca.q", _array(layer.q_proj.weight)), s.num_heads)
        seen = b.constant("null_bias", np.zeros(1, dtype=np.float32))
        null = _Segment(
            b.constant("null_k", _array(ca.null_k)), b.constant("null_v", _array(ca.null_v)), seen
        )
        return self._finish(x, self._attend(q, [null, self._ca_rows], ""), "ca", layer)

    def _rotate(self, x: str, heads: int) -> str:
        b = self.b
        wide = b.node("Unsqueeze", x, b.ints(0))
        turned = b.node("RotaryEmbedding", wide, self._cos, self._sin, self._positions, num_heads=heads)
        return str(b.node("Squeeze", turned, b.ints(0)))

    def _attend(self, q: str, segments: list[_Segment], own_bias: str) -> str:
        """q [n, heads * d] over all segments' keys in one softmax -> [n, heads * d]."""
        s, b = self.s, self.b
        spread = _head_mask(s)
        wide = b.node("Reshape", q, b.ints(0, s.num_heads, 1, s.head_dim))
        wide = b.node("Mul", wide, b.constant("spread", spread * np.float32(s.head_dim**-0.5)))
        wide = b.node("Reshape", wide, b.ints(-1, s.kv_width))
        scores = [b.node("Gemm", wide, segment.keys, transB=1) for segment in segments]
        joined = b.node("Concat", *scores, axis=1)
        joined = b.node(
            "Reshape", joined, b.node("Concat", b.ints(-1, s.num_heads), self._total(segments), axis=0)
        )
        law = b.node("Softmax", b.node("Add", joined, self._joined_bias(segments, own_bias)), axis=-1)
        law = b.node("Reshape", law, b.node("Concat", b.ints(-1), self._total(segments), axis=0))
        parts = b.node("Split", law, self._sizes(segments), axis=1, outputs=len(segments))
        mixed = b.node("MatMul", parts[0], segments[0].values)
        for part, segment in zip(parts[1:], segments[1:], strict=True):
            mixed = b.node("Gemm", part, segment.values, mixed)
        mixed = b.node("Reshape", mixed, b.ints(-1, s.num_heads, s.num_kv_heads, s.head_dim))
        mixed = b.node("Mul", mixed, b.constant("gather", spread))
        mixed = b.node("ReduceSum", mixed, b.ints(2), keepdims=0)
        return str(b.node("Reshape", mixed, b.ints(-1, s.num_heads * s.head_dim)))

    def _joined_bias(self, segments: list[_Segment], own_bias: str) -> str:
        """Biases of the segments next to each other, as wide as the scores; made once per kind of layer."""
        key = tuple(segment.bias for segment in segments) + (own_bias,)
        if key not in self._made:
            b = self.b
            flat = [segment.bias for segment in segments if segment.bias]
            if not own_bias:
                self._made[key] = b.node("Concat", *flat, axis=0)
            elif not flat:
                self._made[key] = own_bias
            else:
                # Rows are the same for all queries, so their bias is repeated for n.
                shape = b.node("Concat", b.node("Shape", "ids"), b.ints(1), b.node("Shape", flat[0]), axis=0)
                self._made[key] = b.node("Concat", b.node("Expand", flat[0], shape), own_bias, axis=2)
        return self._made[key]

    def _sizes(self, segments: list[_Segment]) -> str:
        """int64 vector of the segments' counts."""
        key = ("sizes", *(_size_kind(segment) for segment in segments))
        if key not in self._made:
            b = self.b
            counts = [b.node("Shape", segment.keys, start=0, end=1) for segment in segments]
            self._made[key] = b.node("Concat", *counts, axis=0)
        return self._made[key]

    def _total(self, segments: list[_Segment]) -> str:
        key = ("total", *(_size_kind(segment) for segment in segments))
        if key not in self._made:
            self._made[key] = self.b.node("ReduceSum", self._sizes(segments), keepdims=1)
        return self._made[key]

    @property
    def _made(self) -> dict[tuple[str, ...], str]:
        return self.__dict__.setdefault("_made_values", {})

    def _finish(self, x: str, attended: str, name: str, layer: DecoderLayer) -> str:
        s, b = self.s, self.b
        x = b.node("Add", x, b.linear(attended, f"{name}.o", _array(layer.o_proj.weight)))
        normed = b.rms_norm(x, f"{name}.norm2", _array(layer.post_attention_layernorm.weight), s.rms_norm_eps)
        weight = np.concatenate((_array(layer.gate_proj.weight), _array(layer.up_proj.weight)))
        gate, up = b.node(
            "Split", b.linear(normed, f"{name}.gate_up", weight), axis=1, num_outputs=2, outputs=2
        )
        inner = b.node("Mul", b.node("Mul", gate, b.node("Sigmoid", gate)), up)
        return str(b.node("Add", x, b.linear(inner, f"{name}.down", _array(layer.down_proj.weight))))

    def _head(self, x: str) -> None:
        """Perturbed scores of the draft vocabulary: k best with target ids, and the calibrated normaliser."""
        s, b = self.s, self.b
        if s.num_tli_layers:
            x = b.rms_norm(x, "final_norm", _array(self.frozen.norm.weight), s.rms_norm_eps)
        logits = b.linear(x, "head", _array(self.frozen.head.weight))
        scores = b.node("Add", b.node("Mul", logits, "inv_temperature"), "noise")
        best, places = b.node("TopK", scores, "k", axis=-1, largest=1, sorted=1, outputs=2)
        vocabulary = b.constant("vocabulary", np.array(s.draft_vocabulary, dtype=np.int64))
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


def _size_kind(segment: _Segment) -> str:
    """Segments of one kind have one count: null row, rows, cached slots, new tokens."""
    if segment.keys.startswith("own_k"):
        return "own"
    return segment.bias or "new"


def _head_mask(settings: MoaSettings) -> NDArray[np.float32]:
    """[heads, kv_heads, 1]: 1 where a query head reads that K/V head."""
    groups = settings.num_heads // settings.num_kv_heads
    reads = np.arange(settings.num_heads)[:, None] // groups == np.arange(settings.num_kv_heads)[None, :]
    return reads.astype(np.float32)[:, :, None]


def _array(tensor: Any) -> NDArray[np.float32]:
    value: NDArray[np.float32] = tensor.detach().float().numpy()
    return value
