"""The MoA device half as an ONNX graph: SA, CA, target layers and the reduced head."""

from __future__ import annotations

import onnx

from outrider.cloud.export.blocks import GraphParts, array
from outrider.cloud.kinds.base import FrozenTarget
from outrider.cloud.kinds.layers import decoder_layer
from outrider.cloud.moa.drafter import MoaDrafter
from outrider.cloud.moa.server_half import row_planes


def build_graph(
    drafter: MoaDrafter, frozen: FrozenTarget, max_position: int, metadata: dict[str, str], *, int8: bool
) -> onnx.ModelProto:
    """The whole device graph; inputs and outputs are described in docs/training.md, "The bundle"."""
    s = drafter.settings
    g = GraphParts(s, max_position, int8=int8)
    blocks = drafter.parts()
    widths = [plane.width for plane in row_planes(s)]
    g.declare(s.own_layers, s.kv_width, widths, row_mask=s.num_tli_layers > 0 or any(s.later_sa_layers))
    x = g.b.embedding("ids", "embedding", array(frozen.embedding.weight))
    own = 0
    for number, block in enumerate(blocks):
        for index, layer in enumerate(block.layers()):
            name = f"block{number}.sa.{index}"
            before = [g.null_segment(name, *block.null(index))] if number else []
            x = g.own_layer(x, name, layer, own, "tli_mask" if number else "own_mask", before)
            own += 1
        name, ca = f"block{number}.ca", block.ca
        rows = [g.null_segment(name, ca.null_k, ca.null_v), g.row_segment(number)]
        x = g.cross_layer(x, name, ca.layer, rows)
    for number, layer in enumerate(map(decoder_layer, frozen.layers)):
        rows = [g.row_segment(len(blocks) + number)]
        x = g.own_layer(x, f"tli.{number}", layer, own + number, "tli_mask", rows)
    chosen = g.b.node("Gather", x, "select", axis=0)
    g.head(chosen, frozen.head.weight, frozen.norm if s.num_tli_layers else None)
    return g.b.model("moa", metadata)
