"""Lossy rules cost what they say: exactly, by running each on every draft and every coin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from outrider.cloud.rules import KNOWN, NOTHING, RULES, Audit, Decision, Nodes, find_rule, read_parameters
from outrider.cloud.rules.audit import account, lossless
from outrider.cloud.rules.residual import Law, left_over
from outrider.cloud.rules.typical import threshold
from outrider.shared import frames
from outrider.shared.coins import Coins, Purpose
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import InvalidField
from outrider.shared.frames import TokenKind
from outrider.shared.laws import quantise, sample
from outrider.shared.sampling import Sampling
from tests.cloud.enumeration import (
    G2,
    START,
    BranchingCoins,
    Model,
    Play,
    always,
    outcomes,
    random_model,
)

ROUNDING = 1e-12
SAMPLED = DraftKind.SAMPLED


Pair = tuple[Model, Model]


def play(
    name: str,
    pair: Pair = G2,
    widths: tuple[int, ...] = (1,),
    given: Mapping[str, float] = NOTHING,
    **more: float,
) -> Play:
    """A rule on a target and a drafter, with its defaults but for what is ``given`` or named."""
    rule = RULES[name]
    return Play(*pair, rule, widths, given=read_parameters(rule, {**given, **more}))


def verdicts(case: Play) -> dict[Decision, float]:
    """Every verdict on the first round with its probability."""
    return outcomes(lambda branches: case.judge(case.draft(branches, ()), (), BranchingCoins(branches)))


def mean_audit(case: Play) -> Audit:
    """What the rule itself says of a round, on average."""
    total = np.zeros(4)
    for decision, weight in verdicts(case).items():
        audit = decision.audit or Audit()
        total += weight * np.array([audit.positions, audit.rejection, audit.loss, audit.tv])
    return Audit(round(total[0]), *(float(value) for value in total[1:]))


def measured(case: Play) -> tuple[float, float]:
    """Rejection and loss of a chain of one, by counting every outcome."""
    return 1 - case.accepted(), case.bias(tokens=1)


def pairs(count: int, vocabulary: int = 4) -> list[Pair]:
    """Random pairs of laws, a third of the entries 0 in every other one."""
    return [
        (random_model(2 * seed, vocabulary, 1, zeros), random_model(2 * seed + 1, vocabulary, 1, zeros))
        for seed in range(count)
        for zeros in (0.33 * (seed % 2),)
    ]


# --------------------------------------------------------------------------------------------- the golden pair


@pytest.mark.parametrize(
    ("epsilon", "rejection", "opt", "uno"),
    [
        (0.0, 0.50, 0.00, 0.15),
        (0.05, 0.40, 0.10, 0.22),
        (0.10, 0.30, 0.20, 0.29),
        (0.20, 0.15, 0.35, 0.395),
        (0.30, 0.05, 0.45, 0.465),
        (0.35, 0.00, 0.50, 0.50),
    ],
)
def test_over_acceptance_on_the_golden_pair(epsilon: float, rejection: float, opt: float, uno: float) -> None:
    """Rejection and loss of both replacements at every epsilon, counted and as the rule's own audit has them."""
    for name, loss in (("overaccept", opt), ("overaccept-uno", uno)):
        case = play(name, epsilon=epsilon)
        assert measured(case) == pytest.approx((rejection, loss), abs=ROUNDING)
        audit = mean_audit(case)
        assert (audit.rejection, audit.loss, audit.tv) == pytest.approx((rejection, loss, 0.5), abs=ROUNDING)
        assert audit.positions == 1


STATED: list[tuple[str, dict[str, float], float, float]] = [
    ("overaccept", {"epsilon": 0.1}, 0.30, 0.20),
    ("overaccept-uno", {"epsilon": 0.1}, 0.30, 0.29),
    ("lenience", {"lenience": 0.5}, 0.35, 0.15),
    ("lenience-uno", {"lenience": 0.5}, 0.35, 0.255),
    ("top-m", {"m": 4}, 0.35, 0.15),
    ("top-m-uno", {"m": 4}, 0.35, 0.255),
    ("relative-margin", {"beta": 0.25}, 0.35, 0.15),
    ("relative-margin-uno", {"beta": 0.25}, 0.35, 0.255),
    ("typical", {}, 0.40, 0.25),
    ("typical-or", {}, 0.35, 0.15),
    ("kl", {"kappa": 2.0}, 0.0, 0.5),
]
"""Rejection and loss of every lossy rule on the golden pair, whose TV is 0.5."""


