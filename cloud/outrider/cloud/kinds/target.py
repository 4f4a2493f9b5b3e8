"""What drafters take from their target's folder: single tensors, copied layers, the frozen parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from outrider.cloud.kinds.base import FrozenTarget
from outrider.cloud.kinds.layers import DecoderLayer, decoder_layer
from outrider.cloud.kinds.settings import DrafterSettings


class TargetWeights:
    """Reads single tensors of a safetensors model folder (one file, or an index of several)."""

    def __init__(self, folder: Path):
        """Raises FileNotFoundError if the folder holds no safetensors weights."""
        index = folder / "model.safetensors.index.json"
        if index.exists():
            names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            self._files = {name: folder / file for name, file in names.items()}
            return
        single = folder / "model.safetensors"
        if not single.exists():
            raise FileNotFoundError(f"{folder} holds neither model.safetensors nor an index of several files")
        with safe_open(single, framework="pt") as handle:
            self._files = dict.fromkeys(handle.keys(), single)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str) -> Tensor:
        """One tensor, float32; KeyError if the target has none of that name."""
        with safe_open(self._files[name], framework="pt") as handle:
            tensor: Tensor = handle.get_tensor(name)
        return tensor.float()

    def embedding(self) -> Tensor:
        """Token embedding [vocab, hidden]."""
        return self.get("model.embed_tokens.weight")

    def head(self) -> Tensor:
        """LM head [vocab, hidden]; the embedding where the target ties them."""
        return self.get("lm_head.weight") if "lm_head.weight" in self else self.embedding()


_PLACES = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
_FOREIGN = (
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "self_attn.o_proj.bias",
    "mlp.gate_proj.bias",
)
"""Parts of other families' layers that a `DecoderLayer` has no place for."""


@torch.no_grad()
def copy_layer(layer: DecoderLayer, weights: TargetWeights, number: int) -> None:
    """Copy target layer `number` into those modules that `layer` has (CA lacks K and V projections).

    An MLP wider than the target's computes the same: the channels it has more are random, and nothing reads them
    yet. Of a narrower one the first channels are copied. Raises ValueError for a layer of another build.
    """
    prefix = f"model.layers.{number}."
    for name in _FOREIGN:
        if prefix + name in weights:
            raise ValueError(f"target layer {number} has {name}; drafters cannot be started from such layers")
    for name in ("input_layernorm", "post_attention_layernorm"):
        getattr(layer, name).weight.copy_(weights.get(f"{prefix}{name}.weight"))
    for place, names in _PLACES.items():
        for name in names:
            if hasattr(layer, name):
                copy_linear(getattr(layer, name), weights, f"{prefix}{place}.{name}")


@torch.no_grad()
def copy_linear(linear: nn.Linear, weights: TargetWeights, name: str) -> None:
    """Copy a linear layer of the target, as far as both reach; what `linear` has more is random or unread."""
    bias: Tensor | None = linear.bias
    if (bias is not None) != (f"{name}.bias" in weights):
        raise ValueError(
            f"target: {name} has {'no' if bias is not None else 'a'} bias, "
            f"against attention_bias={bias is not None} in the settings"
        )
    if bias is not None:
        bias.copy_(weights.get(f"{name}.bias"))
    value = weights.get(f"{name}.weight")
    rows, columns = (min(pair) for pair in zip(value.shape, linear.weight.shape, strict=True))
    if linear.weight.shape != value.shape:
        generator = torch.Generator().manual_seed(rows)
        linear.weight.normal_(0.0, columns**-0.5, generator=generator)
        linear.weight[:, columns:] = 0.0
    linear.weight[:rows, :columns] = value[:rows, :columns]


@torch.no_grad()
def frozen_target(settings: DrafterSettings, weights: TargetWeights, head_ids: Sequence[int]) -> FrozenTarget:
    """The target's frozen parts, with the head's rows for `head_ids` in that order."""
    frozen = FrozenTarget(settings, len(head_ids))
    frozen.embedding.weight.copy_(weights.embedding())
    for layer, number in zip(frozen.layers, settings.tli_layers, strict=True):
        copy_layer(decoder_layer(layer), weights, number)
    frozen.norm.weight.copy_(weights.get("model.norm.weight"))
    frozen.head.weight.copy_(weights.head()[torch.tensor(head_ids)])
    return frozen.requires_grad_(False)
