"""Drafters as the verifier serves them: state rows made here, and the bundles with the devices' halves.

Rows are made by the server half of the drafter a session uses, and only while it uses it; what all drafters served have
in common is the target's KV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from outrider.cloud.bundles import BundleStore
from outrider.cloud.engine import Engine
from outrider.cloud.events import MakeRows
from outrider.cloud.export.cached import cached_bundle
from outrider.cloud.kinds.registry import find_kind
from outrider.cloud.kinds.server import ServerHalf
from outrider.cloud.kinds.settings import DrafterSettings, target_shape
from outrider.cloud.kinds.weights import load_drafter
from outrider.cloud.rows_schedule import MAX_FRAME_BYTES
from outrider.cloud.runner import RowMaker
from outrider.cloud.table_state import RowSource
from outrider.cloud.target import Target
from outrider.shared.codec import encode_rows
from outrider.shared.errors import ConfigError
from outrider.shared.frames import BundleInfo, RowEncoding, RowPlane

MAX_ROW_WIDTH = MAX_FRAME_BYTES // 4
"""Values of one row of a plane, at most: a float32 row must fit a frame."""
MAX_PLANES = 16
"""Planes of one drafter, at most."""


@dataclass(frozen=True, slots=True)
class ServedDrafter:
    """One drafter that sessions can use."""

    info: BundleInfo
    """What Describe says of it; ``info.planes`` is empty for a kind that reads nothing of the target."""
    rows: StateRows
    needs_final: bool

    @property
    def source(self) -> RowSource:
        """What the session table has to know."""
        return RowSource(self.info.sha256, self.info.planes, self.needs_final)


class StateRows:
    """Makes a session's state rows from its KV and final hidden states. Called on the engine's thread."""

    def __init__(self, engine: Engine, half: ServerHalf, planes: tuple[RowPlane, ...]) -> None:
        self._engine = engine
        self._half = half
        self._planes = planes

    def make(self, work: MakeRows) -> tuple[bytes, ...]:
        """Encoded rows, one bytes object per plane; empty when the engine does not hold what they are made of."""
        layers = self._half.needed_layers
        states = self._engine.states(work.key, layers, work.start, work.stop)
        final = self._engine.final(work.key, work.start, work.stop) if self._half.needs_final else None
        if states is None or (final is None and self._half.needs_final):
            return ()
        kv = {layer: (states[index, 0], states[index, 1]) for index, layer in enumerate(layers)}
        rows = self._half.rows(kv, final, torch.arange(work.start, work.stop))
        return tuple(
            encode_rows(values.numpy(), replace(plane, encoding=work.encoding))
            for values, plane in zip(rows, self._planes, strict=True)
        )


class RowsByBundle:
    """Makes every session's rows by the drafter whose bundle it uses. Called on the engine's thread."""

    def __init__(self, makers: Mapping[bytes, RowMaker]) -> None:
        self._makers = dict(makers)

    def make(self, work: MakeRows) -> tuple[bytes, ...]:
        """Encoded rows, one bytes object per plane; empty for a bundle that is not served."""
        maker = self._makers.get(work.bundle)
        return maker.make(work) if maker is not None else ()


def open_drafters(
    folders: Sequence[Path], bundle: Path | None, engine: Engine, store: BundleStore
) -> tuple[ServedDrafter, ...]:
    """Load the verifier's halves of weights folders and put their bundles into ``store``; the first is recommended.

    ``bundle`` is served for the drafter it was made from; all other bundles are exported into the cache, once. Raises
    ConfigError for weights that do not fit the target, or a bundle that was made from none of them.
    """
    target = engine.target
    halves = [load_half(folder, target) for folder in folders]
    given = None if bundle is None else _drafter_of(bundle, halves, target)
    served: dict[bytes, ServedDrafter] = {}
    for index, (folder, half) in enumerate(zip(folders, halves, strict=True)):
        path = bundle if bundle is not None and index == given else _exported(folder, target)
        drafter = serve_half(half, path, engine, store)
        if drafter.info.sha256 in served:
            raise ConfigError("--drafter", f"{folder} holds the same drafter as another folder")
        served[drafter.info.sha256] = drafter
    return tuple(served.values())


def load_half(weights: Path, target: Target) -> ServerHalf:
    """The verifier's half of a weights folder. Raises ConfigError if it was not made for this target, or is broken."""
    try:
        drafter = load_drafter(weights)
        if problem := _misfit(drafter.settings, target):
            raise ValueError(problem)
        half: ServerHalf = find_kind(drafter.settings.kind).server_half(drafter)
        check_planes(half)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError("--drafter", f"{weights}: {error}", remedy="or say --drafter none") from error
    return half


def serve_half(half: ServerHalf, bundle: Path, engine: Engine, store: BundleStore) -> ServedDrafter:
    """A drafter whose rows ``half`` makes from ``engine``'s states, and whose devices fetch ``bundle``."""
    file = store.add_path(bundle)
    planes = tuple(
        RowPlane(plane.plane, plane.width, RowEncoding.INT8, plane.content, plane.parts)
        for plane in half.planes
    )
    settings = half.settings
    info = BundleInfo(
        file.sha256,
        file.size_bytes,
        settings.kind,
        len(settings.draft_vocabulary),
        settings.training_step,
        planes,
    )
    return ServedDrafter(info, StateRows(engine, half, planes), half.needs_final and bool(planes))


def _misfit(settings: DrafterSettings, target: Target) -> str:
    """What of the drafter's target is not as it is here; empty if nothing."""
    for name, here in target_shape(target.model.config).items():
        theirs = getattr(settings, name)
        if theirs != here:
            return f"the drafter is for a target with {name} {theirs}, here it is {here}"
    return ""


def check_planes(half: ServerHalf) -> None:
    """Raises ValueError for rows that do not fit the wire."""
    widest = max((plane.width for plane in half.planes), default=0)
    if widest > MAX_ROW_WIDTH or len(half.planes) > MAX_PLANES:
        raise ValueError(
            f"its rows are {len(half.planes)} planes of up to {widest} values, the wire takes {MAX_PLANES} of "
            f"{MAX_ROW_WIDTH}"
        )


def _exported(weights: Path, target: Target) -> Path:
    try:
        return cached_bundle(weights, target)
    except ValueError as error:
        raise ConfigError("--drafter", f"{weights}: {error}") from error


def _drafter_of(bundle: Path, halves: Sequence[ServerHalf], target: Target) -> int:
    """Which drafter a bundle file belongs to: rows of another would mislead every device that fetched it."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(str(bundle), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes of its own without a common base
        raise ConfigError("--bundle", f"{bundle} is not a bundle ({type(error).__name__})") from error
    found = session.get_modelmeta().custom_metadata_map
    # Halves without weights have the same state in every drafter: the settings tell those apart.
    fitting = [
        (found.get("outrider.settings") != half.settings.to_json(), index)
        for index, half in enumerate(halves)
        if (found.get("outrider.kind"), found.get("outrider.state"))
        == (half.settings.kind, half.fingerprint())
    ]
    for which, fits in (
        ("target", found.get("outrider.weights") == target.weights.hex()),
        ("drafter", bool(fitting)),
    ):
        if not fits:
            raise ConfigError(
                "--bundle",
                f"{bundle} was made from other {which} weights",
                remedy="leave --bundle out to have one exported",
            )
    return min(fitting)[1]
