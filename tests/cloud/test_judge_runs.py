"""Comparing: lossless rounds give the target's text, the criterion only adds to it, controls match, sums are right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outrider.cloud.judge import controls
from outrider.cloud.judge.evaluate import Answered, answer_all, findings, summary
from outrider.cloud.judge.families import Split
from outrider.cloud.judge.features import CandidateStates, States
from outrider.cloud.judge.head import JudgeHead, Position
from outrider.cloud.judge.measures import Measures, unknown
from outrider.cloud.judge.passes import Feed, Line, Rows, Seen, together
from outrider.cloud.judge.runs import Candidate, Criterion, Run, RunSetting, rounds
from outrider.cloud.judge.select import Tried, attempt, choose
from outrider.cloud.judge.tables import comparison_table
from outrider.cloud.rules.judge import Judge
from outrider.cloud.rules.nodes import Nodes
from outrider.shared.draft import Draft
from outrider.shared.frames import TokenKind
from outrider.shared.sampling import Sampling
from tests.scripted_target import (
    END,
    FAMILY,
    WORDS,
    Next,
    ScriptedDrafter,
    ScriptedPasses,
    WordText,
    make_task,
)

PROMPT = [100, 101]
SETTING = RunSetting(tokens=12, depth=4, stops=frozenset({END}), kept_out=frozenset({END}))


def hashed(seed: int, ends: float = 0.1) -> Next:
    """Some next id for every text."""

    def script(text: tuple[int, ...]) -> int:
        rng = np.random.default_rng((seed, *text))
        return END if rng.random() < ends else int(rng.integers(1, len(WORDS)))

    return script


def sometimes(one: Next, other: Next, share: float) -> Next:
    """``one``, but in a share of the texts ``other``."""
    return lambda text: (other if np.random.default_rng((9, *text)).random() < share else one)(text)


def run(target: Next, draft: Next | None, criterion: Criterion | None, setting: RunSetting = SETTING) -> Run:
    """One answer by rounds."""
    passes = ScriptedPasses(target)
    propose = None if draft is None else ScriptedDrafter(draft).propose
    (found,) = together([rounds(0, Line(0), PROMPT, passes, propose, criterion, setting)], passes, 1)
    return found


@given(st.integers(0, 400), st.sampled_from([0.0, 0.2, 0.6, 1.0]))
@settings(max_examples=40)
def test_lossless_rounds_give_the_targets_text_under_any_drafter(seed: int, wrong: float) -> None:
    """Good, bad and useless drafters change how many passes it takes, not what is said."""
    target = hashed(seed)
    alone = run(target, None, None)
    drafted = run(target, sometimes(target, hashed(seed + 1), wrong), None)
    assert drafted.tokens == alone.tokens and drafted.judged == 0
    assert drafted.nats == pytest.approx(alone.nats) and alone.rounds == alone.later
    assert drafted.rounds <= alone.rounds
    if wrong == 0.0:
        assert drafted.rounds == -(-alone.later // (SETTING.depth + 1))


def test_a_criterion_that_keeps_everything_gives_the_drafters_text_between_the_targets_tokens() -> None:
    """Each round is four drafted tokens and one of the target's; ends of text are never kept."""
    target, draft = hashed(1, ends=0.0), hashed(2, ends=0.0)
    found = run(target, draft, lambda at: True)
    text = list(PROMPT)
    text.append(target(tuple(text)))
    while len(text) < len(PROMPT) + SETTING.tokens:
        for _ in range(SETTING.depth):
            text.append(draft(tuple(text)))
        text.append(target(tuple(text)))
    assert found.tokens == text[len(PROMPT) :][: SETTING.tokens]
    assert run(target, lambda text: END, lambda at: True).tokens == run(target, None, None).tokens


def test_vetoes_hold_whatever_the_criterion_says() -> None:
    """Below the floor nothing is kept; beyond the cap nothing more is in one round."""
    target, draft = hashed(1, ends=0.0), hashed(2, ends=0.0)
    lossless = run(target, None, None).tokens
    strict = RunSetting(tokens=12, depth=4, stops=SETTING.stops, kept_out=SETTING.kept_out, floor=0.5)
    assert run(target, draft, lambda at: True, strict).tokens == lossless
    capped = RunSetting(tokens=12, depth=4, stops=SETTING.stops, kept_out=SETTING.kept_out, cap=0)
    assert run(target, draft, lambda at: True, capped).tokens == lossless
    one = RunSetting(tokens=12, depth=4, stops=SETTING.stops, kept_out=SETTING.kept_out, cap=1)
    found = run(target, draft, lambda at: True, one)
    assert 0 < found.judged <= found.rounds + found.later // 2


