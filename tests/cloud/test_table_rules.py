"""What the session table makes of rules: which are served, what each excludes, and how a turn ends with its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from outrider.cloud.events import Outcome, Verified, Verify, Work, WorkFailed
from outrider.cloud.rules import EXACT, KNOWN, Audit, rulebook, runs_ahead, served_names
from outrider.netsim.world.toy import VOCABULARY, ToyEngine
from outrider.shared.anchor import EMPTY, extend
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import ConfigError, InvalidField
from outrider.shared.frames import (
    Cancel,
    Commit,
    FailureReason,
    Feature,
    FinishReason,
    Opened,
    Rule,
    RuleReport,
    Steer,
    TokenKind,
    TurnEnd,
    Verdict,
    Window,
)
from outrider.shared.laws import SparseLaw
from outrider.shared.rule_names import LOSSLESS, RUNS_AHEAD
from outrider.shared.sampling import Sampling
from tests.cloud.table_bench import FEATURES, PROMPT, SERVED, Bench, draft, ids_of, opening, turn

ALL = (*FEATURES, Feature.DRAFT_LAWS)
OPEN_TO_ALL = replace(SERVED, rules=KNOWN, features=ALL)
A, J, R, B = TokenKind.ACCEPTED, TokenKind.JUDGED, TokenKind.RECOVERED, TokenKind.BONUS
OVER = Rule("overaccept", (("epsilon", 0.25),))


class LenientEngine(ToyEngine):
    """Lets every drafted token through, as a lossy rule at its most lenient, and audits a quarter per position."""

    def run(self, works: Sequence[Work]) -> tuple[Outcome, ...]:
        """One pass; drafts are kept whole."""
        return tuple(self._judge(work) if isinstance(work, Verify) else self._one(work) for work in works)

    def _judge(self, work: Verify) -> Verified:
        kv = self.kv.setdefault(work.key, [])
        kv.extend(work.pending)
        kinds = []
        for token in work.draft.ids:
            kinds.append(A if self.target.next_id(kv, work.sampling) == token else J)
            kv.append(token)
        count = len(kinds)
        bonus = self.target.next_id(kv, work.sampling)
        audit = Audit(count, 0.0, 0.25 * count, 0.25 * count)
        return Verified(work.key, tuple(range(count)), bonus, kinds=(*kinds, B), audit=audit)


def sampled(*ids: int) -> Draft:
    """A chain drawn from laws of two ids each."""
    laws = (SparseLaw(1, (token, (token + 1) % VOCABULARY), (1, 1)) for token in ids)
    return Draft.chain(ids, DraftKind.SAMPLED, tuple(laws))


def tree_of(kind: DraftKind, ids: tuple[int, ...], parents: tuple[int, ...]) -> Draft:
    """A tree drawn from one law throughout."""
    law = SparseLaw(2, (7, 8, 9), (2, 1, 1))
    return Draft(ids, parents, kind, (law,) * len(set(parents)))


def judged_by(rule: Rule, **changes: Any) -> Bench:
    """A session under ``rule`` whose prompt is in the KV."""
    bench = Bench(OPEN_TO_ALL)
    bench.engine = LenientEngine(bench.target)
    bench.open(opening(turn=turn(sampling=Sampling(1.0), rule=rule), features=ALL, **changes))
    bench.take(Opened)
    bench.steps.clear()
    return bench


# ---------------------------------------------------------------------------------------------------- what is served


def test_an_operator_names_rules_one_by_one_or_in_groups() -> None:
    """Names come out in one order, whatever order they were given in; groups can be joined by names."""
    assert served_names(("coupled", "greedy")) == ("greedy", "coupled")
    assert served_names(("lossless",)) == EXACT.names
    assert served_names(("kl", "lossless")) == (*EXACT.names, "kl")
    assert served_names(("all",)) == KNOWN.names
    assert not any(rule.lossy for rule in EXACT.rules)
    for words, remedy in ((("gredy",), "greedy"), ((), ""), (("judge",), "--judge HEAD.json")):
        with pytest.raises(ConfigError, match="--rules") as refused:
            served_names(words)
        assert remedy in refused.value.remedy


def test_devices_know_the_rules_by_name() -> None:
    """What a device takes for exact, and for one under which the target goes on alone, is what the rules declare."""
    assert {rule.name for rule in KNOWN.rules if not rule.lossy} == LOSSLESS
    assert {rule.name for rule in KNOWN.rules if runs_ahead(rule)} == RUNS_AHEAD


@pytest.mark.parametrize("name", ["overaccept", "judge", "residual", "no such rule"])
def test_what_is_not_served_is_refused_with_the_rules_that_are(name: str) -> None:
    """Forbidden and unknown rules alike, before anything computes."""
    bench = Bench(replace(SERVED, rules=rulebook(served_names(("greedy", "coupled")))))
    bench.open(opening(turn=turn(rule=Rule(name))))
    failure = bench.failure()
    assert (failure.reason, failure.field) == (FailureReason.INVALID, "open.turn.rule.name")
    assert "greedy, coupled" in failure.remedy and not bench.steps


def test_lossy_rules_are_not_served_unless_the_operator_says_so() -> None:
    """The default book has every lossless rule and no other."""
    assert SERVED.rules is EXACT
    bench = Bench()
    bench.open(opening(turn=turn(rule=Rule("kl"))))
    assert bench.failure().field == "open.turn.rule.name"


@pytest.mark.parametrize(
    ("rule", "sampling", "field"),
    [
        (Rule("overaccept", (("epsilon", 2.0),)), Sampling(1.0), "rule.parameters"),
        (Rule("overaccept", (("delta", 0.5),)), Sampling(1.0), "rule.parameters"),
        (Rule("top-m", (("m", 1.5),)), Sampling(1.0), "rule.parameters"),
        (Rule("coupled", (("epsilon", 0.5),)), Sampling(1.0), "rule.parameters"),
        (Rule("greedy"), Sampling(0.5), "rule.name"),
    ],
)
def test_what_a_rule_cannot_mean_is_refused_by_field(rule: Rule, sampling: Sampling, field: str) -> None:
    """In an Open and in a later Turn."""
    bench = Bench(OPEN_TO_ALL)
    asked = turn(rule=rule, sampling=sampling)
    bench.open(opening(turn=asked, features=ALL))
    assert bench.failure().field == f"open.turn.{field}"
    bench.open(opening(features=ALL), stream=2)
    bench.up(replace(asked, turn=2), stream=2)
    assert bench.failure(2).field == f"turn.{field}"


# ------------------------------------------------------------------------------------------------- what rules exclude


@pytest.mark.parametrize("name", ["overaccept", "typical", "kl", "residual", "block", "traversal"])
def test_run_ahead_is_refused_under_lossy_rules_and_those_on_laws(name: str) -> None:
    """In an Open, a Steer and a Draft, by the field that asks for it; 0 is fine."""
    asked = turn(rule=Rule(name), sampling=Sampling(1.0))
    bench = Bench(OPEN_TO_ALL)
    bench.open(opening(turn=asked, features=ALL, window=Window(EMPTY, 9)))
    failure = bench.failure()
    assert (failure.reason, failure.field) == (FailureReason.INVALID, "open.window.run_ahead_until")
    assert name in failure.detail and not bench.table.sessions
    seen = Window(extend(EMPTY, PROMPT), 9)
    for number, frame, field in (
        (2, Steer(1, seen), "steer.window.run_ahead_until"),
        (3, draft(1, PROMPT, window=seen), "draft.window.run_ahead_until"),
    ):
        bench.open(opening(number, turn=asked, features=ALL), stream=number)
        assert number not in bench.ended
        bench.up(frame, stream=number)
        assert bench.failure(number).field == field


@pytest.mark.parametrize("name", ["coupled", "delta", "look"])
def test_rules_whose_tokens_are_the_targets_own_run_ahead(name: str) -> None:
    """Lossless on ids alone: the target goes on by itself."""
    bench = Bench()
    asked = turn(rule=Rule(name), sampling=Sampling(1.0))
    bench.open(opening(turn=asked, window=Window(EMPTY, len(PROMPT) + 2)))
    assert len(ids_of(bench.take(Commit))) == 2


def test_a_turn_may_change_the_rule_and_what_it_excludes() -> None:
    """Run-ahead granted to one turn is not carried into a lossy one."""
    bench = Bench(replace(OPEN_TO_ALL, features=FEATURES))
    bench.open(opening(window=Window(EMPTY, len(PROMPT) + 2)))
    text = PROMPT + ids_of(bench.take(Commit))
    after = turn(2, extend(EMPTY, text), (5,), rule=Rule("typical"), sampling=Sampling(1.0))
    bench.up(after)
    assert 1 not in bench.ended and bench.take(Commit) == []
    bench.up(Steer(2, Window(extend(EMPTY, (*text, 5)), 50)))
    assert bench.failure().field == "steer.window.run_ahead_until"


def test_rules_on_laws_need_the_feature_that_carries_them() -> None:
    """Without DRAFT_LAWS no draft could ever be judged: refused at once, and by name."""
    bench = Bench(OPEN_TO_ALL)
    bench.open(opening(turn=turn(rule=OVER, sampling=Sampling(1.0))))
    failure = bench.failure()
    assert failure.field == "open.turn.rule.name" and "DRAFT_LAWS" in failure.detail


def test_a_draft_the_rule_cannot_judge_is_refused_before_the_pass() -> None:
    """Chosen tokens under a rule that compares laws, in the first draft and in a later one."""
    first = draft(1, PROMPT, (7, 8), base=extend(EMPTY, PROMPT))
    bench = Bench(OPEN_TO_ALL)
    asked = turn(rule=OVER, sampling=Sampling(1.0))
    bench.open(opening(turn=asked, features=ALL, draft=first))
    assert bench.failure().field == "open.draft.kind"
    bench.open(opening(2, turn=asked, features=ALL), stream=2)
    bench.steps.clear()
    bench.up(draft(1, PROMPT, (7, 8)), stream=2)
    assert bench.failure(2).field == "draft.kind" and not bench.steps
    later = replace(draft(1, PROMPT, base=extend(EMPTY, PROMPT)), turn=2)
    bench.open(opening(3, turn=asked, features=ALL, draft=later), stream=3)
    assert bench.failure(3).field == "open.draft.turn"


@pytest.mark.parametrize(
    ("name", "drafted"),
    [
        ("residual", tree_of(DraftKind.DISTINCT, (7, 8), (0, 0))),
        ("block", tree_of(DraftKind.SAMPLED, (7, 7), (0, 0))),
        ("batch", tree_of(DraftKind.SAMPLED, (7, 8, 9), (0, 1, 1))),
        ("overaccept", tree_of(DraftKind.SAMPLED, (7, 8), (0, 0))),
        ("kl", tree_of(DraftKind.SAMPLED, (7, 8), (0, 0))),
    ],
)
def test_a_shape_the_rule_cannot_judge_is_refused_before_the_pass(name: str, drafted: Draft) -> None:
    """Drawn as it should be, but a tree where the rule judges chains; the session's KV is not lost over it."""
    bench = judged_by(Rule(name))
    bench.up(draft(1, PROMPT, draft=drafted))
    failure = bench.failure()
    assert failure.reason is FailureReason.INVALID
    assert failure.field == ("draft.kind" if drafted.kind is DraftKind.DISTINCT else "draft.parents")
    assert not bench.steps and not bench.evicted


