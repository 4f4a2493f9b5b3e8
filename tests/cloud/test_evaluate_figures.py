"""Laws of the evaluation's figures: means by hand, and intervals that cover as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.cloud.evaluate.figures import difference, summarise
from outrider.cloud.evaluate.tables import categories_table, number, rounds_table, with_interval


def test_a_category_is_a_quotient_of_sums_and_the_mean_counts_categories_once() -> None:
    """Two and one prompts, by hand: (6+2)/(2+2) = 2 and 9/3 = 3, mean 2.5; untried measures are left out."""
    tallies = {
        "a": [{"tau": (6.0, 2.0)}, {"tau": (2.0, 2.0), "deep": (0.0, 0.0)}],
        "b": [{"tau": (9.0, 3.0)}],
    }
    found = summarise(tallies)
    assert found.categories["a"]["tau"].value == 2.0
    assert found.categories["b"]["tau"].value == 3.0
    assert found.mean["tau"].value == 2.5
    assert "deep" not in found.mean and "deep" not in found.categories["a"]


def test_a_category_without_a_measure_does_not_count_in_its_mean() -> None:
    """A measure tried in one category only has that category's value."""
    found = summarise({"a": [{"x": (1.0, 4.0)}], "b": [{"y": (1.0, 2.0)}]})
    assert found.mean["x"].value == 0.25 and "x" not in found.categories["b"]


def test_intervals_are_repeatable_hold_the_value_and_vanish_without_spread() -> None:
    """Same seed, same interval; equal prompts give a point; the value lies inside."""
    noise = np.random.default_rng(0)
    tallies = {
        "a": [{"x": (float(value), 4.0)} for value in noise.integers(5, size=12)],
        "b": [{"x": (2.0, 4.0)}] * 5,
    }
    first, second = (summarise(tallies, seed=3) for _ in range(2))
    assert first == second and summarise(tallies, seed=4) != first
    assert first.categories["b"]["x"].low == first.categories["b"]["x"].high == 0.5
    assert first.mean["x"].low < first.mean["x"].value < first.mean["x"].high


@pytest.mark.parametrize("seed", [1, 2])
def test_intervals_cover_the_truth_nearly_as_often_as_they_say(seed: int) -> None:
    """300 experiments of 2 x 20 prompts of uneven length: 95 % intervals hold the truth 88 to 98 times in a hundred.

    Percentile intervals of 20 prompts are known to be a little short (about 93 %). A broken one (a standard error off
    by a factor of 1.5 either way) would cover 81 or 99.7: both lie outside by more than three standard errors (1.4 %).
    """
    noise = np.random.default_rng(seed)
    held = 0
    for _ in range(300):
        tallies = {}
        for category, rate in (("a", 0.3), ("b", 0.6)):
            tried = noise.integers(20, 60, size=20)
            # A rate of its own per prompt: prompts, not tokens, are what varies.
            right = noise.binomial(tried, np.clip(noise.normal(rate, 0.1, size=20), 0, 1))
            tallies[category] = [{"x": (float(a), float(b))} for a, b in zip(right, tried, strict=True)]
        figure = summarise(tallies, seed=seed, resamples=300).mean["x"]
        held += figure.low <= 0.45 <= figure.high
    assert 0.88 <= held / 300 <= 0.98


def test_a_difference_is_drawn_in_pairs() -> None:
    """A constant advantage on prompts that differ widely has an interval of no width; other prompts are refused."""
    noise = np.random.default_rng(0)
    easy = noise.uniform(1, 5, size=(2, 9))
    one = {name: [{"x": (value + 0.25, 1.0)} for value in row] for name, row in zip("ab", easy, strict=True)}
    other = {name: [{"x": (value, 1.0)} for value in row] for name, row in zip("ab", easy, strict=True)}
    found = difference(one, other, "x")
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    alone = summarise(one).mean["x"]
    assert alone.high - alone.low > 0.5
    assert difference(one, other, "y") is None
    with pytest.raises(ValueError, match="9 prompts"):
        difference(one, {"a": other["a"], "b": other["b"][:8]}, "x")


def test_tables_show_what_there_is_and_a_dash_elsewhere() -> None:
    """A drafter without a measure has a dash in its place."""
    row = {
        "name": "ngram",
        "tau_chain4": 1.234,
        "intervals": {"tau_chain4": [1.1, 1.4]},
        "acceptance": [0.5, None, None, None, None, None, None, None],
        "step_ms": None,
        "row_bytes": 0,
        "categories": {"qa": {"prompts": 1, "tau_chain4": [1.2, 1.1, 1.4]}, "sum": {"prompts": 1}},
    }
    assert with_interval(row, "tau_chain4") == "1.23 [1.10, 1.40]"
    assert number(None) == with_interval(row, "tau_tree24") == "–"
    assert rounds_table([row]).splitlines()[2].startswith("| ngram | 1.23 [1.10, 1.40] | – |")
    assert categories_table([row], "tau_chain4").splitlines()[2] == (
        "| ngram | 1.20 [1.10, 1.40] | – | 1.23 [1.10, 1.40] |"
    )
