"""Weights folders of every kind: `drafter.safetensors` with `drafter.json` beside it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.cloud.kinds.base import TrainableDrafter
from outrider.cloud.kinds.registry import find_kind
from outrider.cloud.kinds.settings import WEIGHTS_FILE, DrafterSettings, load_settings

_SCALE = ".int8_scale"


def load_drafter(folder: Path) -> TrainableDrafter:
    """A trained drafter, float32, in inference mode. Raises ValueError or FileNotFoundError if incomplete."""
    settings = load_settings(folder)
    drafter = find_kind(settings.kind).build(settings)
    problems = drafter.load_state_dict(_unpack(load_file(folder / WEIGHTS_FILE)), strict=False)
    if problems.missing_keys or problems.unexpected_keys:
        raise ValueError(
            f"{folder} does not hold this drafter: missing {problems.missing_keys}, unknown {problems.unexpected_keys}"
        )
    return drafter.eval().requires_grad_(False)


def save_drafter(
    drafter: TrainableDrafter,
    settings: DrafterSettings,
    folder: Path,
    dtype: torch.dtype,
    *,
    int8: bool = False,
) -> None:
    """Write weights in `dtype` and settings; norms and statistics stay float32: they are small and matter.

    `int8` stores the matrices of the device's own layers (`device_prefixes`) as the bundle will hold them
    (a scale per output channel): half the size, and the exported bundle is the same to the bit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    linear = {
        f"{name}.weight" for name, module in drafter.named_modules() if isinstance(module, torch.nn.Linear)
    }
    statistics = {name for name, _ in drafter.named_buffers()}
    tensors: dict[str, Tensor] = {}
    for name, tensor in drafter.state_dict().items():
        value = tensor.detach().float()
        if tensor.ndim < 2 or name in statistics:
            tensors[name] = value.clone()
        elif int8 and name in linear and name.startswith(drafter.device_prefixes):
            tensors[name], tensors[name + _SCALE] = _to_int8(value)
        else:
            tensors[name] = value.to(dtype).contiguous()
    save_file(tensors, folder / WEIGHTS_FILE)
    settings.save(folder)


def _to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 per row: (values [out, in], scale [out])."""
    peak = weight.abs().amax(dim=1)
    scale = torch.where(peak > 0, peak / 127.0, torch.ones_like(peak))
    return (weight / scale[:, None]).round().clamp(-127, 127).to(torch.int8).contiguous(), scale


def _unpack(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    scales = {name.removesuffix(_SCALE): scale for name, scale in stored.items() if name.endswith(_SCALE)}
    return {
        name: tensor.float() * scales[name][:, None] if name in scales else tensor.float()
        for name, tensor in stored.items()
        if not name.endswith(_SCALE)
    }
