"""The independent drafter as an ONNX graph."""

from __future__ import annotations

import onnx

from outrider.cloud.export.blocks import GraphParts, array
from outrider.cloud.independent.drafter import IndependentDrafter
from outrider.cloud.kinds.base import FrozenTarget


def build_graph(
    drafter: IndependentDrafter,
    frozen: FrozenTarget,
    max_position: int,
    metadata: dict[str, str],
    *,
    int8: bool,
) -> onnx.ModelProto:
    """The whole device graph; inputs and outputs are described in docs/training.md, "The bundle"."""
    s = drafter.settings
    g = GraphParts(s, max_position, int8=int8)
    g.declare(s.own_layers, s.kv_width, ())
    x = g.b.embedding("ids", "embedding", array(frozen.embedding.weight))
    for number, layer in enumerate(drafter.decoder_layers()):
        x = g.own_layer(x, f"layer{number}", layer, number)
    g.head(g.b.node("Gather", x, "select", axis=0), frozen.head.weight, drafter.norm)
    return g.b.model("independent", metadata)
