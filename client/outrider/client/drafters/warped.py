"""Drafting for a target that penalises: the same adjustments on the drafter's own best tokens.

A graph gives its best few by logit and shared noise. With biases, penalties or a least length the target's best are
others, so a few more are asked for, adjusted with the text before them (the path in the draft included), and ranked
anew. What a bias lifts from further down is missed. This bears on acceptance alone; the text is the verifier's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from outrider.client.drafters.graph import Answer, Array, Layout
from outrider.client.drafters.growth import Pool
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


class Adjusting:
    """Ranks the children in one draft anew; makes its pool ask for more of them."""

    def __init__(
        self,
        pool: Pool,
        ids: Sequence[int],
        layout: Layout,
        noise: Callable[[Sampling, int, Sequence[int]], Array],
    ) -> None:
        """``ids`` is the sequence that the draft continues, ``noise`` gives that of ids at a position."""
        budget = pool.budget
        self._pool, self._noise, self._length = pool, noise, len(ids)
        self._sampling = budget.sampling
        self._text = budget.sampling.history(ids, budget.generated_from, budget.stop_ids)
        self._wanted = pool.shape.children
        temperature = budget.sampling.temperature
        self._slope = temperature / layout.kappa_at(temperature) if temperature else 1.0 / layout.kappa
        pool.shape = replace(pool.shape, children=pool.shape.children + SPARE)

    def children(self, parents: Sequence[int], answer: Answer) -> list[list[tuple[int, float]]]:
        """Per parent (ROOT = the base) its children as (id, log-probability), best first."""
        return [self._of(parent, answer, row) for row, parent in enumerate(parents)]

    def _of(self, parent: int, answer: Answer, row: int) -> list[tuple[int, float]]:
        path = self._pool.path(parent)
        ids, likely = answer.token_ids[row], answer.log_probs[row]
        if answer.scores is None:  # a graph that does not tell them cannot be ranked anew
            return list(zip(ids.tolist(), likely.tolist(), strict=True))[: self._wanted]
        noise = self._noise(self._sampling, self._length + len(path), ids.tolist()).astype(np.float64)
        text = None if self._text is None else self._text.then(path)
        best = Best(ids, answer.scores[row], likely, noise, self._slope)
        return reranked(best, self._sampling, text, self._wanted)
