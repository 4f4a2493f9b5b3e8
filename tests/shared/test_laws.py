"""Laws of sparse draft laws: integers that sum up, close to what they round, and sampled exactly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outrider.shared.errors import InvalidField
from outrider.shared.laws import SparseLaw, quantise, sample, sample_distinct

Law = NDArray[np.float64]


@st.composite
def laws(draw: st.DrawFn) -> Law:
    """Laws of up to 40 ids, flat to very peaked, with zeros and equal entries."""
    size = draw(st.integers(1, 40))
    scores = draw(
        st.lists(st.sampled_from([0.0, 1.0, 1.0, 3.0, -2.0, 11.5, -40.0]), min_size=size, max_size=size)
    )
    law = np.exp(np.asarray(scores)) * np.asarray(draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    law = law if law.any() else np.eye(1, size)[0]
    return law / law.sum()


@st.composite
def dials(draw: st.DrawFn) -> dict[str, float]:
    """Entries kept, mass kept, bits."""
    bits = draw(st.integers(1, 16))
    return {
        "bits": bits,
        "top": draw(st.integers(1, min(255, 1 << bits, 45))),
        "mass": draw(st.sampled_from([1.0, 0.999, 0.9, 0.5])),
    }


def tv(one: Law, other: Law) -> float:
    """Total variation."""
    return float(np.abs(one - other).sum()) / 2


@settings(max_examples=150, deadline=None)
@given(laws(), dials())
def test_a_rounded_law_is_a_law_of_integers_close_to_the_original(law: Law, dial: dict[str, float]) -> None:
    """Counts of at least 1 that sum to 2^bits, on likely ids only, within (1 - mass kept) + entries / 2^bits."""
    sparse = quantise(law, **dial)  # type: ignore[arg-type]
    assert sum(sparse.counts) == 1 << sparse.bits and min(sparse.counts) >= 1
    assert len(sparse.ids) <= dial["top"] and list(sparse.ids) == sorted(set(sparse.ids))
    assert law[list(sparse.ids)].min() > 0
    kept = float(law[list(sparse.ids)].sum())
    assert (
        len(sparse.ids) == dial["top"] or kept >= dial["mass"] - 1e-12 or len(sparse.ids) == (law > 0).sum()
    )
    assert law[list(sparse.ids)].min() >= np.sort(law)[::-1][len(sparse.ids) - 1]
    dense = sparse.dense(len(law))
    assert dense.sum() == 1.0
    assert tv(dense, law) <= (1 - kept) + len(sparse.ids) / (1 << sparse.bits) + 1e-12
    assert quantise(law, **dial) == sparse  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None)
@given(laws(), dials(), st.integers(0, 2**32 - 1))
def test_the_price_in_acceptance_is_bounded(law: Law, dial: dict[str, float], seed: int) -> None:
    """Against any target, 1 - TV moves by no more than the rounding moved the law."""
    target = np.random.default_rng(seed).dirichlet(np.full(len(law), 0.5))
    sparse = quantise(law, **dial)  # type: ignore[arg-type]
    dense = sparse.dense(len(law))
    kept = float(law[list(sparse.ids)].sum())
    change = abs(np.minimum(target, dense).sum() - np.minimum(target, law).sum())
    assert change <= tv(dense, law) + 1e-12
    assert change <= (1 - kept) + len(sparse.ids) / (1 << sparse.bits) + 1e-12


@settings(max_examples=50, deadline=None)
@given(laws(), st.integers(1, 10))
def test_sampling_follows_the_integers_exactly(law: Law, bits: int) -> None:
    """Of 2^bits evenly spaced coins each id is drawn by exactly its count."""
    sparse = quantise(law, bits=bits, top=min(1 << bits, 40))
    drawn = [
        sample(sparse, (ticket + offset) / (1 << bits))
        for ticket in range(1 << bits)
        for offset in (0, 0.999)
    ]
    assert {token: drawn.count(token) // 2 for token in set(drawn)} == dict(
        zip(sparse.ids, sparse.counts, strict=True)
    )


def test_draws_without_replacement_follow_the_rest() -> None:
    """Two draws over a grid of coins: the first by count, the second by count among what is left; at most all ids."""
    law = SparseLaw(4, (5, 2, 9), (8, 5, 3))
    side = 16 * 8 * 11 * 13
    first = [(k + 0.5) / 16 for k in range(16)]
    second = [(k + 0.5) / (8 * 11 * 13) for k in range(8 * 11 * 13)]
    seen: dict[tuple[int, ...], int] = {}
    for pair in itertools.product(first, second):
        drawn = sample_distinct(law, pair)
        seen[drawn] = seen.get(drawn, 0) + 1
    counts = dict(zip(law.ids, law.counts, strict=True))
    for (one, two), times in seen.items():
        assert times / side == pytest.approx(counts[one] / 16 * counts[two] / (16 - counts[one]), abs=1e-12)
    assert len(seen) == 6
    assert sorted(sample_distinct(law, (0.1,) * 9)) == [2, 5, 9]


def test_ids_of_a_smaller_vocabulary_are_renamed() -> None:
    """The drafter's own indices become the target's ids, ascending; ties go by index, the lower first."""
    law = np.asarray([0.25, 0.25, 0.25, 0.25])
    assert quantise(law, top=2, bits=4) == SparseLaw(4, (0, 1), (8, 8))
    assert quantise(law, top=2, bits=4, ids=np.asarray([90, 7, 1, 2])) == SparseLaw(4, (7, 90), (8, 8))
    assert quantise(np.asarray([1.0]), bits=16) == SparseLaw(16, (0,), (65536,))


@pytest.mark.parametrize(
    "given_law", [[0.5, -0.1, 0.6], [0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]]
)
def test_what_is_no_law_cannot_be_rounded(given_law: list[float]) -> None:
    """Negative, empty, NaN and infinite laws raise ValueError, as do dials out of range."""
    with pytest.raises(ValueError, match="not a law"):
        quantise(np.asarray(given_law))
    for dial in ({"bits": 0}, {"bits": 17}, {"top": 0}, {"top": 256}, {"top": 3, "bits": 1}, {"mass": 0.0}):
        with pytest.raises(ValueError, match="expected"):
            quantise(np.asarray([0.5, 0.5]), **dial)


@pytest.mark.parametrize(
    ("bits", "ids", "counts", "field"),
    [
        (0, (1,), (1,), "bits"),
        (17, (1,), (1 << 17,), "bits"),
        (4, (), (), "sizes"),
        (16, tuple(range(256)), (256,) * 256, "sizes"),
        (4, (1, 2), (16,), "counts"),
        (4, (1, 1), (8, 8), "ids"),
        (4, (-1, 1), (8, 8), "ids"),
        (4, (1, 2), (16, 0), "counts"),
        (4, (1, 2), (17, -1), "counts"),
        (4, (1, 2), (8, 7), "counts"),
        (4, (1, 2), (8, 9), "counts"),
    ],
)
def test_what_is_no_sparse_law_is_refused_by_field(
    bits: int, ids: tuple[int, ...], counts: tuple[int, ...], field: str
) -> None:
    """Bits, sizes, ids and counts each name themselves."""
    with pytest.raises(InvalidField) as refused:
        SparseLaw(bits, ids, counts)
    assert refused.value.field == f"draft.laws.{field}"
