"""Bundles made of weights folders once and kept in the cache, for serving and for measuring alike."""

from __future__ import annotations

import hashlib
from pathlib import Path

from outrider.cloud.fetch import cache_dir
from outrider.cloud.kinds.settings import SETTINGS_FILE, WEIGHTS_FILE
from outrider.cloud.target import Target
from outrider.shared.tokenizer import build_artefact

_VERSION = b"5"
"""Part of a cached bundle's name; changes whenever an export would write something else."""


def cached_bundle(weights: Path, target: Target, *, int8: bool = True) -> Path:
    """The bundle of a weights folder for this target, from the cache or exported into it.

    Its name follows from everything an export reads: weights, settings, the target's weights and config, and the
    tokenizer artefact (chat template and end ids included). Raises OSError if a file is missing, ValueError if the
    drafter does not fit the target.
    """
    parts = [(weights / name).read_bytes() for name in (SETTINGS_FILE, WEIGHTS_FILE)]
    parts += [(target.folder / "config.json").read_bytes(), build_artefact(target.folder)]
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    key = hashlib.sha256(_VERSION + target.weights + bytes([int8]) + digests).hexdigest()[:32]
    path = cache_dir() / "bundles" / f"{key}.onnx"
    if not path.is_file():
        # Loads onnx, which a verifier whose bundles are all made does not need.
        from outrider.cloud.export.bundle import export_bundle

        export_bundle(weights, target.folder, path, int8=int8)
    return path
