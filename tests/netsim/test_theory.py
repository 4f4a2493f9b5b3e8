"""Theorems 1 to 3 of the theory of speculative decoding: exact values, closed forms, and simulation."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from outrider.netsim.errors import BadConfig
from outrider.netsim.theory.batch import (
    ENDLESS,
    batched,
    bernoulli_root,
    root_mass,
    root_rejection,
    uniform_root,
)
from outrider.netsim.theory.chains import Process, golden_chain, iid, random_chain, random_history
from outrider.netsim.theory.experiments import rate_row
from outrider.netsim.theory.lp import least_rejection
from outrider.netsim.theory.pairs import G1, G2, Pair, bernoulli, random_pairs, residual, tv, uniform
from outrider.netsim.theory.rejections import (
    expected_rejections,
    rejections_by_position,
    tokens_per_round,
    windowed,
    windowed_rate,
)
from outrider.netsim.theory.simulate import MOST_DEVIATIONS, estimate, play_batch, play_window
from outrider.netsim.theory.unbiased import (
    can_be_unbiased,
    emitted,
    member_rejections,
    rejection,
    standard,
    unbiased_replacement,
)

GOLDEN = {1: 23.54526, 2: 21.34792, 4: 19.61005, 5: 19.15660, 10: 18.01502, 100: 16.24961, 1000: 15.81506}


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("batch", GOLDEN)
def test_the_golden_chain_has_its_known_rejections(batch: int) -> None:
    """Theorem 3's recursion gives the published value for each number of drafts, to all its digits."""
    assert round(batched(golden_chain(), batch).rejections, 5) == GOLDEN[batch]


@pytest.mark.parametrize("batch", [1, 2, 4, 5])
def test_algorithm_4_played_on_the_golden_chain_rejects_as_often_as_theorem_3_says(batch: int) -> None:
    """3,000 runs (s.e. 0.065) are within 4.5 standard errors of the exact value, and not of the next M's."""
    played = play_batch(golden_chain(), batch, 3000, rng(100 + batch)).rejections
    assert abs(estimate(GOLDEN[batch], played).z) < MOST_DEVIATIONS
    assert abs(estimate(batched(golden_chain(), batch + 1).rejections, played).z) > MOST_DEVIATIONS


@pytest.mark.parametrize("seed", range(4))
def test_one_draft_is_theorem_1(seed: int) -> None:
    """Theorem 3 with M = 1 is Theorem 1's sum on random chains, with nothing saved."""
    chain = random_chain(rng(seed), states=4, horizon=9, concentration=0.5)
    one = batched(chain, 1)
    assert one.rejections == pytest.approx(expected_rejections(chain), abs=1e-12)
    assert one.improvement == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_a_chain_is_a_process_of_whole_prefixes(seed: int) -> None:
    """With every prefix as a context of its own, all recursions give the same numbers as with the last token."""
    chain = random_chain(rng(seed), states=3, horizon=6)
    whole = chain.by_prefix()
    assert rejections_by_position(whole) == pytest.approx(rejections_by_position(chain), abs=1e-12)
    assert windowed(whole, 2).rejections == pytest.approx(windowed(chain, 2).rejections, abs=1e-12)
    for batch in (2, 5, ENDLESS):
        assert batched(whole, batch).rejections == pytest.approx(batched(chain, batch).rejections, abs=1e-12)


def test_theorem_1_is_the_sum_over_prefixes_it_says() -> None:
    """On a process where every prefix counts, the recursion equals the literal sum over prefixes and positions."""
    process = random_history(rng(5), vocabulary=3, horizon=4)
    literal = 0.0
    for n in range(process.horizon):
        for row, prefix in enumerate(product(range(3), repeat=n)):
            weight, at = 1.0, 0
            for k, token in enumerate(prefix):
                weight *= float(process.steps[k].target[at, token])
                at = at * 3 + token
            literal += weight * float(np.abs(process.steps[n].target - process.steps[n].draft)[row].sum()) / 2
    assert expected_rejections(process) == pytest.approx(literal, abs=1e-12)


@pytest.mark.parametrize("batch", [1, 3])
def test_theorems_hold_where_every_prefix_counts(batch: int) -> None:
    """20,000 runs on a process that is no Markov chain reject as often as the recursion says."""
    process = random_history(rng(6), vocabulary=3, horizon=6, concentration=0.5)
    played = play_batch(process, batch, 20_000, rng(7)).rejections
    assert abs(estimate(batched(process, batch).rejections, played).z) < MOST_DEVIATIONS