def test_a_draft_that_only_the_rule_finds_fault_with_fails_its_stream_by_field() -> None:
    """A shape that is looked at in the pass: INVALID as everywhere, not a failure of the engine."""

    class Picky(LenientEngine):
        def _judge(self, work: Verify) -> Any:
            self.evict(work.key)
            return WorkFailed(work.key, "no", refused=InvalidField("draft.parents", "this is a tree"))

    bench = judged_by(OVER)
    bench.engine = Picky(bench.target)
    bench.up(draft(1, PROMPT, draft=sampled(7, 8)))
    failure = bench.failure()
    assert (failure.reason, failure.field) == (FailureReason.INVALID, "draft.parents")


# --------------------------------------------------------------------------------------------------- what rules leave


def test_judged_tokens_keep_their_kind_in_commits_and_in_the_log() -> None:
    """They count as accepted drafts, and a device that comes back is told which they were."""
    bench = judged_by(OVER)
    own = bench.alone(PROMPT, 1, Sampling(1.0))[0]
    bench.up(draft(1, PROMPT, draft=sampled(own, 7, 8)))
    verdict = bench.one(Verdict)
    assert verdict.commit is not None
    assert (verdict.accepted, verdict.commit.kinds) == (3, (A, J, J, B))
    bench.open(
        opening(2, turn=turn(sampling=Sampling(1.0), rule=OVER), features=ALL, have=extend(EMPTY, PROMPT)),
        stream=2,
    )
    assert [commit.kinds for commit in bench.take(Commit, 2)] == [(A, J, J, B)]


