"""The session machine under rules that compare laws: every draft drawn anew, sent whole, one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider.client.drafters.drawing import Drawn, draw
from outrider.client.events import Begin, Closed, Drafted, Finish, HangUp, Label, Propose, Report
from outrider.client.journal import restore
from outrider.client.plan import Plan
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import ConfigError, ExitCode, LinkDown, exit_code
from outrider.shared.frames import (
    UNLIMITED,
    DraftFrame,
    Feature,
    RoundOutcome,
    Rule,
    Steer,
    TokenKind,
    Turn,
    Verdict,
)
from outrider.shared.sampling import Sampling
from tests.client.machine_bench import ALL, PROMPT, MachineBench, verified

GRANTED = (Feature.TREES, Feature.STATE_ROWS, Feature.DRAFT_LAWS)
ENTRIES = (np.arange(40, 60), np.linspace(0.0, 1.0, 20))


class DrawBench(MachineBench):
    """A machine whose drafter draws from one law, everywhere."""

    def draft(self, action: Propose) -> None:
        """Drawn where that is asked for."""
        if action.budget.drawing is None:
            super().draft(action)
            return
        drawn = Drawn(action.budget, action.budget.drawing, self.sequence)
        self.handle(Drafted(action.base, draw(drawn, lambda node: ENTRIES)))


def online(rule: str = "residual", plan: Plan | None = None, **changes: Any) -> DrawBench:
    """A turn under a rule, attached; its first verdict is still to come."""
    bench = DrawBench(plan or Plan(4, 4, run_ahead=UNLIMITED, rounds=3, ahead=4), **changes)
    bench.begin(sampling=Sampling(1.0), rule=Rule(rule))
    bench.attach(features=GRANTED)
    return bench


def first(bench: DrawBench) -> Draft:
    """The first drawn draft: what follows the verdict on Open's empty one."""
    bench.down(verified(1, len(PROMPT), (70,), 0))
    return bench.frame(DraftFrame).draft


def test_open_asks_for_laws_and_brings_no_draft() -> None:
    """Laws are asked for, run-ahead is not allowed, and what cannot have been drawn is not sent."""
    bench = DrawBench(Plan(4, 4, run_ahead=UNLIMITED))
    bench.begin(sampling=Sampling(1.0), rule=Rule("residual"))
    frame = bench.attach(features=GRANTED)
    assert Feature.DRAFT_LAWS in frame.features and frame.window.run_ahead_until == 0
    assert frame.draft is not None and frame.draft.draft.ids == ()
    plain = MachineBench(Plan(4, 4))
    plain.begin(sampling=Sampling(1.0), rule=Rule("coupled"))
    assert Feature.DRAFT_LAWS not in plain.attach().features


def test_every_round_is_drawn_anew_and_sent_with_its_laws() -> None:
    """Drafts begin where the text ends, with laws; none is made or sent while a verdict is awaited."""
    bench = online()
    draft = first(bench)
    assert draft.kind is DraftKind.SAMPLED and len(draft.laws) == len(draft.ids) == 4
    assert not bench.take(Propose)[1:]
    bench.wait(0.05)
    assert not bench.frames(DraftFrame) and not bench.take(Propose) and not bench.frames(Steer)
    bench.down(verified(2, len(PROMPT) + 1, (*draft.ids[:2], 71), 2))
    after = bench.frame(DraftFrame)
    assert after.window.seen.length == len(PROMPT) + 4 and after.base is None
    assert after.window.run_ahead_until == 0 and len(after.draft.laws) == 4


def test_what_is_left_of_a_judged_draft_is_never_sent_again() -> None:
    """A verdict may say a refused token all the same; the tokens behind it were judged with it, and go."""
    bench = online("block")
    draft = first(bench)
    bench.down(verified(2, len(PROMPT) + 1, draft.ids[:2], 1))  # recovered: the very token that was refused
    again = bench.frame(DraftFrame).draft
    assert bench.machine.tail.start == len(PROMPT) + 3
    assert again.ids != draft.ids[2:] and len(again.laws) == len(again.ids) == 4


def test_no_two_drafts_have_the_same_coins() -> None:
    """Every proposal has a key of its own; two machines have none in common."""
    keys = []
    for _ in range(2):
        bench = online()
        draft = first(bench)
        for number in range(2, 6):
            start = len(bench.machine.sequence)
            bench.down(verified(number, start, (*draft.ids[:1], 70), 1))
            draft = bench.frame(DraftFrame).draft
        keys += [action.budget.drawing.key for action in bench.take(Propose) if action.budget.drawing]
    assert len(keys) == len(set(keys)) == 10
    fixed = [first(online(draft_secret=b"1" * 32)) for _ in range(2)]
    assert fixed[0] == fixed[1]


@pytest.mark.parametrize(
    ("rule", "kind"),
    [("multidraft", DraftKind.DISTINCT), ("batch", DraftKind.SAMPLED), ("traversal", DraftKind.DISTINCT)],
)
def test_tree_rules_get_trees(rule: str, kind: DraftKind) -> None:
    """Of the kind the rule judges, within the verifier's limits; chains where trees were not granted."""
    draft = first(online(rule, Plan(3, 12, tree=True)))
    assert draft.kind is kind and draft.has_siblings and len(draft) == 12
    bench = DrawBench(Plan(3, 12, tree=True))
    bench.begin(sampling=Sampling(1.0), rule=Rule(rule))
    bench.attach(features=(Feature.DRAFT_LAWS,))
    assert first(bench).is_chain