@pytest.mark.parametrize("batch", [1, 4])
def test_algorithm_4_keeps_the_target_law(batch: int) -> None:
    """The joint law of three played tokens is the target's: chi-square of 27 cells and 50,000 runs below its 1e-6 tail.

    The power against a total variation of 0.02 spread over the cells is above .999.
    """
    process = random_history(rng(8), vocabulary=3, horizon=3, concentration=2.0)
    weight = np.ones(1)
    for step in process.steps:
        weight = process.advance(weight[:, None] * step.target)
    tokens = play_batch(process, batch, 50_000, rng(9)).tokens
    counted = Counter((tokens @ np.array([9, 3, 1])).tolist())
    seen = np.array([counted[cell] for cell in range(27)])
    assert (
        (seen - 50_000 * weight) ** 2 / (50_000 * weight)
    ).sum() < 77.3  # chi-square, 26 degrees, 1 - 1e-6


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("bonus", [True, False])
def test_windows_reject_as_often_as_the_recursion_says(window: int, bonus: bool) -> None:
    """3,000 runs on the golden chain: rejections and target passes within 4.5 standard errors."""
    exact = windowed(golden_chain(), window, bonus=bonus)
    played = play_window(golden_chain(), window, 3000, rng(20 + window), bonus=bonus)
    assert abs(estimate(exact.rejections, played.rejections).z) < MOST_DEVIATIONS
    assert abs(estimate(exact.rounds, played.rounds).z) < MOST_DEVIATIONS


@pytest.mark.parametrize("window", [1, 2, 7, 50, 99])
def test_theorem_1_counts_no_bonus_tokens(window: int) -> None:
    """Without bonus tokens the window does not matter; with them there are fewer rejections, until it is endless."""
    chain = golden_chain()
    expected = expected_rejections(chain)
    assert windowed(chain, window, bonus=False).rejections == pytest.approx(expected, abs=1e-9)
    if window < 50:
        assert windowed(chain, window).rejections < expected - 1e-6
    else:
        assert windowed(chain, window).rejections == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("acceptance", [0.05, 0.6, 0.8])
@pytest.mark.parametrize("window", [1, 4, 8])
def test_the_rate_with_bonus_tokens(acceptance: float, window: int) -> None:
    """(1 - α^γ)(1 - α)/(1 - α^(γ+1)) is what the recursion adds per token in the long run, and is below 1 - α."""
    row = rate_row(acceptance, window)
    assert row.recursion == pytest.approx(row.formula, abs=1e-9)
    assert row.formula < 1 - acceptance
    assert windowed_rate(acceptance, 400) == pytest.approx(1 - acceptance, abs=1e-9)


def test_tokens_per_round_of_independent_positions() -> None:
    """The known values for acceptance .6 and .8; and what the recursion's passes come to."""
    assert tokens_per_round(0.6, 4) == pytest.approx(2.3056)
    assert tokens_per_round(0.8, 4) == pytest.approx(3.3616)
    assert tokens_per_round(0.8, 8) == pytest.approx(4.3289, abs=5e-5)
    assert tokens_per_round(1.0, 4) == 5 and windowed_rate(1.0, 4) == 0
    long, short = (windowed(iid(bernoulli(1.0, 0.6), n), 4).rounds for n in (900, 400))
    assert 500 / (long - short) == pytest.approx(2.3056, abs=1e-6)


def test_golden_pairs() -> None:
    """Distance and residual of G1 and G2, and the root rejection of G2."""
    assert float(tv(G1)) == pytest.approx(0.3) and float(tv(G2)) == pytest.approx(0.5)
    assert residual(G1) == pytest.approx(np.array([0, 0, 1.0]))
    assert residual(G2) == pytest.approx(np.array([0, 0, 0, 0.3, 0.7]))
    known = {1: 0.5, 2: 0.4, 3: 0.32, 4: 0.289, 5: 0.27455, 10: 0.21244, 20: 0.1272}
    assert {m: round(float(root_rejection(G2, m)), 5) for m in known} == pytest.approx(known, abs=5e-5)


@pytest.mark.parametrize("batch", [1, 2, 5, 30])
def test_root_rejection_in_closed_form(batch: int) -> None:
    """(u - v)·u^(M-1) for Bernoulli laws and (1 - V/U)^M for uniform ones."""
    for u, v in ((0.5, 0.2), (0.9, 0.5), (1.0, 0.3), (0.4, 0.4)):
        assert float(root_rejection(bernoulli(u, v), batch)) == pytest.approx(
            bernoulli_root(u, v, batch), abs=1e-12
        )
    for many, few in ((50, 10), (7, 7), (5, 1)):
        root = float(root_rejection(uniform(many, few), batch))
        assert root == pytest.approx(uniform_root(many, few, batch), abs=1e-12)