@pytest.mark.parametrize(("name", "given", "rejection", "loss"), STATED)
def test_every_lossy_rule_is_caught_by_the_losslessness_check(
    name: str, given: dict[str, float], rejection: float, loss: float
) -> None:
    """The check that lossless rules pass to 1e-12 finds each of these off by the total variation that is stated."""
    assert RULES[name].lossy
    case = play(name, given=given)
    assert measured(case) == pytest.approx((rejection, loss), abs=ROUNDING)
    assert case.but(widths=(1, 1)).bias(tokens=2) >= loss - ROUNDING


def test_no_lossy_rule_is_left_out() -> None:
    """Whatever is declared lossy stands in the list above, and nothing else does."""
    assert {name for name, *_ in STATED} == {rule.name for rule in KNOWN.rules if rule.lossy}


# ------------------------------------------------------------------------------------------------ the Pareto line

ON_THE_LINE = ["overaccept", "lenience", "top-m", "relative-margin", "typical-or", "kl"]
ABOVE_IT = ["overaccept-uno", "lenience-uno", "top-m-uno", "relative-margin-uno", "typical"]


@pytest.mark.parametrize("name", [*ON_THE_LINE, *ABOVE_IT])
def test_rejection_and_loss_add_up_to_tv_or_more(name: str) -> None:
    """On random pairs the sum is TV for the best replacement, never less for any other; the audit counts right."""
    gaps = []
    for target, drafted in pairs(12):
        case = play(name, (target, drafted))
        rejection, loss = measured(case)
        tv = float(np.sum(np.abs(case.target(()) - case.drafted(())))) / 2
        audit = mean_audit(case)
        assert (audit.rejection, audit.loss, audit.tv) == pytest.approx((rejection, loss, tv), abs=ROUNDING)
        assert audit.gap == pytest.approx(rejection + loss - tv, abs=ROUNDING)
        gaps.append(audit.gap)
    assert min(gaps) > -ROUNDING
    assert max(gaps) < ROUNDING if name in ON_THE_LINE else max(gaps) > 0.01


def test_no_acceptance_and_no_replacement_get_below_tv() -> None:
    """2,000 arbitrary pairs of b and P: the gap is never negative, and lies at 0 for b >= min(1, t/d) with [t - d]+."""
    rng = np.random.default_rng(5)
    for _ in range(2000):
        size = int(rng.integers(2, 7))
        target, drafted, other = rng.dirichlet(np.full(size, 0.5), 3)
        ids = np.flatnonzero(drafted > 1e-9)
        draft = drafted[ids] / drafted[ids].sum()
        accept = rng.random(len(ids)) ** 2
        assert account(target, ids, draft, accept, other).gap > -ROUNDING
        more = np.maximum(accept, lossless(target, ids, draft))
        best = left_over(target, draft, ids)
        assert account(target, ids, draft, more, best).gap == pytest.approx(0, abs=ROUNDING)
        assert account(target, ids, draft, more, target).gap > -ROUNDING


def test_at_epsilon_zero_only_the_best_replacement_is_lossless() -> None:
    """`overaccept` is `residual` token for token under the same coins; `overaccept-uno` draws another text."""
    for target, drafted in pairs(4, 3):
        exact = play("residual", (target, drafted))
        assert play("overaccept", (target, drafted), epsilon=0.0).one_round == exact.one_round
    paths = (random_model(1, 3, 3), random_model(2, 3, 3))
    assert play("overaccept", paths, (1, 1), epsilon=0.0).bias() < ROUNDING
    assert play("overaccept-uno", paths, (1, 1), epsilon=0.0).bias() > 0.01


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("lenience", {"lenience": 1.0}),
        ("kl", {"kappa": 0.0}),
        ("typical-or", {"epsilon": 1.0, "alpha": 100.0}),
    ],
)
def test_rules_that_let_nothing_more_through_are_lossless(name: str, exact: dict[str, float]) -> None:
    """Each at the setting that adds nothing; a threshold above every probability adds nothing either."""
    for target, drafted in pairs(3, 3):
        assert play(name, (target, drafted), given=exact).bias() < ROUNDING


