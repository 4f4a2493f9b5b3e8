"""The device's side of a rule: what it lets a verifier do under it, and what it tells of the report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.client.answers import Answer, Finished
from outrider.client.events import Audited, Begin, Emit, Finish, Label, Propose
from outrider.client.plan import Plan
from outrider.client.report import as_json, lines
from outrider.client.rules import asked_rule, rule_lines
from outrider.shared.errors import ConfigError
from outrider.shared.frames import (
    UNLIMITED,
    Commit,
    FinishReason,
    Open,
    RoundOutcome,
    Rule,
    RuleReport,
    TokenKind,
    TurnEnd,
    Verdict,
)
from outrider.shared.sampling import Sampling
from outrider.shared.tokenizer import Tokenizer
from tests.client.machine_bench import PROMPT, MachineBench
from tests.tiny import write_tokenizer

A, J, B = TokenKind.ACCEPTED, TokenKind.JUDGED, TokenKind.BONUS
WARM = Sampling(1.0)
OVER = Rule("overaccept", (("epsilon", 0.1),))
JUDGE = Rule("judge", (("delta", 0.7),))


def online(rule: Rule, max_new: int = 100, plan: Plan | None = None) -> MachineBench:
    """A turn under ``rule`` whose first draft, 66 67 68 69, is on its way."""
    bench = MachineBench(plan)
    bench.begin(rule=rule, sampling=WARM, max_new=max_new)
    bench.attach()
    return bench


def judged(number: int = 1) -> Verdict:
    """The draft's first three tokens, one of them judged, and a token of the target's own."""
    commit = Commit(1, 5, (66, 67, 68, 3), (A, J, A, TokenKind.RECOVERED))
    return Verdict(number, RoundOutcome.VERIFIED, commit, accepted=3)


@pytest.mark.parametrize(
    ("name", "blind"),
    [("coupled", False), ("judge", False), ("typical", False), ("look", True), ("delta", True)],
)
def test_drafts_guess_the_targets_draws_only_where_its_coins_are_shared(name: str, blind: bool) -> None:
    """Elsewhere its likeliest tokens, under the same penalties; what is written alone is drawn as the turn asks."""
    sampling = Sampling(1.0, seed=5, presence_penalty=0.5)
    bench = MachineBench()
    bench.begin(rule=Rule(name), sampling=sampling, max_new=100)
    bench.attach()
    asked = [action.budget for action in bench.take(Propose)]
    guessed = replace(sampling, temperature=0.0) if blind else sampling
    assert asked and {budget.sampling for budget in asked if budget.alone_from is None} == {guessed}
    bench.wait(10)
    alone = [action.budget for action in bench.take(Propose) if action.budget.alone_from is not None]
    assert alone and {budget.sampling for budget in alone} == {sampling}


@pytest.mark.parametrize("name", ["coupled", "look", "delta"])
def test_a_judged_token_under_an_exact_rule_is_a_lie(name: str) -> None:
    """The stream is given up; nothing of the commit is taken."""
    bench = online(Rule(name))
    bench.down(judged())
    assert bench.machine.violations == 1 and len(bench.machine.sequence) == len(PROMPT)


def test_a_judged_token_under_a_lossy_rule_counts_as_accepted_and_is_labelled() -> None:
    """It is on a path of the draft like any accepted one, and the caller sees which it was."""
    bench = online(JUDGE)
    bench.down(judged())
    assert bench.machine.violations == 0
    assert bench.text(Label.JUDGED) == (67,) and bench.text(Label.ACCEPTED) == (66, 68)
    bench = online(JUDGE)
    bench.down(replace(judged(), accepted=2))
    assert bench.machine.violations == 1


@pytest.mark.parametrize(
    ("name", "asks"), [("coupled", True), ("delta", True), ("judge", False), ("residual", False)]
)
def test_run_ahead_is_asked_for_only_under_rules_that_have_it(name: str, asks: bool) -> None:
    """Whatever the plan would like: under lossy rules and those on laws the verifier would refuse."""
    bench = MachineBench(Plan(0, 0, run_ahead=UNLIMITED))
    bench.begin(rule=Rule(name), sampling=WARM)
    opened: Open = bench.attach()
    assert opened.turn.rule.name == name
    assert bool(opened.window.run_ahead_until) is asks


def test_a_report_on_another_rule_is_a_violation() -> None:
    """Another name, or other parameters than were asked for; more of them is what it is for."""
    for rule, wrong in (
        (JUDGE, 0),
        (Rule("judge", (("delta", 0.7), ("floor", 1e-4))), 0),
        (Rule("judge", (("delta", 0.6),)), 1),
        (Rule("judge"), 1),
        (Rule("coupled"), 1),
    ):
        bench = online(JUDGE)
        end = TurnEnd(1, FinishReason.CANCELLED, bench.machine.sequence.anchor, RuleReport(rule))
        bench.down(end)
        assert bench.machine.violations == wrong
        assert len(bench.take(Audited)) == 1 - wrong


def test_the_report_is_taken_although_the_text_has_ended_by_itself() -> None:
    """The device sees a full text before the verifier says so; the word that follows brings the report."""
    bench = online(JUDGE, max_new=4)
    bench.down(judged())
    assert bench.take(Finish) == [Finish("length", True)]
    report = RuleReport(JUDGE, 3, 0.5, 0.25, 0.75, client_laws=True)
    bench.down(TurnEnd(1, FinishReason.LENGTH, bench.machine.sequence.anchor, report))
    assert bench.take(Audited) == [Audited(report)] and bench.machine.violations == 0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The tiny byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.from_folder(folder)


def answer(tokenizer: Tokenizer, rule: Rule) -> Answer:
    """An answer of two tokens, one of them judged, that is complete but for its end."""
    made = Answer(tokenizer, 0, (), 0.0, rule)
    made.take(Emit(0, (40, 41), (Label.ACCEPTED, Label.JUDGED)), 0.0)
    return made


def told(made: Answer) -> list[Finished]:
    """Whether the caller knows that it is complete."""
    events = [made.queue.get_nowait() for _ in range(made.queue.qsize())]
    return [event for event in events if isinstance(event, Finished)]


def test_under_a_lossy_rule_the_answer_ends_with_its_report(tokenizer: Tokenizer) -> None:
    """It is held back until then, but not for ever, and not at all where there is nothing to tell."""
    report = RuleReport(OVER, 3, 0.5, 0.25, 0.75)
    made = answer(tokenizer, OVER)
    made.take(Finish("length", True), 1.0)
    assert told(made) == []
    made.take(Audited(report), 1.1)
    (finished,) = told(made)
    assert (finished.reason, finished.report) == ("length", report)
    made = answer(tokenizer, OVER)
    made.take(Finish("length", True), 1.0)
    made.give_up(3.0)
    assert [finished.report for finished in told(made)] == [None]
    made.give_up(4.0)
    assert told(made) == []
    for rule, finish in (
        (Rule("coupled"), Finish("length", True)),
        (OVER, Finish("offline", False)),
    ):
        made = answer(tokenizer, rule)
        made.take(finish, 1.0)
        assert [finished.report for finished in told(made)] == [None]


def test_figures_say_the_rule_its_price_and_whose_laws_were_trusted(tokenizer: Tokenizer) -> None:
    """As JSON and for people; an exact rule is named in the JSON alone."""
    made = answer(tokenizer, OVER)
    made.take(Audited(RuleReport(OVER, 4, 1.0, 0.5, 1.25, client_laws=True)), 0.5)
    made.take(Finish("length", True), 1.0)
    (finished,) = told(made)
    rule = as_json(finished, made.transcript)["rule"]
    audit = {"positions": 4, "rejection": 1.0, "loss": 0.5, "tv": 1.25, "gap": 0.25}
    assert rule == {
        "name": "overaccept",
        "parameters": {"epsilon": 0.1},
        "audit": audit,
        "client_laws": True,
    }
    text = "\n".join(lines(finished))
    assert "rule overaccept (epsilon 0.1), 1 tokens judged" in text
    assert "= +0.250 over 4 drafted tokens" in text and "this device supplied" in text
    assert "no report" in "\n".join(rule_lines(OVER, 0, None))
    made = answer(tokenizer, Rule("greedy"))
    made.take(Finish("length", True), 1.0)
    (finished,) = told(made)
    assert as_json(finished, made.transcript)["rule"] == {
        "name": "greedy",
        "parameters": {},
        "audit": None,
        "client_laws": None,
    }
    assert "rule" not in "\n".join(lines(finished))


def test_a_rule_is_asked_for_as_name_and_parameters() -> None:
    """auto goes by temperature; anything that is no NAME[:PARAMETER=VALUE,…] is refused by the option's name."""
    assert asked_rule("auto", Sampling()) == Rule("greedy")
    assert asked_rule("auto", WARM) == Rule("coupled")
    assert asked_rule("judge", WARM) == Rule("judge")
    assert asked_rule("judge:delta=0.7, floor=1e-3", WARM) == Rule("judge", (("delta", 0.7), ("floor", 1e-3)))
    for wrong in ("", ":delta=1", "judge:", "judge:delta", "judge:delta=much", "judge:delta=1,delta=2"):
        with pytest.raises(ConfigError, match="--rule"):
            asked_rule(wrong, WARM)


def test_a_turn_begins_under_the_rule_it_was_given() -> None:
    """And keeps it when text that was drafted alone is adopted."""
    bench = MachineBench()
    bench.handle(Begin(0, PROMPT, 10, (0,), WARM, OVER))
    assert bench.machine.turn is not None and bench.machine.turn.rule == OVER
