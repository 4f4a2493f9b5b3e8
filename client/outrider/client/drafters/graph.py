"""The drafter's ONNX graph behind one typed call. Inputs and outputs are fixed by the bundle format.

All arrays are C-contiguous; past keys, values and rows are slices of the caller's buffers and are read in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Layout:
    """What the drafter must know of its graph."""

    own_layers: int
    """Layers with keys and values of the device's own (self-attention and target layers)."""
    own_width: int
    tli_layers: int
    """Of the own layers, the target layers whose verified positions come as rows."""
    row_widths: tuple[int, ...]
    """Values per row, by plane."""
    vocabulary: Ints
    """Target id of each draft vocabulary entry."""
    kappa: float
    max_position: int


@dataclass(frozen=True, slots=True)
class Step:
    """One run's inputs: n tokens after t cached ones, c row positions."""

    ids: Ints  # [n]
    positions: Ints  # [n]
    own_mask: Mask  # [n, t+n]
    tli_mask: Mask  # [n, t+n]
    own_keys: Sequence[Array]  # own_layers x [t, own_width]
    own_values: Sequence[Array]
    rows: Sequence[Array]  # planes x [c, width]
    row_valid: Mask  # [c]
    select: Ints  # [m]
    noise: Array  # [V_d]
    inv_temperature: float
    children: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One run's outputs."""

    log_probs: NDArray[np.float64]  # [m, k], calibrated
    token_ids: Ints  # [m, k], target ids, best first
    keys: Sequence[Array]  # own_layers x [n, own_width]
    values: Sequence[Array]


class Graph(Protocol):
    """Anything that computes a Step."""

    layout: Layout

    def run(self, step: Step) -> Answer:
        """Compute one step."""
        ...


class OnnxGraph:
    """The bundle's graph on onnxruntime: CPU provider, one thread, no spinning."""

    def __init__(self, model: bytes, layout: Layout) -> None:
        """Open a model in memory. Raises ValueError if it is not a graph of this layout."""
        self.layout = layout
        self._session = open_session(model)
        layers = range(self.layout.own_layers)
        self._inputs = {tensor.name for tensor in self._session.get_inputs()}
        self._outputs = ["scores", "token_ids", "logsumexp"]
        self._outputs += [f"new_k.{layer}" for layer in layers] + [f"new_v.{layer}" for layer in layers]
        self._check()
        self._inv_kappa = 1.0 / self.layout.kappa

    def _check(self) -> None:
        """Refuse a graph whose inputs or outputs are not those of the format."""
        wanted = {"ids", "positions", "own_mask", "row_valid", "select", "noise"}
        wanted |= {"inv_temperature", "inv_kappa", "k"}
        wanted |= {f"own_{kind}.{layer}" for kind in "kv" for layer in range(self.layout.own_layers)}
        wanted |= {f"rows.{plane}" for plane in range(len(self.layout.row_widths))}
        if self.layout.tli_layers:
            wanted.add("tli_mask")
        have = {tensor.name for tensor in self._session.get_outputs()}
        wrong = sorted(wanted ^ self._inputs) + sorted(set(self._outputs) - have)
        if wrong:
            raise ValueError(f"the bundle's graph differs from its metadata at: {', '.join(wrong)}")

    def run(self, step: Step) -> Answer:
        """Compute one step."""
        feeds: dict[str, Any] = {
            "ids": step.ids,
            "positions": step.positions,
            "own_mask": step.own_mask,
            "row_valid": step.row_valid,
            "select": step.select,
            "noise": step.noise,
            "inv_temperature": np.array([step.inv_temperature], np.float32),
            "inv_kappa": np.array([self._inv_kappa], np.float32),
            "k": np.array([step.children], np.int64),
        }
        if self.layout.tli_layers:
            feeds["tli_mask"] = step.tli_mask
        for layer in range(self.layout.own_layers):
            feeds[f"own_k.{layer}"] = step.own_keys[layer]
            feeds[f"own_v.{layer}"] = step.own_values[layer]
        for plane, rows in enumerate(step.rows):
            feeds[f"rows.{plane}"] = rows
        out = self._session.run(self._outputs, feeds)
        layers = self.layout.own_layers
        log_probs = out[0].astype(np.float64) * self._inv_kappa - out[2].astype(np.float64)[:, None]
        return Answer(log_probs, out[1], out[3 : 3 + layers], out[3 + layers :])


def open_session(model: bytes) -> Any:
    """An onnxruntime session of a model in memory (nothing outside it can be reached by relative path).

    Raises ValueError if onnxruntime cannot open it.
    """
    import onnxruntime as ort  # imported late: 0.2 s that streaming does not need

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        session = ort.InferenceSession(model, sess_options=options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes have no common base
        raise ValueError(f"onnxruntime cannot open the graph ({type(error).__name__})") from error
    # Kept by onnxruntime for changing to another provider, which never happens here: 60 MB of a small device's memory.
    session._model_bytes = None
    return session
