"""Drafts that bring their laws, through the table: what the engine is given, and what the rule excludes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider.cloud.events import Verify
from outrider.cloud.rounds import FIRST_WINDOW, bound, digest, fit, question
from outrider.cloud.rules import KNOWN, Decision, Nodes
from outrider.shared.anchor import EMPTY, TokenSequence, extend
from outrider.shared.coins import Coins, question_key, turn_key
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
from outrider.shared.sampling import Sampling, law
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


def key_of(drafted: Draft, prompt: tuple[int, ...] = PROMPT, **changes: Any) -> bytes:
    """The key under which a new table with the same secret judges a session's first round."""
    bench = Bench(SECRET)
    made: dict[str, Any] = {"sampling": Sampling(1.0), "rule": Rule("residual"), "ids": prompt} | changes
    bench.open(opening(turn=turn(**made), features=WITH_LAWS))
    bench.up(draft(1, prompt, draft=drafted))
    return verified(bench)[-1].coin_key


def test_whatever_differs_is_judged_with_other_coins() -> None:
    """A device that replays a session with another draft, text, sampling or rule has learned nothing of these coins;
    one that asks the same again, elsewhere, is answered with the same."""
    fewer = replace(LAW, counts=(63, 65, 64, 64))
    keys = [
        key_of(chain(1, 2)),
        key_of(chain(1, 3)),
        key_of(chain(1)),
        key_of(Draft.chain((1, 2), SAMPLED, (LAW, fewer))),
        key_of(Draft((1, 2), (0, 0), DISTINCT, (LAW,)), rule=Rule("multidraft")),
        key_of(Draft((1, 2), (0, 0), SAMPLED, (LAW,)), rule=Rule("multidraft")),
        key_of(chain(1, 2), rule=Rule("block")),
        key_of(chain(1, 2), sampling=Sampling(1.0, seed=1)),
        key_of(chain(1, 2), sampling=Sampling(1.5)),
        key_of(chain(1, 2), prompt=(*PROMPT[:-1], PROMPT[-1] + 1)),
        key_of(chain(1, 2), stop_ids=(96,)),
        key_of(chain(1, 2), generated_from=1),
    ]
    assert len(set(keys)) == len(keys)
    assert key_of(chain(1, 2)) == keys[0]


def test_a_draft_made_of_an_earlier_verdict_is_accepted_no_more_often() -> None:
    """A device asks `look` for the target's draw, begins again, and drafts that token: it stands as often as any other.

    With coins of the turn alone it would always stand. 600 turns; five standard errors are 0.1.
    """
    rule, sampling = KNOWN.named("look"), Sampling(1.0)
    logits = np.tile(np.asarray([0.5, 0.1, 0.0, -0.3]), (2, 1))
    share = float(np.sum(law(logits[0], sampling) ** 2))

    def ask(turns: int, drafted: Draft) -> Decision:
        asked = question(turn(turns, sampling=sampling), extend(EMPTY, PROMPT), (), drafted)
        coins = Coins(question_key(turn_key(b"secret", b"session", turns), asked))
        return rule(Nodes(drafted, logits[: 1 + len(drafted)], sampling, len(PROMPT), coins=coins))

    stood = 0
    for turns in range(1, 601):
        learned = ask(turns, Draft.chain(())).next_id
        assert ask(turns, Draft.chain(())).next_id == learned
        stood += len(ask(turns, Draft.chain((learned,))).path)
    assert abs(stood / 600 - share) < 0.1 < 1.0 - share


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