@pytest.mark.parametrize(("kind", "accepted"), [(R, 0), (J, 1), (A, 1)])
@pytest.mark.parametrize("drafted", [sampled(7, 8), Draft((7, 8, 9), (0, 0, 1))], ids=["chain", "tree"])
def test_what_the_rule_says_of_a_drafted_last_token_is_told(
    drafted: Draft, kind: TokenKind, accepted: int
) -> None:
    """A refused token that is drawn anew is RECOVERED, and one that a near tie gave back keeps its kind: the ids alone
    would make either of them ACCEPTED."""

    class Stubborn(LenientEngine):
        def _judge(self, work: Verify) -> Any:
            self.kv.setdefault(work.key, []).extend(work.pending)
            return Verified(work.key, (), work.draft.ids[0], kinds=(kind,))

    bench = judged_by(Rule("typical"))
    bench.engine = Stubborn(bench.target)
    bench.up(draft(1, PROMPT, draft=drafted))
    if kind is A and drafted.is_chain:  # what is left of a long chain goes into the next pass
        (commit,) = bench.take(Commit)
        assert (commit.ids, commit.kinds) == ((7,), (A,))
        return
    verdict = bench.one(Verdict)
    assert verdict.commit is not None and verdict.accepted == accepted
    assert (verdict.commit.ids, verdict.commit.kinds) == ((7,), (kind,))


