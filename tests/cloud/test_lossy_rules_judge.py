"""The judge rule: a head that is made up, so that every verdict can be told in advance."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.cloud.judge.head import JudgeHead, Polarity, Position
from outrider.cloud.rules import RULES, Audit, Decision, Judge, Nodes, Rulebook, read_parameters
from outrider.cloud.rules.book import EXACT
from outrider.shared import frames
from outrider.shared.coins import Coins
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import InvalidField
from outrider.shared.frames import TokenKind
from outrider.shared.sampling import History, Sampling
from tests.cloud.enumeration import G2, Branches, BranchingCoins, Play, outcomes, random_model

ACCEPTED, JUDGED = TokenKind.ACCEPTED, TokenKind.JUDGED
RECOVERED, BONUS = TokenKind.RECOVERED, TokenKind.BONUS
ROUNDING = 1e-12


@dataclass(frozen=True)
class FakeHead:
    """Scores a token by its id: a state is the id it was made at."""

    good: frozenset[int] = frozenset()
    delta: float = 0.5
    position: Position = Position.CANDIDATE

    def score(self, states: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """0.9 for good ids, 0.1 for others."""
        return np.where(np.isin(states[..., 0], sorted(self.good)), 0.9, 0.1)


def judge(*good: int, never: frozenset[int] = frozenset(), **more: Any) -> Judge:
    """The rule with a head that likes these ids."""
    return Judge(FakeHead(frozenset(good), **more), never)


def states_of(draft: Draft, base: int = 0) -> NDArray[np.float32]:
    """Per row the id it consumed."""
    return np.asarray([[base], *([token] for token in draft.ids)], np.float32)


def nodes_of(draft: Draft, best: int = 0, sampling: Sampling | None = None, **more: Any) -> Nodes:
    """A target of eight ids that prefers ``best`` at every row, and finds id 7 all but impossible."""
    logits = np.tile(np.asarray([1.0] * 7 + [-12.0]), (len(draft) + 1, 1))
    logits[:, best] = 3.0
    return Nodes(draft, logits, sampling or Sampling(), 5, states=states_of(draft), **more)


# ---------------------------------------------------------------------------------------------------- without laws


def test_a_good_token_stands_where_the_target_says_another() -> None:
    """Chain, temperature 0: own tokens are ACCEPTED, good ones JUDGED, and the first that is neither is replaced."""
    decision = judge(2, 3)(nodes_of(Draft.chain((0, 2, 0, 3, 4, 0))))
    assert decision == Decision((0, 1, 2, 3), 0, (ACCEPTED, JUDGED, ACCEPTED, JUDGED, RECOVERED))
    whole = judge(2)(nodes_of(Draft.chain((2, 0))))
    assert (whole.path, whole.next_id, whole.kinds) == ((0, 1), 0, (JUDGED, ACCEPTED, BONUS))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, seed=3), Sampling(1.3, top_k=5, seed=4)])
def test_a_head_that_likes_nothing_leaves_the_lossless_verdict(sampling: Sampling) -> None:
    """On chains and trees, whatever was drafted: that of `greedy` or `coupled`."""
    lossless = RULES["greedy" if sampling.greedy else "coupled"]
    rng = np.random.default_rng(3)
    for _ in range(50):
        count = int(rng.integers(0, 7))
        ids = tuple(int(token) for token in rng.integers(0, 7, count))
        parents = tuple(int(rng.integers(0, node + 1)) for node in range(count))
        for draft in (Draft.chain(ids), Draft(ids, parents)):
            exact = (True, *(bool(rng.integers(0, 2)) for _ in ids))
            nodes = nodes_of(draft, 0, sampling, exact=exact)
            assert judge()(nodes) == lossless(nodes)


def test_in_a_tree_the_targets_token_goes_before_a_judged_sibling() -> None:
    """Among siblings: the target's own first, then the first good one in rank order."""
    tree = Draft((2, 0, 3, 2, 4), (0, 0, 2, 2, 4))
    decision = judge(2, 3, 4)(nodes_of(tree))
    assert decision.path == (1, 2) and decision.kinds == (ACCEPTED, JUDGED, BONUS)
    decision = judge(2, 4)(nodes_of(tree))
    assert decision.path == (1, 3, 4) and decision.kinds == (ACCEPTED, JUDGED, JUDGED, BONUS)


