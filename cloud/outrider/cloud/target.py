"""Loading a target: any local folder with a plain decoder in safetensors, or the embedded one by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from outrider.cloud.fetch import ALIASES, EMBEDDED, Report, fetch_target
from outrider.cloud.fingerprint import law_fingerprint, weights_fingerprint
from outrider.cloud.kv import KvShape
from outrider.shared.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Their angles depend on the longest position in the pass, which is another session's business.
_ROPE_BY_LENGTH = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded target. ``model`` is what transformers made, attention "sdpa"; an engine may rebuild its layers."""

    model: nn.Module
    folder: Path
    name: str
    dtype: str
    vocabulary: int
    """Ids are 0 … vocabulary-1: the rows of the LM head."""
    max_context: int
    """Positions the model was made for."""
    stop_ids: tuple[int, ...]
    """The target's own end tokens."""
    weights: bytes
    """SHA-256 of weights and architecture, whatever the dtype: what a drafter is trained for."""
    law: bytes
    """SHA-256 of everything that decides the text."""
    kv_shape: KvShape
    hidden_size: int
    query_heads: int


def target_folder(source: str | Path, report: Report = lambda line: None) -> Path:
    """The folder of a target: the embedded one (fetched if need be) by name, otherwise ``source`` itself."""
    if str(source) in ALIASES:
        return fetch_target(report=report)
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            "--target",
            f"{source}: no such folder",
            remedy=f'name a local model folder, or "{EMBEDDED}" for the embedded one',
        )
    return folder


def load_target(
    source: str | Path = EMBEDDED,
    dtype: str = "float32",
    threads: int = 1,
    report: Report = lambda line: None,
) -> Target:
    """Load a target for inference on the CPU. ``threads`` is torch's, for the whole process; 0 leaves it alone.

    Raises ConfigError for what is missing, not plain safetensors, or of a kind whose attention this engine does not
    compute.
    """
    if dtype not in DTYPES:
        raise ConfigError("--dtype", f"{dtype}: expected one of {', '.join(DTYPES)}")
    folder = target_folder(source, report)
    _check_files(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _check_config(folder.name, config)
    if threads:
        torch.set_num_threads(threads)
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        str(folder),
        dtype=DTYPES[dtype],
        attn_implementation="sdpa",
        use_safetensors=True,
        local_files_only=True,
    )
    model.eval().requires_grad_(False)
    loaded: Any = model.config
    head_dim = getattr(loaded, "head_dim", None) or loaded.hidden_size // loaded.num_attention_heads
    weights = weights_fingerprint(folder)
    return Target(
        model=model,
        folder=folder,
        name=EMBEDDED if str(source) in ALIASES else folder.name,
        dtype=dtype,
        vocabulary=int(model.get_output_embeddings().weight.shape[0]),
        max_context=int(loaded.max_position_embeddings),
        stop_ids=_stop_ids(folder, config),
        weights=weights,
        law=law_fingerprint(weights, dtype),
        kv_shape=KvShape(
            loaded.num_hidden_layers,
            loaded.num_key_value_heads,
            head_dim,
            DTYPES[dtype],
            int(loaded.hidden_size),
        ),
        hidden_size=int(loaded.hidden_size),
        query_heads=int(loaded.num_attention_heads),
    )


def _check_files(folder: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ConfigError(
                "--target", f"{folder.name}: {name} is missing", remedy="name a complete model folder"
            )
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            "--target",
            f"{folder.name}: no *.safetensors",
            remedy="convert the weights to safetensors; no other format is read",
        )


def _check_config(name: str, config: dict[str, Any]) -> None:
    """Refuse, by what its config says, a model this engine would compute wrongly."""
    why = _unsupported(config)
    if why:
        raise ConfigError(
            "--target", f"{name}: {why}", remedy="choose a Llama-, Qwen2-, Qwen3- or Mistral-like decoder"
        )


def _unsupported(config: dict[str, Any]) -> str:
    if "auto_map" in config:
        return "it needs code of its own, and none from a model folder is run"
    if "quantization_config" in config:
        return "its weights are quantized; plain ones are needed"
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        return f"it attends through a sliding window of {config['sliding_window']} tokens"
    kinds = set(config.get("layer_types") or ()) - {"full_attention"}
    if kinds:
        return f"it has layers of kind {', '.join(sorted(kinds))}"
    for rope in (config.get("rope_parameters") or {}, config.get("rope_scaling") or {}):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind in _ROPE_BY_LENGTH:
            return f"its rotary angles ({kind}) depend on the longest sequence in a pass"
    if config.get("attn_logit_softcapping"):
        return "it caps attention scores"
    if config.get("is_encoder_decoder"):
        return "it is no decoder"
    return ""


def _stop_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    generation = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    return tuple(
        sorted({int(end) for end in (ends if isinstance(ends, list) else [ends]) if end is not None})
    )