def test_a_turn_ends_with_its_report() -> None:
    """Every parameter, sums over the rounds, whose laws they were; told again on resume, and new with the next turn."""
    bench = judged_by(OVER)
    bench.up(draft(1, PROMPT, draft=sampled(7, 8)))
    text = PROMPT + ids_of(bench.take(Verdict))
    bench.up(draft(2, text, draft=sampled(9)))
    text += ids_of(bench.take(Verdict))
    ending = turn(2, extend(EMPTY, text), (5,), sampling=Sampling(1.0), rule=OVER, max_length=len(text) + 3)
    bench.up(ending)
    assert bench.take(TurnEnd) == []
    bench.up(draft(3, (*text, 5), draft=sampled(1), turn=2))
    end = bench.one(TurnEnd)
    assert end.reason is FinishReason.LENGTH
    assert end.report == RuleReport(OVER, 1, 0.0, 0.25, 0.25, client_laws=True)
    assert end.report.gap == 0.0
    bench.open(opening(2, turn=ending, features=ALL, have=end.end), stream=2)
    assert bench.one(TurnEnd, 2) == end


def test_sums_run_over_a_turns_rounds() -> None:
    """Three positions in two rounds, then a cancelled turn."""
    bench = judged_by(Rule("overaccept"))
    bench.up(draft(1, PROMPT, draft=sampled(7, 8)))
    text = PROMPT + ids_of(bench.take(Verdict))
    bench.up(draft(2, text, draft=sampled(9)))
    bench.up(Cancel(1))
    report = bench.one(TurnEnd).report
    assert report == RuleReport(Rule("overaccept", (("epsilon", 0.1),)), 3, 0.0, 0.75, 0.75, client_laws=True)


def test_an_exact_turn_reports_its_rule_and_trusts_no_laws() -> None:
    """Greedy: the name alone."""
    bench = Bench()
    bench.open(opening(turn=turn(max_length=len(PROMPT) + 2)))
    bench.up(draft(1, PROMPT, (1, 2)))
    text = PROMPT + ids_of(bench.take(Verdict))
    bench.up(draft(2, text, (1,)))
    assert bench.one(TurnEnd).report == RuleReport(Rule("greedy"))
