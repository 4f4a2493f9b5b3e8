"""What a verifier tells devices about itself: identity, limits, and what a target pass costs here."""

from __future__ import annotations

import time
from collections.abc import Sequence

from outrider.cloud.events import Prefill, Verify, WorkFailed
from outrider.cloud.rules import EXACT, Rulebook
from outrider.cloud.runner import Engine
from outrider.cloud.table_state import Served, TableSettings, TableState
from outrider.shared.draft import Draft
from outrider.shared.errors import OutriderError
from outrider.shared.frames import BundleInfo, CostCurve, Description, Feature, Rule
from outrider.shared.sampling import Sampling

COST_WIDTHS = (1, 8, 16, 24, 32, 48, 64)
"""Widths measured, in tokens a pass: the last committed token and the draft. Passes are padded to multiples of 8."""

COST_CONTEXT = 128
"""Tokens of context under which they are measured."""

_KEY = -1  # no session has a negative key
_REPEATS = 3
_ENOUGH_S = 0.5
_PREFILL_CHUNK = 64


def features(*, rows: bool, padding: str, rules: Rulebook = EXACT) -> tuple[Feature, ...]:
    """What this server can grant."""
    offered = [Feature.TREES, Feature.RUN_AHEAD, Feature.PIPELINE]
    if any(rule.needs_laws or rule.lossy for rule in rules.rules):
        offered.append(Feature.DRAFT_LAWS)
    if rows:
        offered.append(Feature.STATE_ROWS)
    if padding != "off":
        offered.append(Feature.PADDING)
    return tuple(offered)


def measure_cost(
    engine: Engine, vocabulary: int, widths: Sequence[int] = COST_WIDTHS, context_tokens: int = COST_CONTEXT
) -> CostCurve:
    """Time target passes of each width, on the calling thread, with nothing else running.

    The best of three (fewer where passes are slow) after a warm-up, since whatever else runs on the machine only adds.
    A cost is never above that of a wider pass, so that noise cannot make a longer draft look cheaper. Raises
    OutriderError if the engine cannot do the work at all.
    """
    try:
        prefill_us = _measure_prefill(engine, vocabulary, context_tokens)
        _measure_width(engine, vocabulary, context_tokens, max(widths))
        costs = [_measure_width(engine, vocabulary, context_tokens, width) for width in widths]
        for index in range(len(costs) - 1, 0, -1):
            costs[index - 1] = min(costs[index - 1], costs[index])
    finally:
        engine.evict(_KEY)
    return CostCurve(tuple(widths), tuple(costs), context_tokens, prefill_us)


def _measure_prefill(engine: Engine, vocabulary: int, count: int) -> int:
    started = time.perf_counter()
    for start in range(0, count, _PREFILL_CHUNK):
        ids = _ids(vocabulary, start, min(_PREFILL_CHUNK, count - start))
        _run(engine, Prefill(_KEY, start, ids))
    return max(1, int((time.perf_counter() - started) * 1e6 / count))


def _measure_width(engine: Engine, vocabulary: int, context: int, width: int) -> int:
    pending = _ids(vocabulary, context, 1)
    draft = Draft.chain(_ids(vocabulary, context + 1, width - 1))
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        _run(engine, Verify(_KEY, context, pending, draft, Sampling(), Rule()))
        times.append(time.perf_counter() - started)
        engine.truncate(_KEY, context)
        if sum(times) > _ENOUGH_S:
            break
    return max(1, int(min(times) * 1e6))


def _run(engine: Engine, work: Prefill | Verify) -> None:
    for outcome in engine.run((work,)):
        if isinstance(outcome, WorkFailed):
            raise OutriderError(f"the target cannot make a pass: {outcome.why}")


def _ids(vocabulary: int, start: int, count: int) -> tuple[int, ...]:
    """Arbitrary ids, the same every time."""
    return tuple((7919 * position + 13) % vocabulary for position in range(start, start + count))


def describe(
    served: Served, *, target_name: str, dtype: str, bundles: tuple[BundleInfo, ...] = ()
) -> Description:
    """The answer to Describe for what the table serves, limits as the table applies them."""
    return Description(
        fingerprints=served.fingerprints,
        vocabulary_size=served.vocabulary,
        target_name=target_name,
        dtype=dtype,
        stop_ids=tuple(sorted(served.stop_ids)),
        rules=served.rules.names,
        features=served.features,
        limits=TableState(served, TableSettings()).served.limits,
        bundles=bundles,
        numerics=served.numerics,
    )
