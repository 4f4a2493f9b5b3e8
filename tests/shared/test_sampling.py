"""Laws of sampling: warps, ties, and the choice under shared noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.shared.errors import InvalidField
from outrider.shared.noise import gumbel
from outrider.shared.sampling import Sampling, choose, law, pick, scores

SETTINGS = [
    Sampling(),
    Sampling(1.0, seed=5),
    Sampling(0.3, 0, 0.0, 6),
    Sampling(0.7, 5, 0.0, 7),
    Sampling(1.3, 0, 0.8, 8),
    Sampling(0.9, 7, 0.6, 2**64 - 1),
    Sampling(2.0, 1, 0.0, 1),
    Sampling(1.0, 10**6, 1.0, 2),
]


def logits_of(seed: int, vocabulary: int = 50, scale: float = 3.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Random float32 logits."""
    return np.random.default_rng(seed).normal(0, scale, vocabulary).astype(np.float32)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"temperature": float("nan")}, "sampling.temperature"),
        ({"temperature": -0.1}, "sampling.temperature"),
        ({"temperature": float("inf")}, "sampling.temperature"),
        ({"temperature": "1"}, "sampling.temperature"),
        ({"top_k": -1}, "sampling.top_k"),
        ({"top_k": 1.5}, "sampling.top_k"),
        ({"top_k": True}, "sampling.top_k"),
        ({"top_p": 1.01}, "sampling.top_p"),
        ({"top_p": float("nan")}, "sampling.top_p"),
        ({"seed": -1}, "sampling.seed"),
        ({"seed": 2**64}, "sampling.seed"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings: dict[str, Any], field: str) -> None:
    """What cannot be meant raises InvalidField with the field's path."""
    with pytest.raises(InvalidField) as refused:
        Sampling(**settings)
    assert refused.value.field == field


@pytest.mark.parametrize("sampling", SETTINGS)
def test_a_choice_is_the_best_score_under_noise(sampling: Sampling) -> None:
    """pick and choose equal the definition computed over the whole vocabulary, for every warp."""
    for trial in range(40):
        logits = logits_of(trial, 300, 6.0)
        warped = scores(logits, sampling)
        noise = 0.0 if sampling.greedy else gumbel(sampling.seed, trial, None, 300)
        expected = int(np.argmax(warped + noise))
        assert pick(logits, sampling, trial) == expected == choose(logits, sampling, trial).token


@pytest.mark.parametrize("sampling", [setting for setting in SETTINGS if not setting.greedy])
def test_choices_follow_the_law(sampling: Sampling) -> None:
    """Over 4,000 positions the choices have the law's frequencies (chi-square, 99.9 %), and never leave its support."""
    logits = logits_of(3, 12, 2.0)
    expected = law(logits, sampling) * 4000
    counts = np.bincount([pick(logits, sampling, position) for position in range(4000)], minlength=12)
    assert expected.sum() == pytest.approx(4000)
    assert not counts[expected == 0].any()
    likely = expected > 5
    statistic = float((((counts - expected) ** 2)[likely] / expected[likely]).sum())
    assert statistic < 31.3  # 11 degrees of freedom at most


def test_warps_apply_in_order() -> None:
    """Temperature changes what top_p keeps, and top_p measures mass after top_k."""
    logits = np.log(np.asarray([0.5, 0.25, 0.125, 0.125]))
    assert np.isfinite(scores(logits, Sampling(1.0, 0, 0.7))).tolist() == [True, True, False, False]
    assert np.isfinite(scores(logits, Sampling(4.0, 0, 0.7))).tolist() == [True, True, True, False]
    assert np.isfinite(scores(logits, Sampling(1.0, 2, 0.66))).tolist() == [True, False, False, False]


def test_exact_ties_go_to_the_lower_id() -> None:
    """Equal logits: greedy takes the first, top_k keeps exactly k of them, top_p the first ones that suffice."""
    flat = np.zeros(8, np.float32)
    assert pick(flat, Sampling(), 0) == 0 and choose(flat, Sampling(), 0).gap == 0
    assert np.flatnonzero(np.isfinite(scores(flat, Sampling(1.0, 3)))).tolist() == [0, 1, 2]
    assert np.flatnonzero(np.isfinite(scores(flat, Sampling(1.0, 0, 0.5)))).tolist() == [0, 1, 2, 3]
    assert np.flatnonzero(np.isfinite(scores(flat, Sampling(1.0, 0, 1e-9)))).tolist() == [0]


@given(st.integers(0, 10_000), st.integers(1, 60), st.floats(0.05, 0.999))
def test_top_p_keeps_the_shortest_sufficient_beginning(seed: int, top_k: int, top_p: float) -> None:
    """The mass kept reaches top_p and would not without its least likely id; a large vocabulary changes nothing."""
    logits = logits_of(seed, 1500)
    whole = law(logits, Sampling(1.0, top_k))
    kept = np.isfinite(scores(logits, Sampling(1.0, top_k, top_p)))
    mass = whole[kept].sum()
    assert mass >= top_p - 1e-12
    assert mass - whole[kept].min() < top_p


def test_the_law_is_a_law_even_at_extremes() -> None:
    """Sums to one and stays finite for huge, tiny and single logits and for any temperature."""
    for sampling in (*SETTINGS, Sampling(1e-6), Sampling(1e6)):
        for logits in (np.asarray([1e4, -1e4, 0.0]), np.asarray([3.0]), np.full(5, -1e30)):
            distribution = law(logits, sampling)
            assert np.isfinite(distribution).all() and distribution.sum() == pytest.approx(1.0)
            assert 0 <= pick(logits, sampling, 3) < len(logits)


def test_a_near_tie_is_seen_where_rounding_could_decide() -> None:
    """Close scores, and a warp's boundary that decides who is in, are near ties; clear choices are not."""
    assert choose(np.asarray([20.0, 20.0005, 0.0]), Sampling(), 0).near_tie()
    assert not choose(np.asarray([20.0, 20.01, 0.0]), Sampling(), 0).near_tie()
    boundary = Sampling(1.0, 1, seed=4)
    assert choose(np.asarray([5.0, 5.00001, 0.0]), boundary, 0).near_tie()
    assert not choose(np.asarray([5.0, 6.0, 0.0]), boundary, 0).near_tie()
    assert choose(np.log([0.5, 0.3, 0.2]), Sampling(1.0, 0, 0.500001, seed=1), 0).near_tie() == (
        choose(np.log([0.5, 0.3, 0.2]), Sampling(1.0, 0, 0.500001, seed=1), 0).token == 1
        or pick(np.log([0.5, 0.3, 0.2]), Sampling(1.0, 0, 0.0, seed=1), 0) == 1
    )
    assert choose(np.asarray([1.0]), Sampling(1.0), 0).gap == math.inf


@pytest.mark.parametrize("sampling", SETTINGS)
def test_rounding_never_changes_a_choice_that_is_no_near_tie(sampling: Sampling) -> None:
    """Logits moved by 1e-6 give the same token at every position that does not report a near tie."""
    clear = 0
    for trial in range(300):
        logits = logits_of(trial, 40).astype(np.float64)
        moved = logits + np.random.default_rng((trial, 1)).uniform(-1e-6, 1e-6, 40)
        choice = choose(logits, sampling, trial)
        if not choice.near_tie():
            clear += 1
            assert pick(moved, sampling, trial) == choice.token
    assert clear > 270
