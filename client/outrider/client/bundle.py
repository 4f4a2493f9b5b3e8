"""The drafter as the device gets it: one ONNX file with graph, weights, vocabulary and tokenizer, checked before use.

A bundle may come from the network, so nothing in it is believed: its size is bounded, it may not refer to other files,
and its metadata must be complete and agree with itself before onnxruntime sees a byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from outrider.client.drafter import Confidence, Drafter, Law
from outrider.client.drafters.eagle2 import make_eagle2
from outrider.client.drafters.graph import Layout, OnnxGraph
from outrider.client.drafters.medusa import make_medusa
from outrider.client.drafters.moa import GraphDrafter
from outrider.client.onnxfile import BrokenFile, metadata, refers_outside
from outrider.shared.errors import BundleError, ConfigError
from outrider.shared.frames import RowEncoding, RowPlane
from outrider.shared.tokenizer import Tokenizer, make_artefact

FORMAT = 2
"""Newest format; 2 differs from 1 in that planes say how wide rows are, and in the kinds there are."""
MAX_BYTES = 1 << 30
MAX_POSITION = 1 << 20
MAX_OWN, MAX_ROW = 1 << 16, 1 << 17
"""Values a token may have in the keys of all own layers together, and in the rows of all planes: a gigabyte each in
2,000 tokens, several times what a drafter of a 70 B target needs."""
PREFIX = "outrider."

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    """How a drafter of one kind is made, and what its bundle must have."""

    make: Callable[[bytes, Layout], Drafter]
    """The model's bytes and its layout -> a drafter; ValueError if they do not fit."""
    rows: bool
    """Whether it reads state rows."""
    own_layers: bool = True
    """Whether it keeps K/V of its own."""
    features: bool = False
    """Whether its graph takes features."""


def _graph_drafter(data: bytes, layout: Layout) -> Drafter:
    return GraphDrafter(OnnxGraph(data, layout))


KINDS: Mapping[str, Kind] = {
    "moa": Kind(_graph_drafter, rows=True),
    "eagle2": Kind(make_eagle2, rows=True, features=True),
    "glide": Kind(_graph_drafter, rows=True),
    "medusa": Kind(make_medusa, rows=True, own_layers=False, features=True),
    "independent": Kind(_graph_drafter, rows=False),
}
"""Kinds a bundle can be of."""


