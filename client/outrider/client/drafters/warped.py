"""Drafting for a target that penalises: the same adjustments on the drafter's own best tokens.

A graph gives its best few by logit and shared noise. With biases, penalties or a least length the target's best are
others, so a few more are asked for, adjusted with the text before them (the path in the draft included), and ranked
anew. What a bias lifts from further down is missed. This bears on acceptance alone; the text is the verifier's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.shared.penalties import among
from outrider.shared.sampling import History, Sampling, adjusted

SPARE = 12
"""Entries asked for beyond the children wanted."""


@dataclass(frozen=True, slots=True)
class Best:
    """A node's best entries as a graph gave them."""

    ids: NDArray[np.int64]
    """[n], target ids, each once."""
    scores: NDArray[np.float64]
    """[n]: logits / temperature + noise; at temperature 0 the logits."""
    log_probs: NDArray[np.float64]
    """[n], calibrated: ``scores`` x ``slope`` less a constant."""
    noise: NDArray[np.float64]
    """[n]: what was added to the scores; 0 at temperature 0."""
    slope: float


def reranked(best: Best, sampling: Sampling, text: History | None, count: int) -> list[tuple[int, float]]:
    """The ``count`` best (id, log-probability) after the adjustments, best first, lower ids first among equals.

    The mass that the adjustments move among these entries is taken to move among all.
    """
    warmth = sampling.temperature or 1.0
    order = np.argsort(best.ids, kind="stable")
    ids, scores = best.ids[order].astype(np.intp), best.scores[order]
    logits = (scores - best.noise[order]) * warmth
    few, short = among(ids, sampling, text)
    moved = (adjusted(logits, few, short) - logits) / warmth * best.slope
    before = best.log_probs[order]
    after = before + moved
    rest = max(1.0 - float(np.sum(np.exp(before))), 0.0)
    after -= np.log(rest + float(np.sum(np.exp(after))))
    ranks = np.argsort(-after, kind="stable")[:count]
    return [(int(ids[rank]), float(after[rank])) for rank in ranks if np.isfinite(after[rank])]
