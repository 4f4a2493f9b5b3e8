"""What a verifier measures and says about itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outrider.cloud.describe import COST_WIDTHS, features, measure_cost
from outrider.cloud.events import Outcome, Work, WorkFailed
from outrider.cloud.rules import rulebook
from outrider.shared.errors import OutriderError
from outrider.shared.frames import Feature
from tests.toy_engine import ToyEngine
from tests.toy_verifier import toy_loaded


def test_costs_never_fall_with_the_width_and_leave_no_trace() -> None:
    """One cost per width, at least a microsecond, ascending; the KV used for it is gone afterwards."""
    engine = ToyEngine()
    curve = measure_cost(engine, engine.vocabulary)
    assert curve.widths == COST_WIDTHS and len(curve.costs_us) == len(COST_WIDTHS)
    assert list(curve.costs_us) == sorted(curve.costs_us) and curve.costs_us[0] >= 1
    assert curve.prefill_us_per_token >= 1 and curve.context_tokens == 128
    assert engine.kv == {}


class BrokenEngine(ToyEngine):
    """Fails every work."""

    def run(self, works: Sequence[Work]) -> Sequence[Outcome]:
        """Nothing works."""
        return [WorkFailed(work.key, "broken") for work in works]


def test_an_engine_that_cannot_work_is_not_served() -> None:
    """A target that fails its first pass stops the start-up."""
    with pytest.raises(OutriderError, match="broken"):
        measure_cost(BrokenEngine(), 64)


def test_only_what_can_be_granted_is_offered() -> None:
    """Rows need a drafter, padding a profile, draft laws a rule that reads them."""
    assert Feature.STATE_ROWS not in features(rows=False, padding="off")
    assert Feature.PADDING not in features(rows=True, padding="off")
    assert {Feature.STATE_ROWS, Feature.PADDING} <= set(features(rows=True, padding="bucket"))
    for names, offered in ((("residual",), True), (("typical",), True), (("coupled", "delta"), False)):
        assert (Feature.DRAFT_LAWS in features(rows=False, padding="off", rules=rulebook(names))) is offered


def test_limits_are_told_as_the_table_applies_them() -> None:
    """A KV budget too small for the context limit lowers the limit that devices see."""
    loaded = toy_loaded(kv_budget_bytes=400)
    assert loaded.description.limits.max_context_tokens == 100
