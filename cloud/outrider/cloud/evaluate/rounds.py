"""Rounds of a device's drafter against a text the target has written already: no network, no target, no luck.

A lossless verdict is decided by the target's own text, so a round is: propose, keep what agrees with the text, and the
text's next token. State rows come as they do in a session: of everything but the last committed token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from outrider.client.drafter import Budget, Drafter
from outrider.shared.draft import Draft
from outrider.shared.sampling import Sampling

CHAINS = (4, 6, 8)
TREES = (8, 16, 24, 32)
DEPTH = 8
"""Tokens from the base to the deepest node of any draft here."""
FIRST = 2
"""Tokens of a chain that are drafted before the whole of it."""
TIMED_EVERY = 16
"""Every so many positions the whole chain is drafted in any case, for its time."""
TIMED_TREE = 24
BUCKETS = ((1, 4), (5, 20), (21, 64), (65, 128), (129, 256))
"""Depths after the cut, both ends included, that offline figures are folded by."""
SHORT, LONG = (1, 20), (21, 128)
LONGEST = BUCKETS[-1][1]

Rows = Sequence[NDArray[np.float32]]
Tally = dict[str, tuple[float, float]]
"""Per measure of one prompt: numerator and denominator; a category's figure is the quotient of their sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prompt for one drafter."""

    ids: Sequence[int]
    """Prompt and the target's answer, which goes `DEPTH` + 1 tokens beyond ``tokens`` unless it ends before."""
    prompt: int
    """Tokens of the prompt."""
    tokens: int
    """Answer tokens over which rounds are measured."""
    rows: Rows = ()
    """State rows, per plane [positions, width]."""
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def stop(self) -> int:
        """Length at which no further round begins."""
        return min(self.prompt + self.tokens, len(self.ids))


@dataclass(slots=True)
class Times:
    """Milliseconds of the drafting thread's own time."""

    steps: list[float] = field(default_factory=list)
    """Per token of a chain of `DEPTH`."""
    passes: list[float] = field(default_factory=list)
    """Per run of the graph while a tree of `TIMED_TREE` nodes grows: up to eight nodes each."""


def measure_rounds(
    drafter: Drafter,
    case: Case,
    times: Times | None = None,
    *,
    nested: bool = True,
    trees: Sequence[int] = TREES,
) -> Tally:
    """tau of `CHAINS` and of trees of so many nodes (tokens, rounds), and acceptance by depth (right, tried).

    ``nested``: the first k tokens of this drafter's chains are its chains of k, so one drafting serves for all.
    """
    times = times or Times()
    accepted = chain_acceptance(drafter, case, times, nested=nested)
    tally = acceptance(accepted, case)
    for chain in CHAINS:
        budget = Budget(max_nodes=chain, max_depth=chain, sampling=case.sampling)
        walked = nested or chain == DEPTH
        tally[f"tau_chain{chain}"] = walk(accepted, case, chain) if walked else run(drafter, case, budget)
    for nodes in trees:
        budget = Budget(max_nodes=nodes, max_depth=DEPTH, tree=True, sampling=case.sampling)
        passes = times.passes if nodes == TIMED_TREE else None
        tally[f"tau_tree{nodes}"] = run(drafter, case, budget, passes)
    return tally


def chain_acceptance(drafter: Drafter, case: Case, times: Times, *, nested: bool = True) -> list[int]:
    """After every committed length: tokens of a chain of `DEPTH` that agree, up to the first that does not.

    Where chains are ``nested``, most of them are known from their first tokens, and only those are drafted.
    """
    first = Budget(max_nodes=FIRST, max_depth=FIRST, sampling=case.sampling)
    whole = Budget(max_nodes=DEPTH, max_depth=DEPTH, sampling=case.sampling)
    start_at(drafter, case, case.prompt)
    accepted: list[int] = []
    for length in range(case.prompt + 1, case.stop):
        truth = case.ids[length : length + DEPTH]
        probed = nested and len(accepted) % TIMED_EVERY > 0
        count = _agreeing(drafter.propose(first).draft.ids, truth) if probed else FIRST
        if count == FIRST:
            begun = time.thread_time()
            ids = drafter.propose(whole).draft.ids
            if ids:
                times.steps.append(1e3 * (time.thread_time() - begun) / len(ids))
            count = _agreeing(ids, truth)
        accepted.append(count)
        drafter.accept(case.ids[length : length + 1])
        _give(drafter, case.rows, length - 1, length)
    return accepted


def _agreeing(ids: Sequence[int], truth: Sequence[int]) -> int:
    for count, (one, other) in enumerate(zip(ids, truth, strict=False)):
        if one != other:
            return count
    return min(len(ids), len(truth))


def walk(accepted: Sequence[int], case: Case, chain: int) -> tuple[float, float]:
    """(tokens, rounds) of chains of ``chain``, whose rounds begin where the one before ended.

    The last round counts with all it brings, though that may lie behind the measured tokens: cutting it there would
    favour short drafts.
    """
    place = rounds = 0
    while place < len(accepted):
        place += _brought(min(accepted[place], chain), len(case.ids) - case.prompt - 1 - place)
        rounds += 1
    return float(place), float(rounds)


