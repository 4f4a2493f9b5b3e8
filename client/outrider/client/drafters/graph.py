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

    kind: str
    own_layers: int
    """Layers with keys and values of the device's own (self-attention and target layers)."""
    own_width: int
    tli_layers: int
    """Of the own layers, the target layers whose verified positions come as rows."""
    row_widths: tuple[int, ...]
    """Values per row, by plane; empty for a kind that reads nothing of the target."""
    vocabulary: Ints
    """Target id of each draft vocabulary entry."""
    kappa: float
    """Greedy answers: softmax(logits / kappa) is the probability that a child is the target's token."""
    max_position: int
    features: int = 0
    """Width of the feature a graph takes beside each token and returns for it; 0 = none."""
    row_mask: bool = False
    """Whether some layers read their own keys and values only where there are no rows (input ``tli_mask``)."""
    kappa_sampled: float = 0.0
    """As ``kappa``, of sampled answers at temperature 1: softmax((logits + noise) / kappa); 0 = the same."""

    def kappa_at(self, temperature: float) -> float:
        """By what to divide logits + temperature x noise, so that children's probabilities are true."""
        warm = self.kappa_sampled or self.kappa
        return self.kappa + min(max(temperature, 0.0), 1.0) * (warm - self.kappa)


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
    features: Array | None = None
    """[n, layout.features]: what stands before each new token; None for a graph that takes none."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One run's outputs."""

    log_probs: NDArray[np.float64]  # [m, k], calibrated
    token_ids: Ints  # [m, k], target ids, best first
    keys: Sequence[Array]  # own_layers x [n, own_width]
    values: Sequence[Array]
    features: Array | None = None
    """[n, layout.features]; None for a graph that returns none."""
    scores: NDArray[np.float64] | None = None
    """[m, k] as the graph gives them, beside ``token_ids``: logits, where noise is 0 and temperature 1."""


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
        layers = range(layout.own_layers)
        self._outputs = ["scores", "token_ids", "logsumexp"]
        self._outputs += [f"new_k.{layer}" for layer in layers] + [f"new_v.{layer}" for layer in layers]
        self._outputs += ["new_features"] if layout.features else []
        self._check()

    def _check(self) -> None:
        """Refuse a graph whose inputs or outputs are not those of the format."""
        layout = self.layout
        wanted: dict[str, int | None] = dict.fromkeys(
            ("ids", "positions", "own_mask", "select", "noise", "inv_temperature", "inv_kappa", "k")
        )
        wanted |= {f"own_{kind}.{n}": layout.own_width for kind in "kv" for n in range(layout.own_layers)}
        wanted |= {f"rows.{plane}": width for plane, width in enumerate(layout.row_widths)}
        if layout.row_widths:
            wanted["row_valid"] = None
        if layout.row_mask:
            wanted["tli_mask"] = None
        if layout.features:
            wanted["features"] = layout.features
        shapes = {tensor.name: tensor.shape for tensor in self._session.get_inputs()}
        have = {tensor.name for tensor in self._session.get_outputs()}
        wrong = sorted(wanted.keys() ^ shapes.keys()) + sorted(set(self._outputs) - have)
        wrong += [name for name, width in wanted.items() if width and shapes.get(name, [width])[-1] != width]
        if wrong:
            raise ValueError(f"the bundle's graph differs from its metadata at: {', '.join(wrong)}")

    def _inv_kappa(self, step: Step) -> float:
        """Scores are logits / T + noise: T / kappa of them is what the calibration speaks of. Greedy: no noise."""
        if not step.noise.any():
            return 1.0 / self.layout.kappa
        temperature = 1.0 / step.inv_temperature
        return temperature / self.layout.kappa_at(temperature)

    def run(self, step: Step) -> Answer:
        """Compute one step."""
        inv_kappa = self._inv_kappa(step)
        feeds: dict[str, Any] = {
            "ids": step.ids,
            "positions": step.positions,
            "own_mask": step.own_mask,
            "select": step.select,
            "noise": step.noise,
            "inv_temperature": np.array([step.inv_temperature], np.float32),
            "inv_kappa": np.array([inv_kappa], np.float32),
            "k": np.array([step.children], np.int64),
        }
        layers = self.layout.own_layers
        if self.layout.row_mask:
            feeds["tli_mask"] = step.tli_mask
        if self.layout.features:
            feeds["features"] = step.features
        for layer in range(layers):
            feeds[f"own_k.{layer}"] = step.own_keys[layer]
            feeds[f"own_v.{layer}"] = step.own_values[layer]
        if self.layout.row_widths:
            feeds["row_valid"] = step.row_valid
        for plane, rows in enumerate(step.rows):
            feeds[f"rows.{plane}"] = rows
        out = self._session.run(self._outputs, feeds)
        log_probs = out[0].astype(np.float64) * inv_kappa - out[2].astype(np.float64)[:, None]
        keys, values = out[3 : 3 + layers], out[3 + layers : 3 + 2 * layers]
        features = out[-1] if self.layout.features else None
        return Answer(log_probs, out[1], keys, values, features, out[0].astype(np.float64))


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
