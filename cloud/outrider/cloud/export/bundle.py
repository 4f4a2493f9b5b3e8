"""Join drafter weights, the target's frozen parts and the tokenizer into the one file a device needs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import onnx

from outrider.cloud.export.vocabulary import required_ids, resize_vocabulary
from outrider.cloud.fingerprint import weights_fingerprint
from outrider.cloud.kinds.registry import find_kind
from outrider.cloud.kinds.server import ServerHalf
from outrider.cloud.kinds.settings import DrafterSettings
from outrider.cloud.kinds.target import TargetWeights, frozen_target
from outrider.cloud.kinds.weights import load_drafter
from outrider.shared.tokenizer import build_artefact

FORMAT = "2"
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


def export_bundle(
    weights_dir: Path, target_dir: Path, out: Path, *, int8: bool = True, vocabulary: int | None = None
) -> ExportReport:
    """Write the bundle of a weights folder, of any kind, for a target folder.

    `vocabulary` asks for another number of draft ids than the weights were trained with; the head is the
    target's, so nothing has to be trained again. Raises ValueError if the draft vocabulary lacks an id a
    device cannot do without, and FileNotFoundError if either folder is incomplete.
    """
    drafter = load_drafter(weights_dir)
    settings = drafter.settings
    tokenizer = json.loads((target_dir / "tokenizer.json").read_text(encoding="utf-8"))
    required = required_ids(tokenizer, stop_ids(target_dir))
    if vocabulary is not None:
        ids = resize_vocabulary(settings.draft_vocabulary, required, vocabulary, settings.vocab_size)
        settings = drafter.settings = replace(settings, draft_vocabulary=ids)
    if lacking := sorted(required - set(settings.draft_vocabulary)):
        raise ValueError(f"the draft vocabulary lacks {len(lacking)} required ids, the first is {lacking[0]}")
    frozen = drafter.merge(frozen_target(settings, TargetWeights(target_dir), settings.draft_vocabulary))
    config = json.loads((target_dir / "config.json").read_text(encoding="utf-8"))
    max_position = min(_MAX_POSITION, int(config["max_position_embeddings"]))
    kind = find_kind(settings.kind)
    half = kind.server_half(drafter)
    metadata = _metadata(settings, half, target_dir, max_position)
    model = kind.build_graph(drafter, frozen, max_position, metadata, int8=int8)
    onnx.helper.set_model_props(model, metadata | _graph_facts(model))
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


def _graph_facts(model: onnx.ModelProto) -> dict[str, str]:
    """What the device must know of the graph's inputs, read off the graph itself."""
    widths = {
        value.name: value.type.tensor_type.shape.dim[-1].dim_value
        for value in model.graph.input
        if value.type.tensor_type.shape.dim
    }
    facts = {
        "own_width": widths.get("own_k.0", 0),
        "row_mask": int("tli_mask" in widths),
        "features": widths.get("features", widths.get("feature", 0)),
    }
    return {f"outrider.{name}": str(value) for name, value in facts.items()}


def _metadata(
    settings: DrafterSettings, half: ServerHalf, target_dir: Path, max_position: int
) -> dict[str, str]:
    artefact = build_artefact(target_dir)
    values = {
        "format": FORMAT,
        "kind": settings.kind,
        "settings": settings.to_json(),
        "planes": json.dumps([asdict(plane) for plane in half.planes]),
        "own_layers": str(settings.own_layers),
        "tli_layers": str(len(settings.tli_layers)),
        "vocabulary": json.dumps(list(settings.draft_vocabulary)),
        "weights": weights_fingerprint(target_dir).hex(),
        "tokenizer_sha256": hashlib.sha256(artefact).hexdigest(),
        "tokenizer": artefact.decode(),
        "stop_ids": json.dumps(json.loads(artefact)["stop_ids"]),
        "training_step": str(settings.training_step),
        "kappa": repr(settings.kappa),
        "kappa_sampled": repr(settings.kappa_sampled),
        "confidence": json.dumps(settings.confidence),
        "confidence_sampled": json.dumps(settings.confidence_sampled),
        "max_position": str(max_position),
        "state": half.fingerprint(),
    }
    return {f"outrider.{name}": value for name, value in values.items()}