class OneRound:
    """`Passes` of one round that is given; whatever follows is the end of the text, beyond any judge's floor."""

    def __init__(self, seen: Seen) -> None:
        begun = np.eye(8, dtype=np.float32)[[1]]
        self.answers = [Seen(begun, seen.prenorm[:1], seen.postnorm[:1]), seen]

    def look(self, feeds: Sequence[Feed]) -> list[Seen]:
        """The next answer."""
        if self.answers:
            return [self.answers.pop(0)]
        rows = len(feeds[0].draft) + 1
        ends = np.zeros((rows, 8), np.float32)
        ends[:, END] = 50.0
        return [Seen(ends, np.zeros((rows, 3), np.float32), np.zeros((rows, 3), np.float32))]

    def logits(self, states: States) -> NDArray[np.float32]:
        """Never asked."""
        raise NotImplementedError

    def rows(self, key: int, start: int, stop: int) -> Rows:
        """None."""
        return []

    def forget(self, key: int) -> None:
        """Nothing is kept."""


@given(st.integers(0, 500), st.sampled_from(list(Position)))
@settings(max_examples=40)
def test_rounds_judge_as_the_served_rule_does(seed: int, position: Position) -> None:
    """On the same logits, states and chain, the rule accepts the tokens that a round here keeps, of the same kinds."""
    rng = np.random.default_rng(seed)
    depth = 4
    pre, post = rng.normal(size=(2, depth + 1, 3)).astype(np.float32)
    seen = Seen(rng.normal(0, 2, (depth + 1, 8)).astype(np.float32), pre, post)
    seen.logits[:, END] = -9.0
    best = seen.logits[:depth].argmax(axis=1)
    chain = tuple(int(b if rng.random() < 0.5 else rng.integers(1, 8)) for b in best)
    head = JudgeHead(
        weight=rng.normal(size=3),
        bias=0.5,
        delta=0.5,
        target="ab" * 32,
        validation_auc=0.5,
        data_hash="ab" * 32,
        class_weight=1.0,
        c=1.0,
        position=position,
    )
    nodes = Nodes(
        draft=Draft.chain(chain), logits=seen.logits, sampling=Sampling(), length=9, states=seen.prenorm
    )
    decision = Judge(head, frozenset({END}))(nodes)
    passes = OneRound(seen)
    judge = controls.judge_criterion(head)
    drafted = chain[:depth], (0.5,) * depth, unknown
    script = rounds(0, Line(0), PROMPT, passes, lambda *_: drafted, judge, SETTING)
    (found,) = together([script], passes, 1)
    assert found.tokens == [1, *(chain[node] for node in decision.path), decision.next_id, END]
    assert found.judged == decision.kinds.count(TokenKind.JUDGED)


# ------------------------------------------------------------------------------------------------------------ controls


def candidate(index: int, probability: float, rank: int, entropy: float = 1.0, kl: float = 1.0) -> Candidate:
    """One whose state is its probability."""
    own = States(np.array([probability], np.float32), np.zeros(1, np.float32))
    return Candidate(index, 1, 5, CandidateStates(own, own), Measures(probability, rank, entropy, 0.4, kl))


def test_controls_keep_the_judges_share_of_the_validation_candidates() -> None:
    """Each threshold keeps exactly as many as the judge does, ties of the rank included."""
    rng = np.random.default_rng(6)
    found = [
        candidate(i, float(p), int(r), float(e), float(k))
        for i, (p, r, e, k) in enumerate(
            zip(rng.random(200), rng.integers(1, 4, 200), rng.random(200), rng.random(200), strict=True)
        )
    ]

    def judge(at: Candidate) -> bool:
        return at.index % 3 == 0

    matched = controls.match(judge, found, seed=1)
    assert matched.share == pytest.approx(67 / 200) and matched.candidates == 200
    kept = {
        name: sum(criterion(one) for one in found)
        for name, criterion in controls.criteria(judge, matched, 1).items()
    }
    assert set(kept) == {"judge", "random", "probability", "rank", "entropy", "kl", "epsilon"}
    assert set(kept.values()) == {67}
    nothing = controls.match(lambda at: False, found, seed=1)
    assert not any(
        criterion(one)
        for criterion in controls.criteria(judge, nothing, 1).values()
        for one in found
        if one.index % 3
    )
    with pytest.raises(ValueError, match="no candidates"):
        controls.match(judge, [], 1)


def test_the_random_control_is_fixed_by_seed_and_place_and_looks_uniform() -> None:
    """Same numbers again; the mean of 4,000 is within 4.5 standard errors of one half."""
    coins = [controls.coin(1, index, 3) for index in range(4000)]
    assert coins == [controls.coin(1, index, 3) for index in range(4000)]
    assert controls.coin(1, 0, 3) != controls.coin(2, 0, 3) != controls.coin(2, 0, 4)
    assert abs(np.mean(coins) - 0.5) < 4.5 / np.sqrt(12 * 4000)


