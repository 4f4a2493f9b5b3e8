"""The target alone: the same engine with empty drafts. What every other way of running it must equal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from outrider.cloud.events import Verified, Verify
from outrider.cloud.local import Executor, no_verdict
from outrider.shared import frames
from outrider.shared.draft import Draft
from outrider.shared.sampling import Sampling

_keys = itertools.count(-1_000_002, -1)


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
    sampling = sampling or Sampling()
    rule = frames.Rule("greedy" if sampling.greedy else "coupled")
    key, start, pending = next(_keys), 0, tuple(prompt)
    try:
        for _ in range(max_tokens):
            (outcome,) = worker.run((Verify(key, start, pending, Draft.chain(()), sampling, rule),))
            if not isinstance(outcome, Verified):
                raise no_verdict(outcome)
            start += len(pending)
            pending = (outcome.next_id,)
            yield outcome.next_id
            if outcome.next_id in stop_ids:
                return
    finally:
        worker.evict(key)
