"""Golden values of the statistics that judging reports."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest, mannwhitneyu

from outrider.cloud.judge.stats import (
    auc,
    auc_interval,
    mcnemar,
    ratio_interval,
    recovered_interval,
    wilson,
)


def test_wilson_intervals_are_those_of_the_tables() -> None:
    """8 of 10, none of 10 and all of 10, and scipy's for a few more; nothing of nothing is unknown."""
    assert wilson(8, 10).low == pytest.approx(0.4901625, abs=1e-6)
    assert wilson(8, 10).high == pytest.approx(0.9433178, abs=1e-6)
    assert wilson(0, 10).low == 0.0
    assert wilson(0, 10).high == pytest.approx(0.2775328, abs=1e-6)
    assert wilson(10, 10).high == 1.0
    for hits, count in ((1, 7), (45, 100), (399, 400)):
        expected = binomtest(hits, count).proportion_ci(method="wilson")
        found = wilson(hits, count)
        assert found.low == pytest.approx(expected.low)
        assert found.high == pytest.approx(expected.high)
    assert math.isnan(wilson(0, 0).value)


def test_mcnemar_is_the_exact_binomial_test() -> None:
    """10 against 2 gives 158/4096; even splits and no discordant prompts give 1; scipy agrees."""
    assert mcnemar(10, 2) == mcnemar(2, 10) == 158 / 4096
    assert mcnemar(0, 0) == mcnemar(3, 3) == 1.0
    assert mcnemar(0, 5) == 0.0625
    for first, second in ((7, 1), (12, 20), (0, 11)):
        assert mcnemar(first, second) == pytest.approx(binomtest(first, first + second).pvalue)


def test_auc_counts_pairs() -> None:
    """Ties count half, one class alone gives nothing, and scipy's U agrees."""
    scores = np.array([0.1, 0.4, 0.4, 0.8])
    assert auc(scores, np.array([False, False, True, True])) == 0.875
    assert auc(-scores, np.array([False, False, True, True])) == 0.125
    assert math.isnan(auc(scores, np.ones(4, bool)))
    rng = np.random.default_rng(2)
    drawn, good = rng.integers(0, 9, 60).astype(float), rng.random(60) < 0.4
    expected = mannwhitneyu(drawn[good], drawn[~good]).statistic / (good.sum() * (~good).sum())
    assert auc(drawn, good) == pytest.approx(expected)


def test_intervals_by_prompt_are_wider_than_those_of_single_labels() -> None:
    """Where a prompt's labels are all alike, ten copies of each tell no more than one does."""
    rng = np.random.default_rng(4)
    scores, good = rng.normal(size=40), rng.random(40) < 0.5
    alone = auc_interval(scores, good, range(40))
    copies = auc_interval(np.repeat(scores, 10), np.repeat(good, 10), np.repeat(np.arange(40), 10).tolist())
    assert copies.value == pytest.approx(alone.value)
    assert copies.high - copies.low == pytest.approx(alone.high - alone.low, rel=0.15)


def test_recovered_is_the_drafters_share_won_back() -> None:
    """All of it at the target's accuracy, none at the drafter's, a half in between; nothing where there is no room."""
    target = np.array([1.0] * 8 + [0.0] * 2)
    draft = np.array([1.0] * 4 + [0.0] * 6)
    half = np.array([1.0] * 6 + [0.0] * 4)
    assert recovered_interval(target, draft, target).value == 1.0
    assert recovered_interval(draft, draft, target).value == 0.0
    found = recovered_interval(half, draft, target)
    assert found.value == 0.5 and found.low <= 0.5 <= found.high
    assert math.isnan(recovered_interval(half, target, draft).value)


def test_a_quotient_of_sums_is_not_a_mean_of_quotients() -> None:
    """Tokens per call weigh prompts by their calls."""
    found = ratio_interval(np.array([10.0, 2.0]), np.array([2.0, 2.0]))
    assert (found.value, found.low, found.high) == (3.0, 1.0, 5.0)
