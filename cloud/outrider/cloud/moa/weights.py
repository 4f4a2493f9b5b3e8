"""Weights folders: `drafter.safetensors` with `drafter.json` beside it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from outrider.cloud.moa.config import WEIGHTS_FILE, MoaSettings
from outrider.cloud.moa.drafter import MoaDrafter


def load_drafter(folder: Path) -> MoaDrafter:
    """A trained drafter, float32, in inference mode. Raises ValueError or FileNotFoundError if incomplete."""
    settings = MoaSettings.load(folder)
    drafter = MoaDrafter(settings)
    tensors = {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS_FILE).items()}
    problems = drafter.load_state_dict(tensors, strict=False)
    if problems.missing_keys or problems.unexpected_keys:
        raise ValueError(
            f"{folder} does not hold this drafter: missing {problems.missing_keys}, unknown {problems.unexpected_keys}"
        )
    return drafter.eval().requires_grad_(False)


def save_drafter(drafter: MoaDrafter, settings: MoaSettings, folder: Path, dtype: torch.dtype) -> None:
    """Write weights in `dtype` (norms and statistics stay float32: they are small and matter) and settings."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, tensor in drafter.state_dict().items():
        small = tensor.ndim < 2 or name.endswith((".center", ".scale"))
        tensors[name] = tensor.detach().to(torch.float32 if small else dtype).contiguous().clone()
    save_file(tensors, folder / WEIGHTS_FILE)
    settings.save(folder)
