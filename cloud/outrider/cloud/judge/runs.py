"""Answers to one prompt in every way that is compared: target alone, drafter alone, and rounds under a criterion.

Greedy throughout. A round's verdict is the disjunctive one of Judge Decoding: a drafted token stays when it is the
target's argmax, or when the criterion keeps it and no veto forbids that; at the first that does not stay the target's
argmax takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.evaluate.chains import Law
from outrider.cloud.judge.features import CandidateStates
from outrider.cloud.judge.measures import Measures, measures, unknown
from outrider.cloud.judge.mine import Propose
from outrider.cloud.judge.passes import Line, Passes, Rows, Script, Seen

FLOOR = 1e-4
"""A token the target finds less likely than this is never judged good."""
CAP = 8
"""Tokens in a row that may stay on the criterion's word alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A drafted token that is not the target's argmax."""

    index: int
    """Of the prompt."""
    place: int
    """In the answer."""
    token: int
    states: CandidateStates
    measures: Measures


Criterion = Callable[[Candidate], bool]
"""Whether a candidate may stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetting:
    """What is the same for all runs."""

    tokens: int = 64
    """Of an answer, at most."""
    depth: int = 8
    """Of a drafted chain."""
    stops: frozenset[int]
    kept_out: frozenset[int]
    """Ids the criterion is never asked about: `stops` and other specials."""
    floor: float = FLOOR
    cap: int = CAP


@dataclass(slots=True)
class Run:
    """One answer."""

    tokens: list[int] = field(default_factory=list)
    """A stop id included."""
    rounds: int = 0
    """Target passes behind the first, which only reads the prompt and gives the first token."""
    drafted: int = 0
    tested: int = 0
    """Candidates the criterion was asked about."""
    judged: int = 0
    """Of these, kept."""
    nats: float = 0.0
    """Sum of -log t of the tokens behind the first, at temperature 1."""

    @property
    def later(self) -> int:
        """Tokens behind the first."""
        return max(0, len(self.tokens) - 1)

    def to_json(self) -> dict[str, Any]:
        """As a row of a file."""
        return {
            "tokens": self.tokens,
            "rounds": self.rounds,
            "drafted": self.drafted,
            "tested": self.tested,
            "judged": self.judged,
            "nats": round(self.nats, 4),
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Run:
        """Read back."""
        return cls(**row)


def alone(propose: Propose, prompt: list[int], rows: Rows, setting: RunSetting) -> Run:
    """The drafter's own answer, with the prompt's state rows and nothing else of the target."""
    run = Run()
    while not _over(run, setting):
        chain, *_ = propose([*prompt, *run.tokens], rows, setting.depth)
        if not chain:
            break
        run.drafted += len(chain)
        _emit(run, list(chain), setting)
    return run


def rounds(
    index: int,
    line: Line,
    prompt: list[int],
    passes: Passes,
    propose: Propose | None,
    criterion: Criterion | None,
    setting: RunSetting,
) -> Script[Run]:
    """An answer by draft and verdict; without a criterion lossless, without ``propose`` the target alone."""
    run = Run()
    seen = yield line.feed(prompt)
    _emit(run, [int(np.argmax(seen.logits[0]))], setting)
    rows: Rows = []
    while not _over(run, setting):
        ids = [*prompt, *run.tokens]
        chain: tuple[int, ...] = ()
        sure: tuple[float, ...] = ()
        law: Law = unknown
        if propose is not None:
            rows = _more_rows(rows, passes, line.key, len(ids) - 1)
            chain, sure, law = propose(ids, rows, min(setting.depth, setting.tokens - len(run.tokens)))
        seen = yield line.feed(ids, chain)
        run.rounds += 1
        run.drafted += len(chain)
        kept = _verdict(index, run, seen, chain, sure, law, criterion, setting)
        before = len(run.tokens)
        _emit(run, [*chain[:kept], int(np.argmax(seen.logits[kept]))], setting)
        run.nats += _surprise(seen, run.tokens[before:])
    return run


def _verdict(
    index: int,
    run: Run,
    seen: Seen,
    chain: tuple[int, ...],
    sure: tuple[float, ...],
    law: Law,
    criterion: Criterion | None,
    setting: RunSetting,
) -> int:
    """Tokens of the chain that stay. Every round ends with the target's own token, so the cap counts within one."""
    unsupported = 0
    for row, token in enumerate(chain):
        if token == int(np.argmax(seen.logits[row])):
            if token in setting.stops:
                return row + 1
            unsupported = 0
            continue
        if criterion is None or unsupported >= setting.cap or token in setting.kept_out:
            return row
        found = measures(seen.logits[row], token, sure[row], law(row))
        states = CandidateStates(seen.states(row + 1), seen.states(row))
        run.tested += 1
        candidate = Candidate(index, len(run.tokens) + row, token, states, found)
        if found.probability < setting.floor or not criterion(candidate):
            return row
        run.judged += 1
        unsupported += 1
    return len(chain)


def _over(run: Run, setting: RunSetting) -> bool:
    return len(run.tokens) >= setting.tokens or bool(run.tokens and run.tokens[-1] in setting.stops)


def _emit(run: Run, tokens: list[int], setting: RunSetting) -> None:
    """Append tokens up to a stop id or the limit."""
    for token in tokens:
        if _over(run, setting):
            return
        run.tokens.append(token)


def _more_rows(rows: Rows, passes: Passes, key: int, stop: int) -> Rows:
    """Rows of positions 0 … stop-1."""
    have = len(rows[0]) if rows else 0
    if stop <= have:
        return [values[:stop] for values in rows]
    fresh = passes.rows(key, have, stop)
    return [np.concatenate(pair) for pair in zip(rows, fresh, strict=True)] if rows else fresh


def _surprise(seen: Seen, tokens: list[int]) -> float:
    """-log t of tokens chosen by rows 0 …, nats."""
    total = 0.0
    for row, token in enumerate(tokens):
        scores: NDArray[np.float64] = seen.logits[row].astype(np.float64)
        top = float(scores.max())
        total += top + float(np.log(np.exp(scores - top).sum())) - float(scores[token])
    return total
