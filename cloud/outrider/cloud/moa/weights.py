"""Weights folders of Mixture-of-Attentions drafters."""

from __future__ import annotations

from pathlib import Path

from outrider.cloud.kinds.weights import load_drafter as load_any
from outrider.cloud.kinds.weights import save_drafter
from outrider.cloud.moa.drafter import MoaDrafter

__all__ = ["load_drafter", "save_drafter"]


def load_drafter(folder: Path) -> MoaDrafter:
    """A trained drafter of this kind; ValueError if the folder holds another. See `kinds.weights`."""
    drafter = load_any(folder)
    if not isinstance(drafter, MoaDrafter):
        raise ValueError(f"{folder} holds a {drafter.settings.kind!r} drafter, expected 'moa'")
    return drafter
