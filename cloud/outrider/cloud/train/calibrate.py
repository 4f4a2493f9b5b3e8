"""Fit kappa: by how much the drafter's scores must be divided for its child probabilities to be true."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.cloud.kinds.base import FrozenTarget, TrainableDrafter
from outrider.cloud.train.blocks import regular_text
from outrider.cloud.train.corpus import Example
from outrider.cloud.train.states import StateCache

GRID = tuple(0.3 + 0.05 * i for i in range(35))
"""Kappas tried; 1 would mean that the drafter's own softmax is already calibrated."""

_DEPTH = 6


@torch.no_grad()
def fit_kappa(
    drafter: TrainableDrafter,
    frozen: FrozenTarget,
    cache: StateCache,
    examples: Sequence[Example],
    rows: Sequence[int],
) -> float:
    """The kappa of `GRID` under which the true greedy tokens of `rows` are likeliest.

    At temperature 0 a child's calibrated probability is softmax(logits / kappa); tokens outside the draft
    vocabulary are left out, as they can never be children.
    """
    vocabulary = torch.tensor(drafter.settings.draft_vocabulary)
    losses = torch.zeros(len(GRID))
    for number, row in enumerate(rows):
        example = examples[row]
        prompt = len(example.prompt_ids)
        ids = torch.from_numpy(example.ids).long()
        text = regular_text(ids, cache.get(row).kv, prompt, _DEPTH, number % _DEPTH)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = frozen.head(drafter([text], frozen).final[:-1]).float()
        losses += kappa_losses(logits, ids[prompt + 1 :], vocabulary)
    return float(GRID[int(losses.argmin())])


def kappa_losses(logits: Tensor, truth: Tensor, vocabulary: Tensor) -> Tensor:
    """Summed negative log-likelihood per kappa of `GRID`: logits [n, V_d], truth target ids [n] -> [len(GRID)]."""
    places = torch.searchsorted(vocabulary, truth).clamp_max(len(vocabulary) - 1)
    inside = vocabulary[places] == truth
    kept, wanted = logits[inside], places[inside]
    each = [torch.nn.functional.cross_entropy(kept / kappa, wanted, reduction="sum") for kappa in GRID]
    return torch.stack(each)
