"""A drafter as the verifier serves it: state rows made here, and the bundle with the device's half."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from outrider.cloud.bundles import BundleStore, file_digest
from outrider.cloud.engine import Engine
from outrider.cloud.events import MakeRows
from outrider.cloud.fetch import cache_dir
from outrider.cloud.moa.config import SETTINGS_FILE, WEIGHTS_FILE
from outrider.cloud.moa.server_half import ServerHalf
from outrider.cloud.target import Target
from outrider.shared.codec import encode_rows
from outrider.shared.errors import ConfigError
from outrider.shared.frames import BundleInfo, RowEncoding, RowPlane

_CACHE_VERSION = b"3"
"""Part of a cached bundle's name; changes whenever an export would write something else."""


@dataclass(frozen=True, slots=True)
class ServedDrafter:
    """What `open_drafter` gives."""

    rows: MoaRows
    planes: tuple[RowPlane, ...]
    info: BundleInfo


class MoaRows:
    """Makes a session's state rows from its KV. Called on the engine's thread."""

    def __init__(self, engine: Engine, half: ServerHalf, planes: tuple[RowPlane, ...]) -> None:
        self._engine = engine
        self._half = half
        self._planes = planes

    def make(self, work: MakeRows) -> tuple[bytes, ...]:
        """Encoded rows, one bytes object per plane; empty when the KV does not hold these positions."""
        layers = self._half.lsa_layers
        states = self._engine.states(work.key, layers, work.start, work.stop)
        if states is None:
            return ()
        kv = {layer: (states[index, 0], states[index, 1]) for index, layer in enumerate(layers)}
        rows = self._half.rows(kv, torch.arange(work.start, work.stop))
        return tuple(
            encode_rows(values.numpy(), replace(plane, encoding=work.encoding))
            for values, plane in zip(rows, self._planes, strict=True)
        )


def open_drafter(weights: Path, bundle: Path | None, engine: Engine, store: BundleStore) -> ServedDrafter:
    """Load the verifier's half of ``weights`` and put its bundle into ``store``.

    Without ``bundle`` one is exported into the cache, once. Raises ConfigError for weights that do not fit the target,
    or a bundle that was not made from them.
    """
    target = engine.target
    try:
        half = ServerHalf.load(weights, target.model.config)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError("--drafter", f"{weights}: {error}", remedy="or say --drafter none") from error
    path = bundle if bundle is not None else _exported(weights, target)
    if bundle is not None:
        _check_bundle(bundle, half, target)
    served = store.add_path(path)
    planes = tuple(
        RowPlane(plane.plane, plane.width, RowEncoding.INT8, plane.content, plane.parts)
        for plane in half.planes
    )
    settings = half.settings
    info = BundleInfo(
        served.sha256,
        served.size_bytes,
        "moa",
        len(settings.draft_vocabulary),
        settings.training_step,
        planes,
    )
    return ServedDrafter(MoaRows(engine, half, planes), planes, info)


def _exported(weights: Path, target: Target) -> Path:
    """The bundle of these weights for this target, from the cache or exported into it."""
    key = hashlib.sha256(_CACHE_VERSION + target.weights)
    for name in (SETTINGS_FILE, WEIGHTS_FILE):
        key.update(file_digest(weights / name)[0])
    key.update(file_digest(target.folder / "tokenizer.json")[0])
    path = cache_dir() / "bundles" / f"{key.hexdigest()[:32]}.onnx"
    if not path.is_file():
        from outrider.cloud.export.bundle import export_bundle

        try:
            export_bundle(weights, target.folder, path)
        except ValueError as error:
            raise ConfigError("--drafter", f"{weights}: {error}") from error
    return path


def _check_bundle(bundle: Path, half: ServerHalf, target: Target) -> None:
    """Rows of other weights would mislead every device that fetched this bundle."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(str(bundle), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes of its own without a common base
        raise ConfigError("--bundle", f"{bundle} is not a bundle ({type(error).__name__})") from error
    found = session.get_modelmeta().custom_metadata_map
    for name, expected in (("state", half.fingerprint()), ("weights", target.weights.hex())):
        if found.get(f"outrider.{name}") != expected:
            raise ConfigError(
                "--bundle",
                f"{bundle} was made from other {'drafter' if name == 'state' else 'target'} weights",
                remedy="leave --bundle out to have one exported",
            )