def test_a_near_tie_at_an_inexact_row_ends_the_round_a_token_earlier() -> None:
    """As the lossless rules do; the token given back keeps its kind."""
    draft = Draft((0, 0), (0, 1))
    nodes = nodes_of(draft, exact=(True, False, True))
    nodes.logits[1, 1] = nodes.logits[1, 0]
    decision = judge(2)(nodes)
    assert (decision.path, decision.next_id, decision.kinds) == ((), 0, (ACCEPTED,))


def test_the_head_reads_where_it_was_trained() -> None:
    """At the candidate its own state, at the previous position its parent's: id 5 was consumed at the base."""
    draft = Draft.chain((5, 2))
    here = judge(5)(nodes_of(draft))
    assert here.path == (0,)
    before = judge(5, position=Position.PREVIOUS)(nodes_of(draft))
    assert before.path == ()
    nodes = replace(nodes_of(draft), states=states_of(draft, base=5))
    assert judge(5, position=Position.PREVIOUS)(nodes).path == (0, 1)


@pytest.mark.parametrize("polarity", list(Polarity))
def test_it_takes_the_real_head_under_either_polarity(polarity: Polarity) -> None:
    """A fitted head whose state speaks for a token keeps it, whichever way its weights are signed."""
    sign = 1.0 if polarity is Polarity.GOOD else -1.0
    head = JudgeHead(
        weight=np.array([sign]),
        bias=-sign * 2.5,
        delta=0.5,
        target="0" * 64,
        polarity=polarity,
        validation_auc=0.5,
        data_hash="0" * 64,
        class_weight=1.0,
        c=1.0,
    )
    assert Judge(head)(nodes_of(Draft.chain((4, 3, 1)))).path == (0, 1)


def test_delta_is_the_heads_unless_a_client_asks_for_another() -> None:
    """A score of 0.9 passes 0.5 and 0.9, not 0.95."""
    rule, nodes = judge(2), nodes_of(Draft.chain((2,)))
    assert rule.parameters["delta"].default == 0.5
    for delta, path in ((0.5, (0,)), (0.9, (0,)), (0.95, ())):
        assert rule(nodes, read_parameters(rule, {"delta": delta})).path == path
    assert judge(2, delta=0.95)(nodes).path == ()


# ---------------------------------------------------------------------------------------------------------- vetoes


def test_ends_of_text_and_special_tokens_are_never_judged() -> None:
    """Not those the server knows of, not those of the turn, whether the sampling looks at the text or not; the target's
    own end is accepted as ever."""
    for token, history in itertools.product((2, 3), (None, History((0,) * 5, 5, (3,)))):
        rule, ends = judge(2, 3, never=frozenset({2})), frozenset({3})
        assert rule(nodes_of(Draft.chain((token,)), history=history, stop_ids=ends)).path == ()
        own = rule(nodes_of(Draft.chain((token,)), best=token, history=history, stop_ids=ends))
        assert own.kinds == (ACCEPTED, BONUS)


def test_what_the_target_finds_impossible_is_not_judged() -> None:
    """Below the floor, by the law of temperature 1 where the temperature is 0; and never outside the support."""
    rule, draft = judge(2, 7), Draft.chain((7,))
    for sampling in (Sampling(), Sampling(1.0)):
        assert rule(nodes_of(draft, sampling=sampling)).path == ()
        lowered = read_parameters(rule, {"floor": 0.0})
        assert rule(nodes_of(draft, sampling=sampling), lowered).kinds[0] is JUDGED
    banned = Sampling(1.0, top_k=2, seed=1)
    logits = nodes_of(draft).logits.copy()
    logits[:, 1] = 2.9
    for sampling in (banned, replace(banned, temperature=0.0)):
        nodes = replace(nodes_of(Draft.chain((2,)), sampling=sampling), logits=logits)
        assert rule(nodes, read_parameters(rule, {"floor": 0.0})).path == ()
    history = History((0,) * 5, 5, (2,))
    early = replace(nodes_of(Draft.chain((2,)), sampling=Sampling(min_tokens=9)), history=history)
    assert rule(early, read_parameters(rule, {"floor": 0.0})).path == ()