def run(
    drafter: Drafter, case: Case, budget: Budget, passes_ms: list[float] | None = None
) -> tuple[float, float]:
    """(tokens, rounds) of rounds run one after the other as a session does; ``passes_ms`` gets times per pass."""
    start_at(drafter, case, case.prompt)
    length, rounds = case.prompt + 1, 0
    while length < case.stop:
        begun, passes = time.thread_time(), drafter.counters.passes
        draft = drafter.propose(budget).draft
        if passes_ms is not None and drafter.counters.passes > passes:
            passes_ms.append(1e3 * (time.thread_time() - begun) / (drafter.counters.passes - passes))
        end = length + _brought(accepted_of(draft, case.ids[length:]), len(case.ids) - length)
        drafter.accept(case.ids[length:end])
        _give(drafter, case.rows, length - 1, end - 1)
        length = end
        rounds += 1
    return float(length - case.prompt - 1), float(rounds)


def _brought(accepted: int, left: int) -> int:
    """Tokens of a round: the accepted ones and the target's own, unless the text ends before."""
    return min(accepted + 1, left)


def accepted_of(draft: Draft, truth: Sequence[int]) -> int:
    """Tokens of ``truth`` that the draft holds as a path from its base."""
    row = accepted = 0
    for token in truth:
        child = next((node for node in draft.children(row) if draft.ids[node] == token), None)
        if child is None:
            break
        row = child + 1
        accepted += 1
    return accepted


def acceptance(accepted: Sequence[int], case: Case) -> Tally:
    """Per depth 1 … `DEPTH`: how often the token there is right where all before it are. Saying nothing is wrong."""
    tally: Tally = {}
    for depth in range(1, DEPTH + 1):
        # Chain number n begins behind answer token n + 1.
        tried = [
            count
            for number, count in enumerate(accepted)
            if count >= depth - 1 and case.prompt + number + depth < len(case.ids)
        ]
        tally[f"acceptance_{depth}"] = (float(sum(count >= depth for count in tried)), float(len(tried)))
    return tally


# ------------------------------------------------------------------------------------------------------------ offline

Surprise = Callable[[int, int], float]
"""(position, token) -> the target's -log law of it after the text before, nats."""
Judge = Callable[[Sequence[int], Sequence[int]], Sequence[float]]
"""(prefix, line) -> the target's -log law of each token of a line, nats."""


def measure_offline(
    drafter: Drafter, case: Case, stop_ids: Sequence[int], surprise: Surprise, judge: Judge | None
) -> Tally:
    """Drafting without rows after a cut: at the prompt's end, and in the middle of the measured tokens.

    ``standalone…`` and ``agree…``: best token equal to the target's next, along the target's text. ``nll_forced…``: the
    target's surprise at that best token, ``nll_text…`` at its own next one. ``nll_free…`` (with a ``judge``, after
    the cut in the middle): at the tokens the drafter writes when left alone.
    """
    tally: Tally = {}
    middle = case.prompt + case.tokens // 2
    for cut in (case.prompt, middle):
        if len(case.ids) - cut >= 2:
            _forced(drafter, case, cut, surprise, tally)
    if judge is not None and len(case.ids) - middle >= 2:
        _free(drafter, case, middle, stop_ids, judge, tally)
    return tally


def _forced(drafter: Drafter, case: Case, cut: int, surprise: Surprise, tally: Tally) -> None:
    budget = Budget(max_nodes=1, max_depth=1, sampling=case.sampling)
    start_at(drafter, case, cut)
    for position in range(cut + 1, min(len(case.ids), cut + 1 + LONGEST)):
        said, truth = drafter.propose(budget).draft.ids, case.ids[position]
        depth, right = position - cut, bool(said) and said[0] == truth
        _add(tally, "agree", depth, float(right))
        for name, (first, last) in (("standalone_1_20", SHORT), ("standalone_20", LONG)):
            if first <= depth <= last:
                _count(tally, name, float(right))
        _add(tally, "nll_text", depth, surprise(position, truth))
        if said:
            _add(tally, "nll_forced", depth, surprise(position, said[0]))
        drafter.accept([truth])


def _free(
    drafter: Drafter, case: Case, cut: int, stop_ids: Sequence[int], judge: Judge, tally: Tally
) -> None:
    budget = Budget(max_nodes=DEPTH, max_depth=DEPTH, sampling=case.sampling, alone_from=cut + 1)
    wanted = min(LONGEST, len(case.ids) - cut - 1)
    start_at(drafter, case, cut)
    line: list[int] = []
    while len(line) < wanted and not (line and line[-1] in stop_ids):
        said = list(drafter.propose(budget).draft.ids)
        end = next((place + 1 for place, token in enumerate(said) if token in stop_ids), len(said))
        if not said:
            break
        drafter.accept(said[:end])
        line += said[:end]
    if line:
        for depth, nats in enumerate(judge(case.ids[: cut + 1], line[:wanted]), start=1):
            _add(tally, "nll_free", depth, nats)


def _add(tally: Tally, name: str, depth: int, value: float) -> None:
    for first, last in BUCKETS:
        if first <= depth <= last:
            _count(tally, f"{name}_{first}_{last}", value)


def _count(tally: Tally, name: str, value: float) -> None:
    total, count = tally.get(name, (0.0, 0.0))
    tally[name] = (total + value, count + 1)


def start_at(drafter: Drafter, case: Case, cut: int) -> None:
    """As when the token at position ``cut`` was just committed: rows of everything before it are there."""
    drafter.rollback(0)
    drafter.begin(case.ids[: cut + 1])
    _give(drafter, case.rows, 0, cut)


def _give(drafter: Drafter, rows: Rows, start: int, stop: int) -> None:
    for plane, values in enumerate(rows):
        drafter.add_rows(plane, start, values[start:stop])
