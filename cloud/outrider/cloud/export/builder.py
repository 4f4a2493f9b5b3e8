"""A small builder of ONNX graphs: constants, nodes, and linear layers in float32 or dynamic int8."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 23
IR_VERSION = 11

Array = NDArray[Any]


class GraphBuilder:
    """Collects nodes and initialisers; every method returns the name of the value it made."""

    def __init__(self, int8: bool):
        """`int8` quantises linear layers and embeddings; activations are quantised at run time."""
        self.int8 = int8
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._quantised: dict[str, tuple[str, str, str]] = {}
        self._count = 0

    def input(self, name: str, kind: type, shape: list[Any]) -> str:
        """Declare a graph input; strings in `shape` are symbolic."""
        self.inputs.append(helper.make_tensor_value_info(name, _kind(kind), shape))
        return name

    def output(self, name: str, kind: type, shape: list[Any], value: str) -> None:
        """Expose `value` under `name`."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, _kind(kind), shape))

    def constant(self, name: str, value: Array) -> str:
        """An initialiser; the same name may be asked for again."""
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def ints(self, *values: int) -> str:
        """A constant int64 vector."""
        return self.constant("ints_" + "_".join(map(str, values)), np.array(values, dtype=np.int64))

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; returns its output name, or a list of names if `outputs` > 1."""
        self._count += 1
        names = [f"{op}_{self._count}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def linear(self, x: str, name: str, weight: Array, bias: Array | None = None) -> str:
        """x [n, in] times weight [out, in] transposed, plus bias [out] if there is one -> [n, out]."""
        if bias is not None:
            product = self.linear(x, name, weight)
            return str(self.node("Add", product, self.constant(f"{name}.bias", bias)))
        if not self.int8:
            return str(self.node("MatMul", x, self.constant(name, weight.T)))
        values, scale = quantise_rows(weight)
        if x not in self._quantised:
            self._quantised[x] = tuple(self.node("DynamicQuantizeLinear", x, outputs=3))
        codes, x_scale, x_zero = self._quantised[x]
        product = self.node(
            "MatMulInteger",
            codes,
            self.constant(name, values.T),
            x_zero,
            self.constant("zero_point", np.zeros((), dtype=np.int8)),
        )
        scales = self.node("Mul", x_scale, self.constant(name + ".scale", scale))
        return str(self.node("Mul", self.node("Cast", product, to=TensorProto.FLOAT), scales))

    def embedding(self, ids: str, name: str, table: Array) -> str:
        """Rows of table [vocab, width] by ids [n] -> float32 [n, width]."""
        if not self.int8:
            return str(self.node("Gather", self.constant(name, table), ids))
        values, scale = quantise_rows(table)
        codes = self.node("Gather", self.constant(name, values), ids)
        scales = self.node("Gather", self.constant(name + ".scale", scale[:, None]), ids)
        return str(self.node("Mul", self.node("Cast", codes, to=TensorProto.FLOAT), scales))

    def rms_norm(self, x: str, name: str, weight: Array, eps: float) -> str:
        """Root-mean-square norm over the last axis."""
        return str(self.node("RMSNormalization", x, self.constant(name, weight), axis=-1, epsilon=eps))

    def model(self, name: str, metadata: dict[str, str]) -> onnx.ModelProto:
        """The finished model with its metadata."""
        graph = helper.make_graph(
            self._nodes, name, self.inputs, self.outputs, list(self._constants.values())
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            producer_name="outrider",
            ir_version=IR_VERSION,
        )
        helper.set_model_props(model, metadata)
        return model


def quantise_rows(weight: Array) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Symmetric int8 per row of [out, in]: (values, scale [out]) with weight ~ values * scale[:, None]."""
    peak = np.abs(weight).max(axis=1)
    scale = np.where(peak > 0, peak / 127.0, 1.0).astype(np.float32)
    values = np.clip(np.rint(weight / scale[:, None]), -127, 127).astype(np.int8)
    return values, scale


def _kind(kind: type) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
