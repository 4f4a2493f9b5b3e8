"""The MoA device half as an ONNX graph: SA, CA, target layers and the reduced head."""

from __future__ import annotations

import onnx

from outrider.cloud.export.blocks import GraphParts, array
from outrider.cloud.moa.drafter import FrozenTarget, MoaDrafter
from outrider.cloud.moa.layers import decoder_layer
from outrider.cloud.moa.server_half import row_planes


def build_graph(
    drafter: MoaDrafter, frozen: FrozenTarget, max_position: int, metadata: dict[str, str], *, int8: bool
) -> onnx.ModelProto:
    """The whole device graph; inputs and outputs are described in docs/training.md, "The bundle"."""
    s = drafter.settings
    g = GraphParts(s, max_position, int8=int8)
    widths = [plane.width for plane in row_planes(s)]
    g.declare(s.own_layers, s.kv_width, widths, tli=bool(s.num_tli_layers))
    x = g.b.embedding("ids", "embedding", array(frozen.embedding.weight))
    for number, layer in enumerate(drafter.sa):
        x = g.own_layer(x, f"sa.{number}", decoder_layer(layer), number)
    ca = drafter.ca
    x = g.cross_layer(x, "ca", ca.layer, [g.null_segment("ca", ca.null_k, ca.null_v), g.row_segment(0)])
    for number, layer in enumerate(frozen.layers):
        index, rows = s.num_sa_layers + number, [g.row_segment(1 + number)]
        x = g.own_layer(x, f"tli.{number}", decoder_layer(layer), index, "tli_mask", rows)
    chosen = g.b.node("Gather", x, "select", axis=0)
    g.head(chosen, frozen.head.weight, frozen.norm if s.num_tli_layers else None)
    return g.b.model("moa", metadata)