# ------------------------------------------------------------------------------------------------- the whole comparison

RIGHT = {(): 1, (1,): 2, (1, 2): 3}
"""It is 7."""


def scripted(table: dict[tuple[int, ...], int]) -> Next:
    """By what stands behind the prompt, END otherwise."""
    return lambda text: table.get(tuple(text[len(PROMPT) :]), END)


def compared(criteria: dict[str, Callable[[Candidate], bool]]) -> list[Answered]:
    """Four prompts answered by a target that is right and a drafter that says 8."""
    passes = ScriptedPasses(scripted(RIGHT))
    wrong = scripted({**RIGHT, (1, 2): 4})
    scripts = (
        answer_all(
            index,
            make_task(split=Split.TEST),
            FAMILY,
            PROMPT,
            passes,
            WordText(),
            lambda: ScriptedDrafter(wrong).propose,
            criteria,
            SETTING,
        )
        for index in range(4)
    )
    found = list(together(scripts, passes, 3))
    assert passes.held == {}
    return found


def test_accuracy_recovered_is_one_for_the_target_and_zero_for_a_judge_that_keeps_all() -> None:
    """Target and lossless rounds win everything back, the drafter nothing, and so does whoever lets its error stand."""
    answered = compared({"judge": lambda at: True, "random": lambda at: False})
    back = [Answered.from_json(one.to_json()) for one in answered]
    rows = {row["name"]: row for row in summary(back)}
    assert [rows[name]["accuracy"][0] for name in rows] == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert [rows[name]["recovered"][0] for name in rows] == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert rows["lossless"]["same_text"] == 1.0 and rows["judge"]["same_text"] == 0.0
    assert rows["judge"]["judged_of_tested"] == 1.0 and rows["random"]["judged_of_tested"] == 0.0
    assert rows["judge"]["p_lossless"] == 2 / 2**4 and rows["random"]["p_judge"] == 2 / 2**4
    # It (7 recovered in a round of two) <end>: three tokens behind the first in two passes.
    assert rows["target"]["tokens_per_call"][0] == 1.0
    assert rows["lossless"]["tokens_per_call"][0] == pytest.approx(3 / 2)
    assert rows["judge"]["agreeing_tokens"] == 2.0
    said = findings(list(rows.values()))
    assert any(line.startswith("judge: accuracy 0.000 against 1.000") for line in said)
    assert any(line.startswith("random: not told apart") for line in said)
    table = comparison_table(list(rows.values())).splitlines()
    assert len(table) == 2 + 5 and all(line.count("|") == table[0].count("|") for line in table)


def test_a_judge_that_keeps_nothing_and_a_target_without_lead_are_said_so() -> None:
    """Nothing kept, nothing learned: a sentence each."""
    said = findings(summary(compared({"judge": lambda at: False})))
    assert said == ["the judge kept nothing that the target would not have said"]
    level = [
        Answered(one.index, one.family, one.template, one.runs, dict.fromkeys(one.right, True))
        for one in compared({})
    ]
    assert findings(summary(level)) == [
        "the target is no better than the drafter here: there is nothing to recover"
    ]


# ----------------------------------------------------------------------------------------------------------- selection


def tried(family: str, target: int, draft: int, items: int = 100) -> list[Tried]:
    """Items of which so many were answered rightly."""
    return [Tried(i, family, f"{family}/t", i < target, i < draft) for i in range(items)]


def test_families_are_kept_where_the_target_can_and_the_drafter_cannot() -> None:
    """Both thresholds count as reached when they are met exactly; what is dropped says why."""
    found = choose(
        [
            *tried("good", 50, 40),
            *tried("hard", 49, 0),
            *tried("easy", 90, 81),
            *tried("small", 5, 4, items=10),
        ]
    )
    assert {name: one.kept for name, one in found.items()} == {
        "good": True,
        "hard": False,
        "easy": False,
        "small": True,
    }
    assert "less than 0.5" in found["hard"].dropped and "by less than 0.1" in found["easy"].dropped
    assert "dropped" in found["easy"].line() and "kept" in found["good"].line()
    loose = choose([*tried("hard", 49, 0)], min_target=0.4)
    assert loose["hard"].kept and loose["hard"].target.value == 0.49


def test_both_answer_the_same_item() -> None:
    """The target is right and the drafter is not, each without the other's tokens."""
    passes = ScriptedPasses(scripted(RIGHT))
    wrong = scripted({(): 4})
    script = attempt(
        3, make_task(), FAMILY, PROMPT, passes, WordText(), lambda: ScriptedDrafter(wrong).propose, SETTING
    )
    (found,) = together([script], passes, 1)
    assert (found.index, found.target, found.draft) == (3, True, False)
    assert passes.held == {}