def test_no_more_than_eight_in_a_row() -> None:
    """The ninth judged token in a row is refused; the target's own token among them begins a new row."""
    rule = judge(2)
    assert len(rule(nodes_of(Draft.chain((2,) * 12))).path) == 8
    mixed = rule(nodes_of(Draft.chain((2,) * 8 + (0,) + (2,) * 9)))
    assert len(mixed.path) == 17 and mixed.kinds.count(JUDGED) == 16
    three = read_parameters(rule, {"in_a_row": 3})
    assert len(rule(nodes_of(Draft.chain((2,) * 12)), three).path) == 3
    none = read_parameters(rule, {"in_a_row": 0})
    assert rule(nodes_of(Draft.chain((2,) * 12)), none).path == ()


def tied(logits: NDArray[np.floating[Any]], row: int) -> None:
    """Make the target's choice after ``row`` a near tie."""
    logits[row, 1] = logits[row, 0] - 1e-6


def test_a_near_tie_behind_a_judged_token_puts_the_targets_own_in_its_place() -> None:
    """So that a round never ends with a judged token, which the next one would not know of; an accepted one stays."""
    draft = Draft((2, 0, 2), (0, 0, 2))
    for head, kinds in ((judge(2), (ACCEPTED, RECOVERED)), (judge(), (ACCEPTED, RECOVERED))):
        nodes = nodes_of(draft, exact=(True, True, True, False))
        tied(nodes.logits, 3)
        decision = head(nodes)
        assert (decision.path, decision.next_id, decision.kinds) == ((1,), 0, kinds)
    alone = nodes_of(Draft((2, 3), (0, 0)), exact=(True, False, False))
    tied(alone.logits, 1)
    assert judge(2)(alone) == Decision((), 0, (RECOVERED,), 0)
    own = nodes_of(Draft((0, 3), (0, 0)), exact=(True, False, False))
    tied(own.logits, 1)
    assert judge(2)(own) == Decision((), 0, (ACCEPTED,), 0)
    told = nodes_of(Draft((2, 3), (0, 0)), exact=(True, False, False), wants_log_probs=True)
    assert judge(2)(told) == Decision((), 0, (RECOVERED,), 0)


@pytest.mark.parametrize("in_a_row", [0, 1, 2, 8])
def test_no_cut_lets_a_row_grow_across_rounds(in_a_row: int) -> None:
    """2,000 rounds of random trees with near ties anywhere, each of them put behind the text of those before."""
    rng = np.random.default_rng(in_a_row)
    rule = judge(2, 3, 4)
    given = read_parameters(rule, {"in_a_row": in_a_row})
    kinds: list[TokenKind] = []
    cut = longest = 0
    for _ in range(2000):
        count = int(rng.integers(1, 20))
        parents = tuple(max(0, node - int(rng.integers(0, 3))) for node in range(count))
        siblings: dict[int, list[int]] = {}
        ids: list[int] = []
        for parent in parents:
            free = [token for token in (2, 3, 4, 0, 5) if token not in siblings.get(parent, [])]
            ids.append(free[int(rng.integers(len(free)))])
            siblings.setdefault(parent, []).append(ids[-1])
        exact = (True, *(bool(rng.random() < 0.5) for _ in ids))
        nodes = nodes_of(Draft(tuple(ids), parents), exact=exact)
        for row in range(count + 1):
            if rng.random() < 0.2:
                tied(nodes.logits, row)
        decision = rule(nodes, given)
        assert decision.kinds[-1] is not JUDGED and len(decision.kinds) == len(decision.path) + 1
        cut += decision.kinds[-1] is RECOVERED and JUDGED in decision.kinds
        kinds += decision.kinds
    for judged, run in itertools.groupby(kind is JUDGED for kind in kinds):
        longest = max(longest, len(list(run)) if judged else 0)
    assert longest <= in_a_row and (longest > 0) == (in_a_row > 0)
    assert cut > 20 or not in_a_row


