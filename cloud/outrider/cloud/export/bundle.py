"""Join drafter weights, the target's frozen parts and the tokenizer into the one file a device needs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from outrider.cloud.moa.graph import build_graph
from outrider.cloud.export.vocabulary import required_ids
from outrider.cloud.fingerprint import weights_fingerprint
from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.moa.init import TargetWeights, frozen_target
from outrider.cloud.moa.server_half import ServerHalf, row_planes
from outrider.cloud.moa.weights import load_drafter
from outrider.shared.tokenizer import build_artefact

FORMAT = "1"
_MAX_POSITION = 8192
"""Longest rotary table in a bundle; 2 MB. Longer contexts draft without the model."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export made."""

    path: Path
    size_bytes: int
    sha256: str
    """Of the file: the bundle's fingerprint."""
    vocabulary_size: int
    training_step: int


def export_bundle(weights_dir: Path, target_dir: Path, out: Path, *, int8: bool = True) -> ExportReport:
    """Write the bundle of a weights folder for a target folder.

    Raises ValueError if the draft vocabulary lacks an id a device cannot do without, and FileNotFoundError
    if either folder is incomplete.
    """
    drafter = load_drafter(weights_dir)
    settings = drafter.settings
    tokenizer = json.loads((target_dir / "tokenizer.json").read_text(encoding="utf-8"))
    stops = stop_ids(target_dir)
    if lacking := sorted(required_ids(tokenizer, stops) - set(settings.draft_vocabulary)):
        raise ValueError(f"the draft vocabulary lacks {len(lacking)} required ids, the first is {lacking[0]}")
    frozen = drafter.merge(frozen_target(settings, TargetWeights(target_dir), settings.draft_vocabulary))
    config = json.loads((target_dir / "config.json").read_text(encoding="utf-8"))
    max_position = min(_MAX_POSITION, int(config["max_position_embeddings"]))
    metadata = _metadata(settings, drafter_state(weights_dir, config), target_dir, max_position)
    model = build_graph(drafter, frozen, max_position, metadata, int8=int8)
    onnx.checker.check_model(model)
    out.parent.mkdir(parents=True, exist_ok=True)
    content = model.SerializeToString()
    partial = out.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(out)
    digest = hashlib.sha256(content).hexdigest()
    return ExportReport(out, len(content), digest, len(settings.draft_vocabulary), settings.training_step)


def stop_ids(target_dir: Path) -> tuple[int, ...]:
    """Ids that end a turn, from the generation config, else from the config."""
    for name in ("generation_config.json", "config.json"):
        path = target_dir / name
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            if found is not None:
                return tuple(found) if isinstance(found, list) else (int(found),)
    raise ValueError(f"{target_dir} names no end-of-text id")


def drafter_state(weights_dir: Path, config: dict[str, Any]) -> str:
    """Hash of the server half and row layout; rows of another state are not for this bundle."""
    shapes = type("Shapes", (), config)
    return ServerHalf.load(weights_dir, shapes).fingerprint()


def _metadata(settings: MoaSettings, state: str, target_dir: Path, max_position: int) -> dict[str, str]:
    artefact = build_artefact(target_dir)
    values = {
        "format": FORMAT,
        "kind": "moa",
        "settings": settings.to_json(),
        "planes": json.dumps([asdict(plane) for plane in row_planes(settings)]),
        "own_layers": str(settings.own_layers),
        "own_width": str(settings.kv_width),
        "tli_layers": str(settings.num_tli_layers),
        "vocabulary": json.dumps(list(settings.draft_vocabulary)),
        "weights": weights_fingerprint(target_dir).hex(),
        "tokenizer_sha256": hashlib.sha256(artefact).hexdigest(),
        "tokenizer": artefact.decode(),
        "stop_ids": json.dumps(json.loads(artefact)["stop_ids"]),
        "training_step": str(settings.training_step),
        "kappa": repr(settings.kappa),
        "max_position": str(max_position),
        "state": state,
    }
    return {f"outrider.{name}": value for name, value in values.items()}
