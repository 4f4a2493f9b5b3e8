"""A tiny random bundle: the real exporter on a tiny target with random drafter weights."""

from __future__ import annotations

from pathlib import Path

from outrider.cloud.export.bundle import export_bundle
from tests.tiny import make_target
from tests.tiny_weights import make_weights


def make_bundle(folder: Path, *, num_tli_layers: int = 1, seed: int = 0, int8: bool = True) -> Path:
    """Write ``folder``/drafter.onnx (beside its target and weights) and return its path."""
    target = make_target(folder / "target", seed=seed)
    weights = folder / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    make_weights(weights, target, seed=seed, num_tli_layers=num_tli_layers)
    path = folder / "drafter.onnx"
    export_bundle(weights, target, path, int8=int8)
    return path
