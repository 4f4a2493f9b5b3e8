"""The target alone: the same engine with empty drafts. What every other way of running it must equal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outrider.cloud.events import Verified, Verify
from outrider.cloud.local import Executor, no_verdict
from outrider.shared import frames
from outrider.shared.draft import Draft
from outrider.shared.sampling import LogProbs, Sampling

_keys = itertools.count(-1_000_002, -1)


@dataclass(frozen=True, slots=True)
class Said:
    """A token that the target said."""

    token_id: int
    log_probs: LogProbs | None = None
    """How likely it was, where that was asked for."""


def generate(
    worker: Executor,
    prompt: Sequence[int],
    sampling: Sampling | None = None,
    max_tokens: int = 256,
    stop_ids: Sequence[int] = (),
) -> Iterator[int]:
    """Token ids after ``prompt``, one per pass, up to ``max_tokens`` or a stop id (which is yielded too).

    Raises `EngineFailed` when the target cannot go on (context full, no room for its KV).
    """
    for said in say(worker, prompt, sampling, max_tokens, stop_ids):
        yield said.token_id


def say(
    worker: Executor,
    prompt: Sequence[int],
    sampling: Sampling | None = None,
    max_tokens: int = 256,
    stop_ids: Sequence[int] = (),
    *,
    log_probs: bool = False,
) -> Iterator[Said]:
    """As `generate`, with what else is known of each token."""
    sampling = sampling or Sampling()
    rule = frames.Rule("greedy" if sampling.greedy else "coupled")
    key, start, pending = next(_keys), 0, tuple(prompt)
    text = sampling.history(prompt, len(prompt), stop_ids)
    try:
        for _ in range(max_tokens):
            work = Verify(
                key, start, pending, Draft.chain(()), sampling, rule, history=text, log_probs=log_probs
            )
            (outcome,) = worker.run((work,))
            if not isinstance(outcome, Verified):
                raise no_verdict(outcome)
            start += len(pending)
            pending = (outcome.next_id,)
            text = None if text is None else text.then(pending)
            yield Said(outcome.next_id, *outcome.log_probs)
            if outcome.next_id in stop_ids:
                return
    finally:
        worker.evict(key)
