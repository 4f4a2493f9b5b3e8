"""Random drafter weights for a tiny target, as a weights folder: real shapes, no training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoConfig

from outrider.cloud.moa.config import settings_for_target
from outrider.cloud.moa.drafter import MoaDrafter
from outrider.cloud.moa.weights import save_drafter
from tests.tiny import VOCABULARY


def make_weights(folder: Path, target: Path, seed: int = 0, num_tli_layers: int = 1) -> Path:
    """Write random weights for ``target`` into ``folder`` and return it; every id can be drafted."""
    config = AutoConfig.from_pretrained(str(target), local_files_only=True)
    settings = settings_for_target(config, num_sa_layers=1, num_tli_layers=num_tli_layers)
    settings = replace(settings, draft_vocabulary=tuple(range(VOCABULARY)), training_step=7)
    generator = torch.Generator().manual_seed(seed)
    drafter = MoaDrafter(settings)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(1.0)
    save_drafter(drafter, settings, folder, torch.float32)
    return folder
