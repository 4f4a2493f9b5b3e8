"""The Medusa device half as an ONNX graph: all heads on one state, and the reduced head."""

from __future__ import annotations

import numpy as np
import onnx
from torch import nn

from outrider.cloud.export.blocks import GraphParts, array
from outrider.cloud.kinds.base import FrozenTarget
from outrider.cloud.medusa.drafter import MedusaDrafter, ResidualBlock


def build_graph(
    drafter: MedusaDrafter, frozen: FrozenTarget, max_position: int, metadata: dict[str, str], *, int8: bool
) -> onnx.ModelProto:
    """The whole device graph.

    Inputs: `feature` [1, hidden], `noise` [heads, V_d] (one position each), inv_temperature, inv_kappa, k.
    Outputs as docs/training.md, "The bundle", with one row of scores per head. No positions, no K/V.
    """
    s = drafter.settings
    g = GraphParts(s, max_position, int8=int8)
    b = g.b
    b.input("feature", np.float32, [1, s.hidden_size])
    b.input("noise", np.float32, [s.num_medusa_heads, len(s.draft_vocabulary)])
    b.input("inv_temperature", np.float32, [1])
    b.input("inv_kappa", np.float32, [1])
    b.input("k", np.int64, [1])
    ends = [_chain(g, f"heads.{number}", head) for number, head in enumerate(drafter.heads)]
    g.head(b.node("Concat", *ends, axis=0), frozen.head.weight)
    return b.model("medusa", metadata)


def _chain(g: GraphParts, name: str, head: nn.Module) -> str:
    """Residual blocks of one head."""
    b, x = g.b, "feature"
    for number, block in enumerate(head.children()):
        if not isinstance(block, ResidualBlock):
            raise TypeError(f"expected a ResidualBlock, got {type(block).__name__}")
        inner = b.linear(x, f"{name}.{number}", array(block.linear.weight))
        inner = b.node("Add", inner, b.constant(f"{name}.{number}.bias", array(block.linear.bias)))
        x = b.node("Add", x, b.node("Mul", inner, b.node("Sigmoid", inner)))
    return x