def test_rejections_fall_with_the_number_of_drafts_to_a_positive_floor() -> None:
    """On the golden chain the distance to the floor keeps falling, below 0.002, and the floor is 15.76808."""
    chain = golden_chain()
    floor = batched(chain, ENDLESS).rejections
    above = [batched(chain, batch).rejections - floor for batch in (1, 2, 4, 5, 10, 100, 1000, 10_000)]
    assert round(floor, 5) == 15.76808
    assert all(later < sooner for sooner, later in zip(above, above[1:], strict=False))
    assert 0 < above[-1] < 0.002


def test_the_floor_counts_what_is_never_drafted() -> None:
    """Tokens that the draft cannot say stay rejected with any M: the limit is their mass, at the root."""
    pair = Pair(np.array([0.2, 0.3, 0.1, 0.4]), np.array([0.1, 0.1, 0.8, 0.0]))
    assert root_mass(pair, ENDLESS) == pytest.approx(np.array([0, 0, 0, 0.4]))
    assert root_mass(pair, 300) == pytest.approx(root_mass(pair, ENDLESS), abs=1e-12)


def test_theorem_2_unbiased_exactly_below_min_1_ratio() -> None:
    """Over 300 random pairs with zeros: b·draft ≤ target has its P and emits the target; a b above has none."""
    source = rng(30)
    pairs = random_pairs(source, (300,), 4, concentration=0.3)
    accept = source.random((300, 4)) * standard(pairs)
    assert emitted(pairs, accept, unbiased_replacement(pairs, accept)) == pytest.approx(
        pairs.target, abs=1e-12
    )
    assert (rejection(pairs, accept) >= tv(pairs) - 1e-12).all()
    above = np.minimum(1.0, standard(pairs) + 0.01)
    assert not can_be_unbiased(pairs, above)
    with pytest.raises(BadConfig, match="no replacement law"):
        unbiased_replacement(pairs, above)


def test_theorem_2_speculative_decoding_is_the_best_member() -> None:
    """The linear programme over all unbiased (b, P) finds total variation; members that accept less reject more."""
    assert least_rejection(G2) == pytest.approx(0.5, abs=1e-9)
    assert float(rejection(G2, 0.6 * standard(G2))) == pytest.approx(0.7)
    pairs = random_pairs(rng(31), (40,), 5, concentration=0.5)
    for row in range(40):
        pair = Pair(pairs.target[row], pairs.draft[row])
        assert least_rejection(pair) == pytest.approx(float(tv(pair)), abs=1e-7)
    chain = golden_chain()
    shares = [member_rejections(chain, share) for share in (0, 0.3, 0.9, 1)]
    assert shares[0] == pytest.approx(50) and shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(expected_rejections(chain), abs=1e-9)


def test_degenerate_laws() -> None:
    """One token, equal laws, disjoint ones: nothing, nothing and everything is rejected, with any number of drafts."""
    one = Pair(np.array([1.0]), np.array([1.0]))
    same = Pair(G1.target, G1.target)
    apart = Pair(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    for batch in (1, 3, ENDLESS):
        found = [float(root_rejection(pair, batch)) for pair in (one, same, apart)]
        assert found == pytest.approx([0, 0, 1], abs=1e-12)
    assert expected_rejections(iid(apart, 6)) == 6
    assert play_batch(iid(apart, 6), 3, 5, rng(1)).rejections.tolist() == [6] * 5
    assert play_batch(iid(same, 6), 3, 5, rng(1)).rejections.tolist() == [0] * 5


def test_what_is_no_law_or_no_process_is_refused() -> None:
    """NaN, negative or missing mass, shapes that do not fit, no drafts: each is named."""
    good = np.array([0.5, 0.5])
    for bad in (np.array([0.5, np.nan]), np.array([1.5, -0.5]), np.array([0.5, 0.4]), np.array([1.0])):
        with pytest.raises(BadConfig):
            Pair(bad, good)
    start = Pair(good[None, :], good[None, :])
    with pytest.raises(BadConfig, match="position 1"):
        Process((start, start))
    with pytest.raises(BadConfig, match="at least one position"):
        Process(())
    with pytest.raises(BadConfig, match="prefixes"):
        golden_chain().by_prefix()
    with pytest.raises(BadConfig, match="batch"):
        batched(golden_chain(), 0)
    with pytest.raises(BadConfig, match="window"):
        windowed(golden_chain(), 0)