@pytest.mark.parametrize("name", ["overaccept", "lenience", "top-m", "relative-margin"])
def test_both_replacements_reject_alike(name: str) -> None:
    """OPT and UNO differ in what follows a rejection only: as many are rejected, and UNO never loses less."""
    for target, drafted in pairs(6):
        opt, uno = play(name, (target, drafted)), play(f"{name}-uno", (target, drafted))
        assert opt.accepted() == pytest.approx(uno.accepted(), abs=ROUNDING)
        assert mean_audit(uno).loss >= mean_audit(opt).loss - ROUNDING


def test_losses_add_up_along_a_text() -> None:
    """A text of two tokens is off by no more than the sum of the losses expected at its positions."""
    target, drafted = random_model(31, 3, 2), random_model(32, 3, 2)
    for epsilon in (0.05, 0.2):
        case = play("overaccept", (target, drafted), (1, 1), epsilon=epsilon)
        assert 0 < case.bias(tokens=2) <= total_loss(case, epsilon) + ROUNDING


def total_loss(case: Play, epsilon: float) -> float:
    """Expected loss at the first position plus that at the second, wherever the first token came from."""
    first = case.bias(tokens=1)
    second = 0.0
    for token, weight in first_token(case).items():
        excess = case.drafted((token,)) - case.target((token,))
        second += weight * float(np.sum(np.minimum(epsilon, np.maximum(excess, 0.0))))
    return first + second


def first_token(case: Play) -> dict[int, float]:
    """The law of the first emitted token."""
    law: dict[int, float] = {}
    for (text, _), weight in case.one_round.items():
        law[text[0]] = law.get(text[0], 0.0) + weight
    return law


# --------------------------------------------------------------------------------------------------------- labels


def drawn(target: Law, drafted: Law, count: int, key: bytes) -> Nodes:
    """A chain drawn from a quantised law, with coins of its own."""
    law = quantise(drafted)
    ids = [sample(law, Coins(b"device")(0, n, Purpose.DRAFT, int(key.hex(), 16))) for n in range(count)]
    logits = np.log(np.tile(target, (count + 1, 1)))
    draft = Draft.chain(ids, SAMPLED, (law,) * count)
    return Nodes(draft, logits, Sampling(1.0), START, coins=Coins(key))


@pytest.mark.parametrize("name", sorted(name for name, *_ in STATED))
def test_judged_is_what_the_same_coins_would_have_refused(name: str) -> None:
    """Of 200 chains of three: a kept token is ACCEPTED where its coin is below min(1, t/d), and JUDGED elsewhere."""
    rule, seen = RULES[name], set()
    given = read_parameters(rule, next(given for other, given, *_ in STATED if other == name))
    target, drafted = G2[0](()), G2[1](())
    for number in range(200):
        nodes = drawn(target, drafted, 3, number.to_bytes(2, "big"))
        decision = rule(nodes, given)
        for node, kind in zip(decision.path, decision.kinds, strict=False):
            token = nodes.draft.ids[node]
            refused = nodes.coin(node, Purpose.ACCEPT, node) >= target[token] / nodes.drafted(node)
            assert kind is (TokenKind.JUDGED if refused else TokenKind.ACCEPTED)
            seen.add(kind)
        whole = len(decision.path) == 3
        assert decision.kinds[-1] is (TokenKind.BONUS if whole else TokenKind.RECOVERED)
    assert seen == {TokenKind.JUDGED, TokenKind.ACCEPTED}


def test_what_the_target_rules_out_is_not_let_through() -> None:
    """Epsilon relaxes no ban: outside top-k nothing is accepted, so the text stays within the support."""
    case = play("overaccept", epsilon=1.0).but(sampling=Sampling(1.0, top_k=2))
    assert {text[0] for text in case.emitted()} == {3, 4}
    assert play("top-m", m=5).but(sampling=Sampling(1.0, top_k=2)).accepted() < 0.21


@pytest.mark.parametrize("name", sorted(name for name, *_ in STATED))
def test_at_temperature_zero_lossy_rules_on_laws_are_greedy(name: str) -> None:
    """A point mass leaves nothing to relax."""
    case = play(name).but(sampling=Sampling())
    assert set(case.emitted()) <= {(4,), (4, 4)}


# --------------------------------------------------------------------------------------------------------- typical