@dataclass(frozen=True, slots=True)
class _Contents:
    """The file's bytes until the first drafter was made of them; a second drafter reads the file again."""

    held: list[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A checked bundle; see `load_bundle`."""

    path: Path
    sha256: bytes
    """Of the whole file: its name towards the verifier."""
    kind: str
    tokenizer: Tokenizer
    planes: tuple[RowPlane, ...]
    """State rows the drafter reads."""
    weights: bytes
    """Fingerprint of the target's weights it was made for."""
    training_step: int
    settings: Mapping[str, Any]
    """The drafter's settings, for people."""
    layout: Layout
    confidence: Confidence
    """How often its children are right; not known of early bundles."""
    _contents: _Contents = field(repr=False)

    @property
    def max_position(self) -> int:
        """Positions the drafter can serve; longer texts go on without drafts."""
        return self.layout.max_position

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn."""
        return self.tokenizer.stop_ids

    def drafter(self) -> Drafter:
        """A drafter of its own memory, made of this bundle (0.2 s). Raises BundleError if the graph does not run."""
        held = self._contents.held
        data = held.pop() if held else self._again()
        try:
            drafter = KINDS[self.kind].make(data, self.layout)
        except ValueError as error:
            raise BundleError(f"{self.path}: {error}") from error
        drafter.confidence = self.confidence
        return drafter

    def _again(self) -> bytes:
        data = _read(self.path)
        if hashlib.sha256(data).digest() != self.sha256:
            raise BundleError(f"{self.path} has changed since it was checked")
        return data


def load_bundle(path: Path) -> Bundle:
    """Read and check a bundle.

    Raises ConfigError ("--bundle") if the file cannot be read, BundleError if it is no bundle, too large, refers to
    other files, lacks or contradicts its own metadata, or is newer than this program.
    """
    data = _read(path)
    try:
        found = metadata(data)
        if refers_outside(data):
            raise BundleError(f"{path} keeps weights in other files", remedy="a bundle is a single file")
    except BrokenFile as error:
        raise BundleError(f"{path} is not a bundle: {error}") from error
    try:
        return _bundle(path, data, _Metadata(found))
    except _Wrong as error:
        raise BundleError(f"{path} is not a bundle: {error}") from error


class _Wrong(ValueError):
    """A metadata entry that is missing or cannot be."""


class _Metadata:
    """Typed access to a bundle's metadata; every complaint names the entry."""

    def __init__(self, found: Mapping[str, str]) -> None:
        self._found = found

    def text(self, name: str) -> str:
        """An entry as it stands."""
        if PREFIX + name not in self._found:
            raise _Wrong(f"it has no entry {PREFIX}{name}")
        return self._found[PREFIX + name]

    def has(self, name: str) -> bool:
        """Whether there is such an entry."""
        return PREFIX + name in self._found

    def read(self, name: str, kind: Callable[[str], T], valid: Callable[[T], bool]) -> T:
        """An entry converted by ``kind`` and accepted by ``valid``."""
        text = self.text(name)
        try:
            value = kind(text)
            if valid(value):
                return value
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            pass
        raise _Wrong(f"{PREFIX}{name} cannot be {text[:60]!r}")


def _bundle(path: Path, data: bytes, found: _Metadata) -> Bundle:
    version = found.read("format", int, lambda value: value >= 1)
    kind = found.text("kind")
    if version > FORMAT or kind not in KINDS:
        raise BundleError(
            f"{path} is of format {version}, kind {kind!r}; this program reads formats up to {FORMAT} and the "
            f"kinds {', '.join(KINDS)}",
            remedy="update outrider",
        )
    settings = found.read("settings", json.loads, lambda value: isinstance(value, dict))
    tokenizer = _tokenizer(found)
    planes = _planes(found, KINDS[kind])
    layout = _layout(found, kind, planes)
    missing = sorted(set(tokenizer.stop_ids) - set(layout.vocabulary.tolist()))
    if missing:
        raise _Wrong(f"its draft vocabulary lacks the stop id {missing[0]}: drafting alone would never end")
    weights = found.read("weights", bytes.fromhex, lambda value: len(value) == 32)
    return Bundle(
        path=path,
        sha256=hashlib.sha256(data).digest(),
        kind=kind,
        tokenizer=tokenizer,
        planes=planes,
        weights=weights,
        training_step=found.read("training_step", int, lambda value: value >= 0),
        settings=settings,
        layout=layout,
        confidence=Confidence(_law(found, "confidence"), _law(found, "confidence_sampled")),
        _contents=_Contents([data]),
    )


def _layout(found: _Metadata, kind: str, planes: tuple[RowPlane, ...]) -> Layout:
    least = int(KINDS[kind].own_layers)
    own_layers = found.read("own_layers", int, lambda value: least <= value <= 256)
    own_width = found.read("own_width", int, lambda value: least <= value <= MAX_OWN // max(own_layers, 1))
    widths = tuple(plane.width for plane in planes)

    def is_count_of_target_layers(value: int) -> bool:
        # Their rows are the last planes: keys and values as wide as the device's own.
        fits = 0 <= value < max(1, own_layers) and value <= len(widths)
        return fits and widths[len(widths) - value :] == (2 * own_width,) * value

    tli_layers = found.read("tli_layers", int, is_count_of_target_layers)

    def optional(name: str, default: int, most: int) -> int:
        return found.read(name, int, lambda value: 0 <= value <= most) if found.has(name) else default

    return Layout(
        kind=kind,
        own_layers=own_layers,
        own_width=own_width,
        tli_layers=tli_layers,
        row_widths=widths,
        vocabulary=np.array(found.read("vocabulary", json.loads, _is_vocabulary), np.int64),
        kappa=found.read("kappa", float, lambda value: 1e-3 <= value <= 1e3),
        max_position=found.read("max_position", int, lambda value: 1 <= value <= MAX_POSITION),
        # Format 1 knows neither entry: its masks follow from the target layers.
        features=optional("features", 0, 1 << 16 if KINDS[kind].features else 0),
        row_mask=bool(optional("row_mask", int(tli_layers > 0), 1)),
        kappa_sampled=found.read("kappa_sampled", float, lambda value: value == 0 or 1e-3 <= value <= 1e3)
        if found.has("kappa_sampled")
        else 0.0,
    )


def _law(found: _Metadata, name: str) -> Law:
    """A table by depth and rank; empty in bundles of drafters that were not calibrated."""

    def valid(law: Law) -> bool:
        rows = all(1 <= len(ranks) <= 16 and all(0.0 <= chance <= 1.0 for chance in ranks) for ranks in law)
        return rows and len(law) <= 64

    def parse(text: str) -> Law:
        return tuple(tuple(float(chance) for chance in ranks) for ranks in json.loads(text))

    return found.read(name, parse, valid) if found.has(name) else ()


def _planes(found: _Metadata, kind: Kind) -> tuple[RowPlane, ...]:
    def parse(text: str) -> tuple[RowPlane, ...]:
        return tuple(
            RowPlane(
                int(plane["plane"]),
                int(plane["width"]),
                RowEncoding.INT8,
                str(plane["content"]),
                int(plane["parts"]),
            )
            for plane in json.loads(text)
        )

    def valid(planes: tuple[RowPlane, ...]) -> bool:
        return (
            bool(planes) == kind.rows
            and len(planes) <= 64
            and all(plane.plane == number for number, plane in enumerate(planes))
            and all(0 < plane.width <= 1 << 16 for plane in planes)
            and sum(plane.width for plane in planes) <= MAX_ROW
            and all(plane.parts > 0 and plane.width % plane.parts == 0 for plane in planes)
        )

    return found.read("planes", parse, valid)


def _tokenizer(found: _Metadata) -> Tokenizer:
    """From the artefact itself, or from the parts of one (early bundles)."""
    text = found.text("tokenizer")
    if not found.has("chat_template"):
        tokenizer = Tokenizer.from_artefact(text.encode())
        if tokenizer.sha256.hex() != found.text("tokenizer_sha256"):
            raise _Wrong(f"{PREFIX}tokenizer does not have the hash given for it")
        return tokenizer
    parts = found.read("tokenizer", json.loads, lambda value: isinstance(value, dict))
    stops = found.read("stop_ids", json.loads, _is_vocabulary)
    try:
        return Tokenizer.from_artefact(make_artefact(parts, found.text("chat_template"), stops, {}))
    except (KeyError, TypeError, ValueError) as error:
        raise _Wrong(f"{PREFIX}tokenizer is none") from error


def _is_vocabulary(ids: Any) -> bool:
    """Whether this is a list of distinct token ids."""
    return (
        isinstance(ids, list)
        and 1 <= len(ids) == len(set(ids))
        and all(type(token_id) is int and 0 <= token_id < 2**31 for token_id in ids)
    )


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise BundleError(f"{path} has {size} bytes; a bundle has at most {MAX_BYTES}")
        return path.read_bytes()
    except OSError as error:
        raise ConfigError("--bundle", f"cannot read {path}: {error.strerror}") from error
