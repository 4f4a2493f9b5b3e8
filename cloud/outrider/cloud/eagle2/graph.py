"""The EAGLE-2 device half as an ONNX graph: joining layer, decoder layers, norm and the reduced head."""

from __future__ import annotations

import numpy as np
import onnx

from outrider.cloud.eagle2.drafter import Eagle2Drafter
from outrider.cloud.export.blocks import GraphParts, array
from outrider.cloud.kinds.base import FrozenTarget
from outrider.cloud.kinds.layers import decoder_layer


def build_graph(
    drafter: Eagle2Drafter, frozen: FrozenTarget, max_position: int, metadata: dict[str, str], *, int8: bool
) -> onnx.ModelProto:
    """The whole device graph.

    As docs/training.md, "The bundle", without rows; also the input `features` [n, hidden], what stands before
    each token (a row of zeros: nothing known), and the output `new_features` [n, hidden], what is predicted
    at each token.
    """
    s = drafter.settings
    g = GraphParts(s, max_position, int8=int8)
    g.declare(s.own_layers, s.kv_width, ())
    g.b.input("features", np.float32, ["n", s.hidden_size])
    x = _join(g, drafter, g.b.embedding("ids", "embedding", array(frozen.embedding.weight)))
    for number, layer in enumerate(map(decoder_layer, drafter.layers)):
        x = g.own_layer(x, f"layers.{number}", layer, number)
    features = g.norm(x, "norm", drafter.norm)
    g.b.output("new_features", np.float32, ["n", s.hidden_size], features)
    g.head(g.b.node("Gather", features, "select", axis=0), frozen.head.weight)
    return g.b.model("eagle2", metadata)


def _join(g: GraphParts, drafter: Eagle2Drafter, embedded: str) -> str:
    """Both halves of the joining layer, in float32: a few outlying channels of a feature would cost int8 the rest."""
    b = g.b
    peak = b.node("ReduceMax", b.node("Abs", "features"), b.ints(1), keepdims=1)
    zero = b.constant("no_feature", np.zeros((), dtype=np.float32))
    before = b.node(
        "Where", b.node("Equal", peak, zero), b.constant("start", array(drafter.start)), "features"
    )
    parts = [
        b.node("MatMul", x, b.constant(name, array(matrix).T))
        for x, name, matrix in (
            (embedded, "from_token", drafter.from_token.weight * drafter.gains[0]),
            (before, "from_feature", drafter.from_feature.weight * drafter.gains[1]),
        )
    ]
    return str(b.node("Add", *parts))