# ------------------------------------------------------------------------------------------------------- with laws


def judging(good: tuple[int, ...], **given: float) -> Any:
    """The rule as an enumeration wants it: with states made up for each draft."""
    rule = judge(*good)
    every = read_parameters(rule, given)

    def verdict(nodes: Nodes, _: Mapping[str, float]) -> Decision:
        return rule(replace(nodes, states=states_of(nodes.draft)), every)

    return verdict


def verdicts(case: Play) -> dict[Decision, float]:
    """Every verdict on the first round with its probability."""
    return outcomes(lambda branches: case.judge(case.draft(branches, ()), (), BranchingCoins(branches)))


@pytest.mark.parametrize("seed", range(4))
def test_with_laws_it_lies_on_the_line_and_its_audit_is_right_on_average(seed: int) -> None:
    """Rejection + loss = TV, counted; the audit's means are what is counted, its tv exact at every position."""
    pair = G2 if seed == 0 else (random_model(seed, 4, 2), random_model(seed + 50, 4, 2))
    for good in ((), (0,), (0, 2)):
        case = Play(*pair, judging(good))
        tv = float(np.sum(np.abs(case.target(()) - case.drafted(())))) / 2
        mean = np.zeros(3)
        for decision, weight in verdicts(case).items():
            audit = decision.audit or Audit()
            assert audit.tv == pytest.approx(tv)
            mean += weight * np.array([audit.rejection, audit.loss, audit.gap])
        rejection, loss = 1 - case.accepted(), case.bias(tokens=1)
        assert rejection + loss == pytest.approx(tv, abs=ROUNDING)
        assert mean == pytest.approx((rejection, loss, 0.0), abs=ROUNDING)


def test_with_laws_and_a_head_that_likes_nothing_it_is_residual() -> None:
    """The same outcomes under the same coins; one that likes everything accepts everything it may."""
    pair = random_model(8, 3, 3), random_model(9, 3, 3)
    exact = Play(*pair, RULES["residual"], (1, 1))
    assert exact.but(rule=judging(())).one_round == exact.one_round
    every = exact.but(rule=judging((0, 1, 2), floor=0.0))
    assert every.accepted() == pytest.approx(1.0)
    assert every.bias() > 0.05, "the losslessness check must see this"
    capped = exact.but(rule=judging((0, 1, 2), floor=0.0, in_a_row=0))
    assert capped.bias() < ROUNDING


def test_with_laws_the_kind_tells_what_the_coin_would_have_refused() -> None:
    """A kept token is JUDGED exactly where `residual`, under the same coins, stops."""
    case = Play(*G2, RULES["residual"], (1, 1))
    for number in range(200):
        coins = Coins(number.to_bytes(2, "big"))
        draft = Draft.chain(
            (number % 5, number // 5 % 5), DraftKind.SAMPLED, case.draft(Branches(()), ()).laws
        )
        exact = case.judge(draft, (), coins)
        judged = case.but(rule=judging((0, 1, 2, 3, 4))).judge(draft, (), coins)
        kinds = judged.kinds[:-1]
        stop = len(exact.path)
        assert kinds[:stop] == (ACCEPTED,) * stop
        assert stop == 2 or kinds[stop] is JUDGED


# ------------------------------------------------------------------------------------------------------ parameters


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("delta", 1.5), ("floor", -0.1), ("in_a_row", 2.5), ("in_a_row", 1000), ("mercy", 1.0)],
)
def test_parameters_out_of_range_are_refused_by_name(parameter: str, value: float) -> None:
    """Also a number of tokens that is not whole."""
    book = Rulebook((*EXACT.rules, judge()))
    with pytest.raises(InvalidField, match=parameter) as refused:
        book.find(frames.Rule("judge", ((parameter, value),)), Sampling())
    assert refused.value.field == "rule.parameters"


def test_without_states_it_says_what_is_missing() -> None:
    """A verifier that forgets to hand over hidden states is told so, not given a verdict."""
    nodes = replace(nodes_of(Draft.chain((2,))), states=None)
    assert judge(2).needs_hidden
    with pytest.raises(ValueError, match="needs_hidden"):
        judge(2)(nodes)
