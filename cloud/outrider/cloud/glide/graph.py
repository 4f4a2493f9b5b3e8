"""The GLIDE device half as an ONNX graph."""

from __future__ import annotations

import onnx

from outrider.cloud.export.blocks import GraphParts, Heads, array
from outrider.cloud.glide.drafter import GlideDrafter, GlideLayer
from outrider.cloud.glide.server_half import row_planes
from outrider.cloud.kinds.base import FrozenTarget


def build_graph(
    drafter: GlideDrafter, frozen: FrozenTarget, max_position: int, metadata: dict[str, str], *, int8: bool
) -> onnx.ModelProto:
    """The whole device graph; inputs and outputs are described in docs/training.md, "The bundle"."""
    s = drafter.settings
    g = GraphParts(s, max_position, int8=int8)
    widths = [plane.width for plane in row_planes(s)]
    g.declare(s.own_layers, s.kv_width, widths, row_mask=s.block_layers > 0)
    x = g.b.embedding("ids", "embedding", array(frozen.embedding.weight))
    for number, layer in enumerate(drafter.glide_layers()):
        name = f"layer{number}"
        mask, before = "own_mask", []
        if number > s.first_cross:
            mask, before = "tli_mask", [g.null_segment(name, layer.null_k, layer.null_v)]
        attended = g.own_attention(x, name, layer.own, number, mask, before)
        x = g.b.node("Add", x, g.output(attended, name, layer.own))
        x = g.mlp(_cross_attention(g, x, name, layer), name, layer.own)
    g.head(g.b.node("Gather", x, "select", axis=0), frozen.head.weight, drafter.norm)
    return g.b.model("glide", metadata)


def _cross_attention(g: GraphParts, x: str, name: str, layer: GlideLayer) -> str:
    """Residual stream plus what is read of the rows and the null row; only queries are rotated."""
    cross = layer.cross
    if cross is None:
        return x
    heads = Heads.of(layer.own)
    q = g.query(g.norm(x, f"{name}.cross.norm", cross.norm), f"{name}.cross.q", cross.q_proj, heads)
    rows = [g.null_segment(f"{name}.cross", cross.null_k, cross.null_v), g.row_segment(0)]
    read = g.b.linear(g.attend(q, rows, heads), f"{name}.cross.o", array(cross.o_proj.weight))
    return str(g.b.node("Add", x, read))
