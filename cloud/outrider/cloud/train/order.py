"""The order in which texts are trained on: a function of seed and turn alone, texts of like length together."""

from __future__ import annotations

import random
from collections.abc import Sequence

WINDOW = 16
"""Batches whose texts are sorted by length together; wider would make neighbours in time alike."""


def batches(
    rows: Sequence[int],
    lengths: Sequence[int],
    answers: Sequence[int],
    batch_tokens: int,
    seed: int,
    turn: int,
) -> list[list[int]]:
    """One pass over `rows` in batches of about `batch_tokens` answer tokens.

    lengths and answers are tokens per row of the whole text and of its answer, indexed by row number. Every
    row is in exactly one batch; no batch has more than `batch_tokens` unless it is a single text.
    """
    shuffled = list(rows)
    # Not hash(): that differs between processes. Not a sum: seeds and turns must not meet.
    source = random.Random(f"{seed}/{turn}")
    source.shuffle(shuffled)
    found: list[list[int]] = []
    window: list[int] = []
    tokens = 0
    for row in shuffled:
        window.append(row)
        tokens += answers[row]
        if tokens >= WINDOW * batch_tokens:
            found += _cut(sorted(window, key=lambda r: (lengths[r], r)), answers, batch_tokens)
            window, tokens = [], 0
    found += _cut(sorted(window, key=lambda r: (lengths[r], r)), answers, batch_tokens)
    source.shuffle(found)
    return found


def _cut(rows: Sequence[int], answers: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Neighbours in batches as even as their tokens allow."""
    total = sum(answers[row] for row in rows)
    if not total:
        return []
    aim = total / max(1, -(-total // batch_tokens))
    found: list[list[int]] = [[]]
    tokens = 0
    for row in rows:
        if found[-1] and (tokens + answers[row] > batch_tokens or tokens >= aim):
            found.append([])
            tokens = 0
        found[-1].append(row)
        tokens += answers[row]
    return found
