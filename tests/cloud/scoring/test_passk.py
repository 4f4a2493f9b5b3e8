"""The estimator of pass@k."""

from __future__ import annotations

import itertools

import pytest

from outrider.cloud.evaluate.scoring.passk import pass_at_k


@pytest.mark.parametrize("samples", range(1, 8))
def test_it_is_the_share_of_subsets_with_a_pass(samples: int) -> None:
    """Over all subsets of k of n samples, c of them passed: counted one by one."""
    for passed, k in itertools.product(range(samples + 1), range(1, samples + 1)):
        subsets = list(itertools.combinations(range(samples), k))
        share = sum(min(chosen) < passed for chosen in subsets) / len(subsets)
        assert pass_at_k(samples, passed, k) == pytest.approx(share, abs=1e-12)


def test_it_is_unbiased_where_the_naive_estimate_is_not() -> None:
    """Mean over all outcomes of five samples at rate r: 1 - (1 - r)^k exactly; 1 - (1 - c/n)^k is off (the control)."""
    rate, samples, k = 0.3, 5, 3
    mean = naive = 0.0
    for outcome in itertools.product((0, 1), repeat=samples):
        passed = sum(outcome)
        chance = rate**passed * (1 - rate) ** (samples - passed)
        mean += chance * pass_at_k(samples, passed, k)
        naive += chance * (1 - (1 - passed / samples) ** k)
    assert mean == pytest.approx(1 - (1 - rate) ** k, abs=1e-12)
    assert abs(naive - (1 - (1 - rate) ** k)) > 0.02


@pytest.mark.parametrize("wrong", [(5, 6, 1), (5, -1, 1), (5, 2, 0), (5, 2, 6)])
def test_numbers_that_cannot_be_are_refused(wrong: tuple[int, int, int]) -> None:
    """More passed than tried, or more asked for than tried."""
    with pytest.raises(ValueError, match="expected"):
        pass_at_k(*wrong)
