"""Controls that know nothing of judging, made to keep as many candidates as the judge does.

A judge that does no better than these at the same acceptance has learned nothing that was not in the target's law
("Judge Decoding from first principles", 2026, makes the same point with its training-free KL rule).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from outrider.cloud.judge.head import JudgeHead
from outrider.cloud.judge.mine import Source
from outrider.cloud.judge.records import Row
from outrider.cloud.judge.runs import FLOOR, Candidate, Criterion

NEVER = 1e300
"""A threshold that nothing reaches, and that JSON can hold."""

Score = Callable[[Candidate], float]
"""Larger means "keep"."""


def coin(seed: int, index: int, place: int) -> float:
    """A number in [0, 1) fixed by seed, prompt and place: what `random` decides by, and what splits ties of `rank`."""
    text = f"judge-control {seed} {index} {place}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") / 2.0**64


def control_scores(seed: int) -> dict[str, Score]:
    """By name: a coin, t(x), the rank of x, the target's entropy, KL of draft and target, and t(x) - d(x)."""
    return {
        "random": lambda at: coin(seed, at.index, at.place),
        "probability": lambda at: at.measures.probability,
        "rank": lambda at: -at.measures.rank - coin(seed, at.index, at.place),
        "entropy": lambda at: at.measures.entropy,
        "kl": lambda at: -at.measures.kl,
        "epsilon": lambda at: at.measures.probability - at.measures.drafted,
    }


@dataclass(frozen=True, slots=True)
class Matched:
    """Thresholds at which every control keeps the judge's share of the validation candidates."""

    share: float
    candidates: int
    thresholds: dict[str, float]


def candidates_of(rows: Iterable[Row], floor: float = FLOOR) -> list[Candidate]:
    """The mined labels of rows as candidates, as far as they pass the veto on unlikely tokens."""
    return [
        Candidate(row.index, label.place, label.token, label.states, label.measures)
        for row in rows
        for label in row.labels
        if label.source is Source.MINED and label.measures.probability >= floor
    ]


def judge_criterion(head: JudgeHead, delta: float | None = None) -> Criterion:
    """Keep what the head keeps; ``delta`` None: at its own threshold."""
    return lambda at: bool(head.keeps(at.states.of(head.feature, head.position), delta))


def match(judge: Criterion, found: list[Candidate], seed: int) -> Matched:
    """Thresholds by quantile over ``found`` (validation candidates; nothing of the test is looked at).

    Raises ValueError without candidates.
    """
    if not found:
        raise ValueError("no candidates to match the controls on")
    share = float(np.mean([judge(one) for one in found]))
    count = round(share * len(found))
    thresholds = {}
    for name, score in control_scores(seed).items():
        ranked = sorted((score(one) for one in found), reverse=True)
        thresholds[name] = ranked[count - 1] if count else NEVER
    return Matched(share, len(found), thresholds)


def criteria(judge: Criterion, matched: Matched, seed: int) -> dict[str, Criterion]:
    """The judge and all controls, by name."""
    scores = control_scores(seed)
    found: dict[str, Criterion] = {"judge": judge}
    for name, threshold in matched.thresholds.items():
        found[name] = _threshold(scores[name], threshold)
    return found


def _threshold(score: Score, threshold: float) -> Criterion:
    return lambda at: score(at) >= threshold