def test_a_verdict_may_follow_either_of_two_equal_siblings() -> None:
    """Independent draws may be equal: the accepted path is one through any of them."""
    bench = online("batch", Plan(3, 12, tree=True))
    draft = first(bench)
    below = {draft.ids[node]: draft.children(node + 1)[0] for node in draft.children(0)}
    token, child = list(below.items())[-1]
    bench.down(verified(2, len(PROMPT) + 1, (token, draft.ids[child], 70), 2))
    assert bench.text()[1:] == (token, draft.ids[child], 70)


def test_text_drafted_alone_is_shown_and_then_drafted_anew() -> None:
    """During an outage text goes on, provisional; no verdict is asked on it, and what differs is taken back."""
    bench = online()
    first(bench)
    bench.handle(Closed(1, LinkDown("gone")))
    bench.wait(0.3)
    shown = bench.text(Label.PROVISIONAL)
    assert len(shown) > 4
    bench.wait(3.0)
    opened = bench.attach(features=GRANTED)
    assert opened.draft is not None and opened.draft.draft.ids == ()
    assert any("residual judges drawn drafts only" in report.note for report in bench.take(Report))
    assert bench.text(Label.PROVISIONAL)[: len(shown)] == shown
    number = opened.draft.round
    bench.down(verified(number, len(bench.machine.sequence), (shown[0],), 0))
    assert bench.text() == (70, shown[0]) and not bench.text(Label.PROVISIONAL)
    assert bench.frame(DraftFrame).draft.kind is DraftKind.SAMPLED


def test_a_drafter_that_chooses_is_refused_early() -> None:
    """Nothing biased is sent: the turn ends with what is wrong, as for any wrong setting."""
    bench = MachineBench(Plan(4, 4))
    bench.begin(sampling=Sampling(1.0), rule=Rule("residual"))
    bench.attach(features=GRANTED)
    bench.frames(DraftFrame)
    bench.down(verified(1, len(PROMPT), (70,), 0))
    (finish,) = bench.take(Finish)
    assert isinstance(finish.error, ConfigError) and exit_code(finish.error) == ExitCode.CONFIG
    assert "residual" in str(finish.error) and not bench.frames(DraftFrame) and bench.take(HangUp)


def test_a_turn_of_another_rule_opens_another_stream() -> None:
    """What a stream may do is agreed when it opens: one without laws does not do for a turn that needs them."""
    bench = MachineBench(Plan(4, 4))
    bench.begin(sampling=Sampling(1.0), rule=Rule("coupled"), max_new=1)
    bench.attach(features=ALL)
    bench.down(bench.commit(66))
    bench.handle(Begin(6, (5,), 10, (0,), Sampling(1.0), Rule("residual")))
    opened = bench.attach(features=GRANTED)
    assert opened.turn.rule == Rule("residual") and Feature.DRAFT_LAWS in opened.features
    assert not bench.frames(Turn) and len(bench.take(HangUp)) == 1


def test_a_busy_verifier_gets_another_draw() -> None:
    """A round that was not judged is no loss: the next draft is drawn anew."""
    bench = online()
    draft = first(bench)
    bench.down(Verdict(2, RoundOutcome.BUSY, retry_after_ms=10))
    bench.wait(0.05)
    again = bench.frame(DraftFrame).draft
    assert again != draft and len(again.laws) == 4


def test_lossy_rules_by_ids_alone_wait_for_their_verdicts() -> None:
    """No run-ahead and one round at a time, but drafts are chosen as ever; judged tokens are shown as such."""
    bench = MachineBench(Plan(4, 4, run_ahead=UNLIMITED, rounds=3))
    bench.begin(sampling=Sampling(1.0), rule=Rule("typical"))
    opened = bench.attach(features=ALL)
    assert opened.window.run_ahead_until == 0 and Feature.DRAFT_LAWS not in opened.features
    kinds = (TokenKind.ACCEPTED, TokenKind.JUDGED, TokenKind.RECOVERED)
    verdict = verified(1, len(PROMPT), (66, 67, 5), 2)
    assert verdict.commit is not None
    object.__setattr__(verdict.commit, "kinds", kinds)
    bench.down(verdict)
    assert bench.text(Label.JUDGED) == (67,)


def test_a_resumed_turn_keeps_its_rule() -> None:
    """The journal says by which rule and parameters the turn is judged, and the next life asks for laws again."""
    bench = DrawBench(Plan(4, 4))
    rule = Rule("overaccept", (("epsilon", 0.25),))
    bench.begin(sampling=Sampling(1.0), rule=rule)
    records = [action.record for action in bench.actions if hasattr(action, "record")]
    again = DrawBench(Plan(4, 4), restored=restore(records))
    again.wait(0.0)
    frame = again.attach(features=GRANTED)
    assert frame.turn.rule == rule and Feature.DRAFT_LAWS in frame.features
