"""The text of every lossless rule has the target's law: exactly, by running the rule on every draft and every coin."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from outrider.cloud.rules import RULES
from outrider.shared.draft import DraftKind
from outrider.shared.sampling import Sampling
from tests.cloud.enumeration import G1, G2, Model, Path, Play, always, random_model

SAMPLED, DISTINCT, CHOSEN = DraftKind.SAMPLED, DraftKind.DISTINCT, DraftKind.CHOSEN
ROUNDING = 1e-12

SHAPES = [
    ("residual", (1, 1, 1), SAMPLED),
    ("block", (1, 1, 1), SAMPLED),
    ("traversal", (1, 1, 1), DISTINCT),
    ("multidraft", (1, 1, 1), DISTINCT),
    ("multidraft", (2, 2), DISTINCT),
    ("traversal", (2, 2), DISTINCT),
    ("batch", (2, 1), SAMPLED),
    ("delta", (1, 1, 1), SAMPLED),
    ("delta", (2, 2), CHOSEN),
    ("look", (2, 2), CHOSEN),
    ("delta", (2, 1), SAMPLED),
]


def play(rule: str, widths: tuple[int, ...], kind: DraftKind, seed: int, vocabulary: int = 3) -> Play:
    """A random pair of models whose laws depend on the whole path; a quarter of their entries is 0 at odd seeds."""
    zeros = 0.25 * (seed % 2)
    target = random_model(2 * seed, vocabulary, 6, zeros)
    drafter = random_model(2 * seed + 1, vocabulary, 6, zeros)
    return Play(target, drafter, RULES[rule], widths, kind)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rule", "widths", "kind"), SHAPES)
def test_the_joint_law_is_the_targets(rule: str, widths: tuple[int, ...], kind: DraftKind, seed: int) -> None:
    """Chains of three and trees of two by two over three ids: as many tokens as a round can emit, off by rounding."""
    assert play(rule, widths, kind, seed).bias() < ROUNDING


@pytest.mark.parametrize("vocabulary", [2, pytest.param(3, marks=pytest.mark.long)])
def test_equal_siblings_are_tested_not_skipped(vocabulary: int) -> None:
    """A tree of two by two independent draws, equal siblings included."""
    assert play("multidraft", (2, 2), SAMPLED, 7, vocabulary).bias() < ROUNDING


@pytest.mark.parametrize(
    ("rule", "widths", "kind"),
    [
        ("residual", (1, 1), SAMPLED),
        ("block", (1, 1), SAMPLED),
        ("multidraft", (2,), SAMPLED),
        ("batch", (2,), SAMPLED),
        ("traversal", (2, 1), DISTINCT),
        ("delta", (1, 1), CHOSEN),
        ("look", (1, 1), CHOSEN),
    ],
)
def test_the_second_round_has_the_targets_law_too(
    rule: str, widths: tuple[int, ...], kind: DraftKind
) -> None:
    """Two rounds under one set of coins, wherever the first one ended: the joint law of all they can emit."""
    assert play(rule, widths, kind, 4, 2).bias(rounds=2) < ROUNDING


@pytest.mark.parametrize("temperature", [0.5, pytest.param(1.5, marks=pytest.mark.long)])
@pytest.mark.parametrize(("rule", "kind"), [("block", SAMPLED), ("traversal", DISTINCT), ("delta", CHOSEN)])
def test_the_law_is_the_warped_one(rule: str, kind: DraftKind, temperature: float) -> None:
    """Under a temperature acceptance, replacement and bonus all follow the warped target."""
    warped = play(rule, (1, 1), kind, 2).but(sampling=Sampling(temperature))
    assert warped.bias() < ROUNDING


@pytest.mark.parametrize("rule", ["residual", "block", "multidraft", "delta", "look"])
def test_at_temperature_zero_the_text_is_the_argmax(rule: str) -> None:
    """A point mass is a law like any other: every rule then gives the greedy text."""
    kind = SAMPLED if RULES[rule].needs_laws else CHOSEN
    greedy = play(rule, (1, 1), kind, 2).but(sampling=Sampling())
    text: Path = ()
    for _ in range(3):
        text = (*text, int(np.argmax(greedy.target(text))))
    for branch, weight in greedy.emitted().items():
        assert weight == 0 or branch == text[: len(branch)]


def test_a_drafter_that_is_the_target_is_always_kept() -> None:
    """With equal laws nothing is refused, and the bonus follows the target."""
    for rule, widths, kind in SHAPES[:7]:
        same = play(rule, widths, kind, 2, 2)
        same = same.but(drafted=same.target)
        assert same.mean_kept() == pytest.approx(len(widths), abs=ROUNDING)
        assert same.bias() < ROUNDING


# ------------------------------------------------------------------------------------------------- how much is kept


def ratios(case: Play, path: Path) -> list[float]:
    """Target over draft probability of every token of ``path``."""
    return [case.target(path[:at])[x] / case.drafted(path[:at])[x] for at, x in enumerate(path)]


def expected(case: Play, block: bool) -> float:
    """Tokens kept of a chain: sum of E[product of min(1, ratio)], or with ``block`` of E[p], p = min(1, p · ratio)."""
    total = 0.0
    for count in range(1, len(case.widths) + 1):
        for path in itertools.product(range(case.vocabulary), repeat=count):
            drawn = math.prod(float(case.drafted(path[:at])[x]) for at, x in enumerate(path))
            kept = 1.0
            if drawn:
                for ratio in ratios(case, path):
                    kept = min(1.0, kept * ratio) if block else kept * min(1.0, ratio)
            total += drawn * kept
    return total


@pytest.mark.parametrize("seed", range(6))
def test_kept_tokens_are_as_many_as_the_formulas_say(seed: int) -> None:
    """Chains of three: token by token and block, each by its formula; block keeps more; traversal as many as block."""
    token = play("residual", (1, 1, 1), SAMPLED, 10 + seed)
    block = token.but(rule=RULES["block"])
    assert token.mean_kept() == pytest.approx(expected(token, False), abs=ROUNDING)
    assert block.mean_kept() == pytest.approx(expected(token, True), abs=ROUNDING)
    assert block.mean_kept() > token.mean_kept()
    assert token.but(rule=RULES["multidraft"]).mean_kept() == pytest.approx(token.mean_kept(), abs=ROUNDING)


def test_with_one_token_block_is_token_by_token() -> None:
    """A chain of one leaves block verification nothing to gain."""
    for seed in range(10):
        token = play("residual", (1,), SAMPLED, seed)
        assert token.but(rule=RULES["block"]).mean_kept() == pytest.approx(token.mean_kept(), abs=ROUNDING)


@pytest.mark.parametrize(
    ("pair", "count", "token", "block"),
    [
        (G1, 2, 1.19, 1.25),
        (G1, 3, 1.533, 1.695),
        ((always((2 / 3, 1 / 3)), always((1 / 3, 2 / 3))), 2, 10 / 9, 11 / 9),
        ((always((2 / 3, 1 / 3)), always((1 / 3, 2 / 3))), 3, 38 / 27, 5 / 3),
    ],
)
def test_kept_tokens_of_golden_chains(
    pair: tuple[Model, Model], count: int, token: float, block: float
) -> None:
    """Independent positions: sum of alpha^i token by token, and the published values of block verification."""
    by_token = Play(*pair, RULES["residual"], (1,) * count)
    assert by_token.mean_kept() == pytest.approx(token, abs=1e-9)
    assert by_token.but(rule=RULES["block"]).mean_kept() == pytest.approx(block, abs=1e-9)
    assert by_token.but(rule=RULES["traversal"]).mean_kept() == pytest.approx(block, abs=1e-9)


@pytest.mark.parametrize(("alpha", "count", "value"), [(0.6, 4, 2.3056), (0.8, 4, 3.3616), (0.8, 8, 4.3289)])
def test_tokens_per_round_at_a_fixed_acceptance(alpha: float, count: int, value: float) -> None:
    """(1 - alpha^(n+1)) / (1 - alpha) tokens a round, the last one included; the formula itself up to eight."""
    assert (1 - alpha ** (count + 1)) / (1 - alpha) == pytest.approx(value, abs=5e-5)
    if count <= 4:
        pair = always((alpha, 1 - alpha)), always((1.0, 0.0))
        assert Play(*pair, RULES["residual"], (1,) * count).mean_kept() + 1 == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(
    ("width", "with_replacement", "without", "point_masses"),
    [(1, 0.5, 0.5, 0.05), (2, 0.6, 0.656667, 0.15), (3, 0.68, 0.733651, 0.3), (4, 0.711, 0.797881, 0.6)],
)
def test_acceptance_of_several_drafts_on_the_golden_pair(
    width: int, with_replacement: float, without: float, point_masses: float
) -> None:
    """One node, one to four children: with replacement, without, and the likeliest as point masses; all unbiased."""
    drawn = Play(*G2, RULES["multidraft"], (width,), SAMPLED)
    if width < 4:
        batch = drawn.but(rule=RULES["batch"])
        assert batch.accepted() == pytest.approx(with_replacement, abs=5e-7)
    for case, value in (
        (drawn, with_replacement),
        (drawn.but(kind=DISTINCT), without),
        (drawn.but(kind=CHOSEN, rule=RULES["delta"]), point_masses),
        (drawn.but(kind=CHOSEN, rule=RULES["look"]), point_masses),
    ):
        assert case.accepted() == pytest.approx(value, abs=5e-7)
        assert case.bias(tokens=1) < ROUNDING


@pytest.mark.parametrize("seed", range(3))
def test_traversal_keeps_more_of_a_tree_than_the_walk_down(seed: int) -> None:
    """Two by two draws without replacement: from the leaves up at least as many tokens as from the root down."""
    down = play("multidraft", (2, 2), DISTINCT, 20 + seed)
    assert down.but(rule=RULES["traversal"]).mean_kept() > down.mean_kept()


def test_root_rejections_fall_as_the_theorem_says() -> None:
    """Bernoulli pairs u >= v: M drafts from one prefix are all refused with probability (u - v) · u^(M-1)."""
    for u, v in ((0.9, 0.4), (0.6, 0.5)):
        for count in (1, 2, 3):
            case = Play(always((1 - v, v)), always((1 - u, u)), RULES["batch"], (count,))
            assert 1 - case.accepted() == pytest.approx((u - v) * u ** (count - 1), abs=ROUNDING)
