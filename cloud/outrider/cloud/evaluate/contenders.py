"""What takes part in an evaluation: a device's drafter with what the verifier would send it.

The one place of the verifier's side that runs the device's code, and only to measure it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.client.bundle import Bundle, load_bundle
from outrider.client.drafter import Drafter
from outrider.client.drafters.hybrid import HybridDrafter
from outrider.client.drafters.ngram import NgramDrafter
from outrider.client.onnxfile import metadata
from outrider.cloud.evaluate.texts import TargetText
from outrider.cloud.export.cached import cached_bundle
from outrider.cloud.kinds.registry import find_kind
from outrider.cloud.kinds.server import KeyValue, ServerHalf
from outrider.cloud.kinds.settings import SETTINGS_FILE
from outrider.cloud.kinds.weights import load_drafter
from outrider.cloud.target import Target
from outrider.shared.codec import decode_rows, encode_rows, row_bytes
from outrider.shared.errors import BundleError, ConfigError
from outrider.shared.frames import RowEncoding, RowPlane

NGRAM = "ngram"
HYBRID = "hybrid:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One drafter to be measured."""

    name: str
    kind: str
    make: Callable[[], Drafter]
    """A fresh drafter."""
    planes: tuple[RowPlane, ...] = ()
    half: ServerHalf | None = None
    """Makes its state rows; None for drafters without."""
    digest: str = ""
    """SHA-256 of the bundle, hex; empty without one."""
    bundle: Path | None = None
    weights: Path | None = None
    parameters: int = 0
    """Trained parameters, both halves."""

    @property
    def nested(self) -> bool:
        """Whether a shorter chain of this drafter is the beginning of a longer one."""
        return self.kind != "hybrid"

    @property
    def row_bytes(self) -> int:
        """Bytes of state rows per token on the wire, int8."""
        return sum(row_bytes(plane) for plane in self.planes)

    @torch.no_grad()
    def rows(self, text: TargetText) -> list[NDArray[np.float32]]:
        """State rows of the stated positions as a device decodes them, per plane [stated, width]."""
        half = self.half
        if half is None or not self.planes:
            return []
        count = text.stated
        kv = {layer: text.kv(layer) for layer in half.needed_layers}
        return self.decoded(kv, text.final[:count] if half.needs_final else None, 0, count)

    def decoded(
        self, kv: Mapping[int, KeyValue], final: Tensor | None, start: int, stop: int
    ) -> list[NDArray[np.float32]]:
        """State rows of positions start … stop-1 as a device decodes them, per plane [stop-start, width]; [] without.

        ``kv`` and ``final`` are what the target computed there: keys and values of the layers that the half needs, and
        the final states if it needs those.
        """
        if self.half is None:
            return []
        made = self.half.rows(kv, final, torch.arange(start, stop))
        return [
            decode_rows(encode_rows(values.float().numpy(), plane), stop - start, plane)
            for values, plane in zip(made, self.planes, strict=True)
        ]


def open_contender(spec: str, target: Target) -> Contender:
    """The drafter that ``NAME=WHAT`` describes.

    WHAT is ``ngram``, a weights folder (its int8 bundle is exported into the cache), ``FILE.onnx`` beside its weights,
    ``FILE.onnx@WEIGHTS``, or ``hybrid:`` and one of those. Raises ConfigError ("--bundle") for anything else, and where
    bundle, weights and target do not belong together.
    """
    name, equals, what = spec.partition("=")
    if not equals or not name or not what:
        raise _wrong(f"{spec!r}: expected NAME=WHAT")
    if what == NGRAM:
        return Contender(name=name, kind=NGRAM, make=NgramDrafter)
    path, weights = _paths(what.removeprefix(HYBRID), target)
    try:
        found = load_bundle(path)
        model = load_drafter(weights)
        half: ServerHalf = find_kind(model.settings.kind).server_half(model)
    except (OSError, ValueError, KeyError, BundleError) as error:
        raise _wrong(f"{name}: {error}") from error
    _check(name, found, path, half, target)
    planes = tuple(RowPlane(p.plane, p.width, RowEncoding.INT8, p.content, p.parts) for p in half.planes)
    hybrid = what.startswith(HYBRID)
    return Contender(
        name=name,
        kind="hybrid" if hybrid else model.settings.kind,
        make=(lambda: HybridDrafter(found.drafter())) if hybrid else found.drafter,
        planes=planes,
        half=half,
        digest=found.sha256.hex(),
        bundle=path,
        weights=weights,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def _paths(what: str, target: Target) -> tuple[Path, Path]:
    """(bundle, weights folder)."""
    first, at, second = what.partition("@")
    if Path(first).is_dir():
        return exported(Path(first), target), Path(first)
    weights = Path(second) if at else Path(first).parent
    if not (weights / SETTINGS_FILE).is_file():
        raise _wrong(f"{what}: no {SETTINGS_FILE} in {weights}; state rows need the weights of the bundle")
    return Path(first), weights


def exported(weights: Path, target: Target, *, int8: bool = True) -> Path:
    """The bundle of a weights folder, from the cache or exported into it. Raises ConfigError if there are none."""
    try:
        return cached_bundle(weights, target, int8=int8)
    except OSError as error:
        raise _wrong(f"{weights}: {error.strerror}: {error.filename}") from error
    except ValueError as error:
        raise _wrong(f"{weights}: {error}") from error


def _check(name: str, bundle: Bundle, path: Path, half: ServerHalf, target: Target) -> None:
    if bundle.weights != target.weights:
        raise _wrong(f"{name}: {path} was made for another target")
    state = metadata(path.read_bytes()).get("outrider.state")
    if state != half.fingerprint():
        raise _wrong(f"{name}: {path} was made from other drafter weights")


def _wrong(why: str) -> ConfigError:
    return ConfigError("--bundle", why, remedy="docs/evaluation.md says what may stand here")