def test_typical_keeps_the_longest_path_and_the_likelier_of_two() -> None:
    """Of a tree: longest first, then by the target's likelihood; a token after it that the target says itself."""
    law = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(np.tile(law, (7, 1)))
    tree = Draft((3, 1, 0, 1, 0, 1), (0, 0, 0, 2, 3, 5))
    for ids, path in (
        ((3, 1, 0, 1, 0, 1), (2, 4, 5)),  # the one with three typical tokens
        ((3, 1, 0, 1, 0, 3), (2, 4)),  # two paths of two, 0.5 · 0.5 above 0.3 · 0.3
        ((3, 1, 1, 0, 1, 3), (1, 3)),  # 0.3 · 0.5 above 0.3 · 0.3
        ((3, 3, 3, 0, 0, 0), ()),  # nothing typical at the base
    ):
        nodes = Nodes(replace(tree, ids=ids), logits, Sampling(1.0, seed=4), START)
        decision = RULES["typical"](nodes)
        assert decision.path == path
        assert decision.next_id == nodes.choice(path[-1] + 1 if path else 0).token
        for node, kind in zip(path, decision.kinds, strict=False):
            own = nodes.choice(tree.parents[node]).token == ids[node]
            assert kind is (TokenKind.ACCEPTED if own else TokenKind.JUDGED)
        assert decision.audit is None


def test_the_typical_threshold_falls_with_entropy() -> None:
    """min(epsilon, alpha·exp(-H)): epsilon under a sharp law, alpha/size under a flat one; more than it is typical."""
    given = read_parameters(RULES["typical"], {})
    for size, least in ((1, 0.09), (3, 0.09), (10, 0.03), (100, 0.003)):
        assert threshold(np.full(size, 1 / size), given) == pytest.approx(least)
    flat = always(np.full(10, 0.1).tolist())
    for alpha, kept in ((0.99, 1.0), (1.01, 0.0)):
        assert play("typical", (flat, flat), alpha=alpha, epsilon=1.0).accepted() == pytest.approx(kept)


# ------------------------------------------------------------------------------------------------------ parameters


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("overaccept", "epsilon", -0.01),
        ("overaccept-uno", "epsilon", 1.01),
        ("overaccept", "epsilon", float("nan")),
        ("lenience", "lenience", 0.0),
        ("lenience", "lenience", 1.5),
        ("top-m", "m", 0),
        ("top-m", "m", 2.5),
        ("relative-margin", "beta", 2.0),
        ("typical", "epsilon", 1.5),
        ("typical-or", "alpha", -1.0),
        ("kl", "kappa", -0.1),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(name: str, parameter: str, value: float) -> None:
    """The message has the rule, the parameter and its bounds."""
    with pytest.raises(InvalidField, match=parameter) as refused:
        find_rule(frames.Rule(name, ((parameter, value),)), Sampling(1.0))
    assert refused.value.field == "rule.parameters"
    assert name in refused.value.why
    with pytest.raises(InvalidField, match="came with zeta"):
        find_rule(frames.Rule(name, (("zeta", 0.5),)), Sampling(1.0))


def test_rules_on_laws_take_drawn_chains_with_their_laws_only() -> None:
    """A chosen draft, one without laws, and a tree are refused, each by the field at fault."""
    logits = np.zeros((3, 4))
    law = quantise(np.full(4, 0.25))
    for draft, field in (
        (Draft.chain((1, 2)), "draft.kind"),
        (Draft.chain((1, 2), SAMPLED), "draft.laws"),
        (Draft((1, 2), (0, 0), SAMPLED, (law,)), "draft.parents"),
    ):
        for name in [*ON_THE_LINE, "lenience-uno"]:
            with pytest.raises(InvalidField) as refused:
                RULES[name](Nodes(draft, logits, Sampling(1.0), START, coins=Coins(b"k")))
            assert refused.value.field == field


def test_an_empty_draft_is_a_step_of_the_target() -> None:
    """Nothing to relax: one token from the target's law, of kind BONUS."""
    for name in (name for name, *_ in STATED if RULES[name].needs_laws):
        case = play(name, widths=())
        assert case.bias(tokens=1) < ROUNDING
        decision = next(iter(verdicts(case)))
        assert (decision.path, decision.kinds) == ((), (TokenKind.BONUS,))
