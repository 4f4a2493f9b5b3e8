"""Split decoding without the split: drafter, target and rule in one process. The oracle of every test."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from outrider.cloud.events import Verified, Verify, Work, WorkFailed
from outrider.cloud.rules import find_rule
from outrider.shared import frames
from outrider.shared.draft import Draft
from outrider.shared.errors import EngineFailed
from outrider.shared.sampling import LogProbs, Sampling

# Sessions of a served table have keys from 0 on; -1 is the start-up measurement's.
_keys = itertools.count(-2, -1)


class Proposal(Protocol):
    """What a drafter hands over."""

    @property
    def draft(self) -> Draft:
        """The proposed tokens."""


BudgetT = TypeVar("BudgetT", contravariant=True)


class LocalDrafter(Protocol[BudgetT]):
    """The verbs of the device's drafter contract that one process needs."""

    def begin(self, ids: Sequence[int]) -> None:
        """The sequence becomes ``ids``."""

    def propose(self, budget: BudgetT) -> Proposal:
        """Draft what follows."""

    def accept(self, ids: Sequence[int]) -> None:
        """Append ``ids``."""


class Executor(Protocol):
    """What runs the target: `outrider.cloud.worker.Worker`."""

    def run(self, works: Sequence[Work]) -> Sequence[object]:
        """Outcomes of works."""

    def evict(self, key: int) -> None:
        """Drop a session."""


@dataclass(slots=True)
class LocalRun:
    """A finished run."""

    ids: list[int] = field(default_factory=list)
    """Generated tokens, a stop id included."""
    accepted: list[int] = field(default_factory=list)
    """Drafted tokens kept, per round."""
    drafted: int = 0
    near_ties: int = 0
    log_probs: list[LogProbs] = field(default_factory=list)
    """Of each generated token, where they were asked for."""

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per round, the recovered or bonus token included."""
        return len(self.ids) / max(1, len(self.accepted))


def speculate(
    worker: Executor,
    drafter: LocalDrafter[BudgetT],
    budget: BudgetT,
    prompt: Sequence[int],
    *,
    max_new: int,
    sampling: Sampling | None = None,
    stop_ids: Sequence[int] = (),
    log_probs: bool = False,
) -> LocalRun:
    """Generate up to ``max_new`` tokens after ``prompt``: propose, verify, commit, until a stop id or the limit.

    Raises `EngineFailed` if the target cannot do it.
    """
    sampling = sampling or Sampling()
    rule = frames.Rule("greedy" if sampling.greedy else "coupled")
    find_rule(rule, sampling)
    run, key = LocalRun(), next(_keys)
    start, pending = 0, tuple(prompt)
    drafter.begin(prompt)
    try:
        while len(run.ids) < max_new:
            # 1. propose
            draft = drafter.propose(budget).draft
            run.drafted += len(draft.ids)
            # 2. verify: everything not yet in the target's KV, then the draft below it
            text = sampling.history((*prompt, *run.ids), len(prompt), stop_ids)
            work = Verify(key, start, pending, draft, sampling, rule, history=text, log_probs=log_probs)
            (outcome,) = worker.run((work,))
            if not isinstance(outcome, Verified):
                raise no_verdict(outcome)
            # 3. commit, up to the end of the text
            committed = [*(draft.ids[node] for node in outcome.accepted), outcome.next_id]
            stops = [index for index, token in enumerate(committed) if token in stop_ids]
            committed = committed[: stops[0] + 1] if stops else committed
            start += len(pending) + len(outcome.accepted)
            pending = (outcome.next_id,)
            run.ids += committed[: max_new - len(run.ids)]
            run.log_probs += outcome.log_probs[: len(run.ids) - len(run.log_probs)]
            run.accepted.append(len(outcome.accepted))
            run.near_ties += outcome.near_ties
            if stops:
                break
            drafter.accept(committed)
    finally:
        worker.evict(key)
    return run


def no_verdict(outcome: object) -> EngineFailed:
    """What to raise when a target alone has nobody to rebuild its session."""
    return EngineFailed(
        outcome.why if isinstance(outcome, WorkFailed) else f"expected a verdict, got {outcome}"
    )
