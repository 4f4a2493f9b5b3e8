"""Drafts that bring their laws, through the table: what the engine is given, and what the rule excludes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outrider.cloud.events import Verify
from outrider.cloud.rounds import FIRST_WINDOW, bound, digest, fit
from outrider.shared.anchor import EMPTY, TokenSequence, extend
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.frames import (
    DraftFrame,
    FailureReason,
    Feature,
    Opened,
    RoundOutcome,
    Rule,
    Steer,
    Verdict,
    Window,
)
from outrider.shared.laws import SparseLaw
from outrider.shared.sampling import Sampling
from tests.cloud.table_bench import FEATURES, PROMPT, SERVED, Bench, draft, opening, turn

WITH_LAWS = (*FEATURES, Feature.DRAFT_LAWS)
SECRET = replace(SERVED, features=WITH_LAWS, coin_secret=b"secret")
SAMPLED, DISTINCT = DraftKind.SAMPLED, DraftKind.DISTINCT
LAW = SparseLaw(8, (1, 2, 3, 4), (64, 64, 64, 64))


def chain(*ids: int) -> Draft:
    """A drawn chain."""
    return Draft.chain(ids, SAMPLED, (LAW,) * len(ids))


def opened(rule: str = "residual", features: tuple[Feature, ...] = WITH_LAWS, **changes: Any) -> Bench:
    """A session whose turn is judged by ``rule``."""
    bench = Bench(SECRET)
    asked = turn(sampling=Sampling(1.0), rule=Rule(rule), **changes)
    bench.open(opening(turn=asked, features=features))
    return bench


def verified(bench: Bench) -> list[Verify]:
    """The drafts the engine was given so far."""
    works = [work for step in bench.steps for work in step.works]
    return [work for work in works if isinstance(work, Verify) and len(work.draft)]


def test_laws_exclude_run_ahead_and_pipelining() -> None:
    """A device that asks for all three is granted laws alone, and one round at a time."""
    bench = opened()
    granted = bench.one(Opened).features
    assert Feature.DRAFT_LAWS in granted and Feature.TREES in granted
    assert not {Feature.RUN_AHEAD, Feature.PIPELINE} & set(granted)
    bench.hold = True
    bench.up(draft(1, PROMPT, draft=chain(1, 2)))
    bench.up(draft(2, PROMPT, draft=chain(1, 2)))
    failure = bench.failure()
    assert (failure.reason, failure.field) == (FailureReason.INVALID, "draft.round")


@pytest.mark.parametrize("rule", ["delta", "look"])
def test_rules_on_ids_alone_keep_both(rule: str) -> None:
    """Their drafts need not wait for one another."""
    bench = opened(rule, FEATURES)
    assert {Feature.RUN_AHEAD, Feature.PIPELINE} <= set(bench.one(Opened).features)
    bench.up(Steer(1, Window(extend(EMPTY, PROMPT), 8)))
    assert not bench.ended


def test_a_chosen_draft_under_a_ratio_rule_is_refused_on_arrival() -> None:
    """Before any pass, with the reason it would be biased."""
    bench = opened()
    bench.up(draft(1, PROMPT, (1, 2)))
    failure = bench.failure()
    assert (failure.reason, failure.field) == (FailureReason.INVALID, "draft.kind")
    assert "chosen, not drawn" in failure.detail
    assert verified(bench) == []


def test_the_engine_gets_laws_kind_and_a_key_of_its_own_for_every_turn() -> None:
    """As they came; the key is the same on any table with the secret, and of that session and turn only."""
    keys = set()
    for principal, number in (("p", 1), ("p", 2), ("q", 1), ("p", 1)):
        bench = Bench(SECRET)
        asked = turn(number, sampling=Sampling(1.0), rule=Rule("residual"))
        bench.open(opening(turn=asked, features=WITH_LAWS), principal=principal)
        bench.up(draft(1, PROMPT, draft=chain(1, 2), turn=number))
        (work,) = verified(bench)
        assert work.draft == chain(1, 2)
        keys.add(work.coin_key)
    assert len(keys) == 3 and all(len(key) == 32 for key in keys)
    assert b"secret" not in repr(SECRET).encode()
    assert SERVED.coin_secret != replace(SERVED, coin_secret=b"other").coin_secret


def test_a_drawn_draft_that_does_not_begin_at_the_end_of_the_log_is_superseded() -> None:
    """Its head may have met the coins already: trimming it would leave draws that are not free of them."""
    bench = opened()
    bench.up(draft(1, PROMPT))
    first = bench.one(Verdict)
    assert first.commit is not None
    log, base = TokenSequence((*PROMPT, *first.commit.ids)), extend(EMPTY, PROMPT)
    held = Draft.chain((*first.commit.ids, 1))
    fitted = fit(held, base, log)
    assert fitted is not None and fitted.draft.ids == (1,)
    assert fit(replace(held, kind=SAMPLED), base, log) is None
    bench.up(DraftFrame(2, 1, Window(base), chain(1, 2)))
    assert bench.one(Verdict).outcome is RoundOutcome.SUPERSEDED


def test_a_part_of_a_drawn_draft_keeps_its_laws() -> None:
    """Cut at a depth, behind a stop id, or into windows of a long chain: kind and laws stay with their rows."""
    tree = Draft((1, 2, 3, 4, 1), (0, 0, 1, 1, 3), DISTINCT, (LAW, LAW, LAW))
    assert bound(tree, 9, ()) == tree
    assert bound(tree, 2, ()) == Draft((1, 2, 3, 4), (0, 0, 1, 1), DISTINCT, (LAW, LAW))
    assert bound(tree, 9, (1,)) == Draft((1, 2), (0, 0), DISTINCT, (LAW,))
    assert bound(chain(1, 2, 3), 2, ()) == chain(1, 2)
    assert bound(chain(1, 2, 3), 9, (2,)) == chain(1, 2)
    bench = opened()
    long = chain(*(1 + n % 4 for n in range(FIRST_WINDOW + 5)))
    bench.up(draft(1, PROMPT, draft=long))
    assert verified(bench)[0].draft == long.only(range(FIRST_WINDOW))


def test_kind_and_laws_belong_to_a_rounds_identity() -> None:
    """The same ids drawn from another law, or another way, are another draft."""
    frames = [
        draft(1, PROMPT, draft=made)
        for made in (
            chain(1, 2),
            Draft.chain((1, 2)),
            replace(chain(1, 2), kind=DISTINCT),
            Draft.chain((1, 2), SAMPLED, (LAW, SparseLaw(8, (1, 2, 3, 4), (63, 65, 64, 64)))),
        )
    ]
    assert len({digest(frame) for frame in frames}) == len(frames)
    assert digest(frames[0]) == digest(draft(1, PROMPT, draft=chain(1, 2)))
