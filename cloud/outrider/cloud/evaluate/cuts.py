"""A link that goes in the middle of an answer: what a device writes alone, and what an outage of so many seconds makes
of it.

The text is drafted once per cut, to its own end; how much of it an outage has time for is arithmetic.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider.client.cost import pass_s
from outrider.client.drafter import Budget, Drafter, common_prefix
from outrider.cloud.evaluate.rounds import DEPTH, Case, start_at
from outrider.shared.frames import CostCurve

SHARES = (0.10, 0.25, 0.50, 0.75)
"""Of the target's answer, at which the link goes."""
OUTAGES_S = (1.0, 5.0, 20.0)


def cut_after(answer: int, share: float) -> int:
    """Answer tokens there when the link goes: at least one, and at least one is missing.

    Raises ValueError where the answer is too short for that.
    """
    if answer < 2:
        raise ValueError(f"an answer of {answer} tokens cannot be cut")
    return min(max(1, int(share * answer + 0.5)), answer - 1)


@dataclass(frozen=True, slots=True)
class Alone:
    """What a device wrote with no link."""

    ids: tuple[int, ...]
    """Its end token included, where it came to one."""
    ended: bool
    """Whether it came to an end; else it ran into the limit, or had nothing more to say."""
    step_s: float
    """CPU time a token."""


def write_alone(drafter: Drafter, case: Case, cut: int, limit: int, stop_ids: Sequence[int]) -> Alone:
    """Draft on behind ``cut`` tokens of the answer, as a device without a link does, up to ``limit`` tokens.

    The state rows are those of the committed text but for its last token. Nothing comes afterwards.
    """
    committed = case.prompt + cut
    # What `outrider.client.rounds` asks for while nothing comes: short chains that do not go round in circles.
    budget = Budget(max_nodes=DEPTH, max_depth=DEPTH, sampling=case.sampling, alone_from=committed)
    start_at(drafter, case, committed - 1)
    drafter.propose(
        replace(budget, max_nodes=1, max_depth=1)
    )  # reads the text, as a session's rounds had done before
    line: list[int] = []
    begun = time.thread_time()
    while len(line) < limit and not (line and line[-1] in stop_ids):
        said = list(drafter.propose(budget).draft.ids)[: limit - len(line)]
        end = next((place + 1 for place, token in enumerate(said) if token in stop_ids), len(said))
        if not said:
            break
        drafter.accept(said[:end])
        line += said[:end]
    step_s = (time.thread_time() - begun) / max(len(line), 1)
    return Alone(tuple(line), bool(line) and line[-1] in stop_ids, step_s)


def kept_of(line: Sequence[int], rest: Sequence[int]) -> int:
    """Tokens written alone that stand once the target has had its say: those before the first that differs."""
    return common_prefix(line, rest)


@dataclass(frozen=True, slots=True)
class Outage:
    """What an outage of so many seconds did to an answer."""

    drafted: int
    """Tokens written alone."""
    kept: int
    revised: int
    finished: bool
    """Whether the answer was there as a whole before the link was."""
    reconcile_s: float
    """From the link's return to the target's verdict on all of it."""


def during(seconds: float, *, whole: int, kept: int, step_s: float, rtt_s: float, cost: CostCurve) -> Outage:
    """An outage in which a device has time for so many of the ``whole`` tokens it would write alone.

    ``kept``: of all of them. To reconcile takes a round trip and one pass of the target over the last committed token
    and the drafted ones; dialling is not in it.
    """
    drafted = whole if step_s <= 0 or seconds / step_s >= whole else int(seconds / step_s)
    stands = min(kept, drafted)
    took = rtt_s + pass_s(cost, drafted + 1)
    return Outage(drafted, stands, drafted - stands, drafted == whole, took)
