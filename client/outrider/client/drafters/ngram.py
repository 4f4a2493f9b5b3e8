"""Prompt lookup: what followed the longest earlier occurrence of the text's last tokens (Saxena 2023).

Needs no model and no rows, so it serves while the bundle is still on its way. Chains only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from outrider.client.drafter import Budget, Proposal, SequenceDrafter

MIN_MATCH = 2
MAX_MATCH = 16


class NgramDrafter(SequenceDrafter):
    """Copies from the sequence itself."""

    kind = "ngram"

    def propose(self, budget: Budget) -> Proposal:
        """The continuation of the latest among the longest matches; empty without a match of two tokens."""
        depth = min(budget.max_nodes, budget.max_depth)
        if depth < 1:
            return self.count(Proposal.empty())
        end, matched = longest_match(self.ids)
        if matched < MIN_MATCH:
            return self.count(Proposal.empty())
        ids = _copy(self.ids, end, depth)
        step = math.log(confidence(matched))
        kept = [n for n in range(len(ids)) if n == 0 or (n + 1) * step >= budget.floor]
        return self.count(Proposal.chain(ids[: len(kept)], [step] * len(kept)))


def longest_match(ids: Sequence[int]) -> tuple[int, int]:
    """Where the longest earlier occurrence of the sequence's end stops (exclusive), and its length in tokens."""
    tokens = np.asarray(ids, dtype=np.int64)
    if len(tokens) < 2:
        return 0, 0
    last = len(tokens) - 1
    ends = np.flatnonzero(tokens[:last] == tokens[last])
    matched = 1 if len(ends) else 0
    while len(ends) and matched < min(MAX_MATCH, last):
        longer = ends[ends >= matched]
        longer = longer[tokens[longer - matched] == tokens[last - matched]]
        if not len(longer):
            break
        ends, matched = longer, matched + 1
    return (int(ends[-1]) + 1, matched) if len(ends) else (0, 0)


def confidence(matched: int) -> float:
    """A rough per-token probability that a copy of a match this long goes on (more context, more trust)."""
    return min(0.9, 0.45 + 0.06 * matched)


def _copy(ids: Sequence[int], start: int, count: int) -> list[int]:
    """``count`` tokens from ``start`` on, running over into the copy itself (a loop repeats)."""
    out: list[int] = []
    for index in range(start, start + count):
        out.append(ids[index] if index < len(ids) else out[index - len(ids)])
    return out
