"""What a target is, in 32 bytes: `weights` (what a drafter is trained for) and `law` (whether the text is the same)."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from outrider.shared.noise import NOISE_VERSION
from outrider.shared.sampling import SAMPLER_ORDER

ENGINE_VERSION = 1
"""Changes whenever the engine could give other bits for the same weights, dtype and machine."""

CACHE_NAME = ".outrider-fingerprint.json"

# Names, paths and habits; everything else in a config says how the weights are used.
_NOT_ARCHITECTURE = {
    "_name_or_path",
    "_model_name_or_path",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "gradient_checkpointing",
}


def weights_fingerprint(folder: Path) -> bytes:
    """SHA-256 over the architecture and every tensor's name, stored type, shape and bytes, in order of names.

    Independent of file names, sharding and the dtype chosen at load. Half a second per 500 MB the first time; cached
    beside the weights while their sizes and times stand (a folder that cannot be written is hashed each time).
    """
    weights = sorted(folder.glob("*.safetensors"))
    stamp = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in weights]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architecture = _canonical({name: what for name, what in config.items() if name not in _NOT_ARCHITECTURE})
    stamp.append(["config", len(architecture), hashlib.sha256(architecture).hexdigest()])
    cache = folder / CACHE_NAME
    try:
        known = json.loads(cache.read_text(encoding="utf-8"))
        if known["files"] == stamp:
            return bytes.fromhex(known["weights"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no cache, or not one of ours: it is only a shortcut
    digest = _hash(architecture, weights)
    try:
        cache.write_text(json.dumps({"files": stamp, "weights": digest.hex()}), encoding="utf-8")
    except OSError:
        pass
    return digest


def law_fingerprint(weights: bytes, dtype: str) -> bytes:
    """SHA-256 of all that decides which token follows: weights, dtype, noise, order of warps, engine."""
    parts = {
        "weights": weights.hex(),
        "dtype": dtype,
        "noise": NOISE_VERSION,
        "sampler": SAMPLER_ORDER,
        "engine": ENGINE_VERSION,
    }
    return hashlib.sha256(_canonical(parts)).digest()


def _hash(architecture: bytes, files: list[Path]) -> bytes:
    digest = hashlib.sha256(architecture)
    tensors = sorted((name, path, entry) for path in files for name, entry in _header(path).items())
    for name, path, entry in tensors:
        digest.update(_canonical([name, entry["dtype"], entry["shape"]]))
        begin, end = entry["data_offsets"]
        with path.open("rb") as file:
            file.seek(entry["base"] + begin)
            left = end - begin
            while left:
                piece = file.read(min(left, 1 << 22))
                if not piece:
                    raise ValueError(f"{path.name} ends before tensor {name} does")
                digest.update(piece)
                left -= len(piece)
    return digest.digest()


def _header(path: Path) -> dict[str, dict[str, Any]]:
    """Tensors of a safetensors file: u64 length, then JSON of name -> dtype, shape, data_offsets."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {name: {**entry, "base": 8 + length} for name, entry in header.items()}


def _canonical(what: Any) -> bytes:
    return json.dumps(what, sort_keys=True, separators=(",", ":")).encode()
