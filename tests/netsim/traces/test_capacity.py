"""Laws of a capacity in time: its sums, their exact inverse, its period."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.netsim.errors import BadConfig
from outrider.netsim.traces import Capacity, Steps
from outrider.netsim.traces.capacity import SLACK_BYTES

BYTES_PER_MBIT = 125_000
STEPS = (
    st.lists(
        st.tuples(st.floats(0.01, 20), st.one_of(st.just(0.0), st.floats(0.05, 200))), min_size=1, max_size=8
    )
    .filter(lambda steps: any(mbit for _, mbit in steps))
    .map(Capacity.steps)
)
STARTS = st.floats(0, 500)
SIZES = st.integers(1, 10**7)
GAPPY = Capacity.steps([(1, 8), (2, 0), (1, 4), (0.5, 0)])
"""1e6 bytes, a gap to 3 s, 5e5 bytes, a gap to 4.5 s, again."""


def fastest(capacity: Capacity) -> float:
    return max(map(capacity.bytes_per_s, capacity.times_s))


@pytest.mark.parametrize(
    ("start", "nbytes", "expected"),
    [
        (0.0, 1000, 0.001),
        (0.5, 500_000, 1.0),  # ends where the gap begins, not where it ends
        (0.5, 500_001, 3.000002),
        (2.0, 1, 3.000002),  # begun within the gap
        (0.0, 1_500_000, 4.0),
        (0.0, 1_500_001, 4.500001),  # round the corner
        (0.0, 4_500_000, 13.0),  # three times round, and again just before the gap
        (9.0, 1_000_000, 10.0),
        (3.5, 0, 3.5),
        (2.0, 0, 2.0),
    ],
)
def test_golden_departures(start: float, nbytes: int, expected: float) -> None:
    """Worked out by hand: within a step, across gaps, up to a gap, over the period."""
    assert GAPPY.departure(start, nbytes) == pytest.approx(expected, abs=1e-9)


def test_golden_sums_and_rates() -> None:
    """The curve itself, its mean, its best second, and where it opens after a gap."""
    assert [GAPPY.bytes_by(t) for t in (0, 0.5, 1, 2, 3.5, 4.2, 5.0)] == pytest.approx(
        [0, 5e5, 1e6, 1e6, 1.25e6, 1.5e6, 2e6]
    )
    assert [GAPPY.bytes_per_s(t) for t in (0, 0.99, 1, 2.9, 3, 4, 4.5)] == [1e6, 1e6, 0, 0, 5e5, 0, 1e6]
    assert GAPPY.between(0.5, 3.5) == pytest.approx(750_000)
    assert GAPPY.between(3.5, 0.5) == 0
    assert (GAPPY.period_s, GAPPY.bytes_per_period) == (4.5, 1.5e6)
    assert GAPPY.mean_mbit == pytest.approx(1.5e6 / 4.5 / BYTES_PER_MBIT)
    assert GAPPY.peak_bytes_per_s() == pytest.approx(1e6)
    assert [GAPPY.open_at(t) for t in (0.5, 1.5, 3.2, 4.2, 8.6)] == pytest.approx([0.5, 3, 3.2, 4.5, 9.0])
    assert Capacity.steps([(1, 0), (1, 8)]).open_at(2.5) == 3.0


@given(STEPS, STARTS, SIZES)
def test_departure_is_the_inverse_of_the_sum(capacity: Capacity, start: float, nbytes: int) -> None:
    """What passes up to the departure is what was sent, and just before it less has passed."""
    end = capacity.departure(start, nbytes)
    rounding = SLACK_BYTES + 1e-12 * capacity.bytes_by(end) + 1e-9 * fastest(capacity)
    assert capacity.between(start, end) == pytest.approx(nbytes, abs=rounding)
    assert capacity.between(start, end - 1e-6) < nbytes


@given(STEPS, STARTS, STARTS, SIZES, SIZES)
def test_departure_is_monotone_and_adds_up(
    capacity: Capacity, one: float, other: float, few: int, more: int
) -> None:
    """Later begun or more bytes never end earlier, and two pieces end where both at once end."""
    (one, other), (few, more) = sorted((one, other)), sorted((few, more))
    assert capacity.departure(one, few) <= capacity.departure(other, few) + 1e-9
    assert capacity.departure(one, few) <= capacity.departure(one, more) + 1e-9
    whole = capacity.departure(one, few + more)
    halves = capacity.departure(capacity.departure(one, few), more)
    near = capacity.between(min(whole, halves), max(whole, halves))
    assert near <= 3 * SLACK_BYTES + 1e-9 * fastest(capacity)


@given(STEPS, STARTS, SIZES, st.integers(1, 50))
def test_it_repeats_with_its_period(capacity: Capacity, start: float, nbytes: int, turns: int) -> None:
    """Whole periods later everything is the same, that much later."""
    later = turns * capacity.period_s
    assert capacity.bytes_by(start + later) - capacity.bytes_by(start) == pytest.approx(
        turns * capacity.bytes_per_period, rel=1e-9, abs=1e-3
    )
    moved = capacity.departure(start + later, nbytes)
    here = capacity.departure(start, nbytes) + later
    apart = capacity.between(min(moved, here), max(moved, here))
    assert apart <= 3 * SLACK_BYTES + 1e-8 * fastest(capacity)


@given(st.floats(0.1, 1000), STARTS, SIZES, st.integers(1, 5))
def test_a_constant_trace_is_the_constant_rate(mbit: float, start: float, nbytes: int, pieces: int) -> None:
    """However the file cut the same rate into rows, a departure is start + bytes / rate, to 1e-9."""
    capacity = Capacity.steps([(0.7, mbit)] * pieces)
    expected = start + nbytes / (mbit * BYTES_PER_MBIT)
    assert capacity.departure(start, nbytes) == pytest.approx(expected, abs=1e-9, rel=1e-12)
    assert len(capacity.times_s) == 2


@given(STEPS, st.floats(0, 100), STARTS, SIZES)
def test_begun_later_is_read_from_there(capacity: Capacity, by: float, start: float, nbytes: int) -> None:
    """A shifted trace is the same trace with its clock set on."""
    shifted = capacity.shifted(by)
    assert shifted.period_s == capacity.period_s
    assert shifted.between(0, start) == pytest.approx(capacity.between(by, by + start), rel=1e-9, abs=1e-2)
    end = shifted.departure(start, nbytes)
    assert capacity.between(by + start, by + end) == pytest.approx(nbytes, rel=1e-9, abs=1e-2)


def test_rounding_does_not_lose_a_gap() -> None:
    """Packets sent back to back that fill every opening exactly end at the gaps' begins, a thousand times round."""
    capacity = Capacity.steps([(0.007, 3), (0.9, 0), (0.003, 1.1), (0.09, 0)])
    begins = (0.007, 0.91)
    sizes = (0.007 * 3 * BYTES_PER_MBIT, 0.003 * 1.1 * BYTES_PER_MBIT)
    time = 0.0
    for turn in range(1000):
        for begin, size in zip(begins, sizes, strict=True):
            time = capacity.departure(time, size)
            assert time == pytest.approx(turn * 1.0 + begin, abs=1e-6)


@pytest.mark.parametrize(
    ("times", "sums", "word"),
    [
        ((0.0,), (0.0,), "at least two"),
        ((0.0, 1.0), (0.0,), "as many"),
        ((1.0, 2.0), (0.0, 5.0), "from 0"),
        ((0.0, 1.0, 1.0), (0.0, 1.0, 2.0), "later"),
        ((0.0, math.inf), (0.0, 1.0), "finite"),
        ((0.0, 1.0, 2.0), (0.0, 2.0, 1.0), "never fall"),
        ((0.0, 1.0), (0.0, math.nan), "never fall"),
        ((0.0, 1.0), (0.0, 0.0), "some capacity"),
    ],
)
def test_what_is_no_curve_is_refused(times: tuple[float, ...], sums: tuple[float, ...], word: str) -> None:
    """Times and sums that cannot be a repeating capacity are refused with the reason."""
    with pytest.raises(BadConfig, match=word):
        Capacity(times, sums)


def test_steps_hold_repeat_and_shift() -> None:
    """A value holds until the next, begins again after the period, and can be begun later."""
    steps = Steps((0.0, 1.0, 3.0), (10.0, 20.0, 30.0), 4.0)
    assert [steps.at(t) for t in (0, 0.9, 1, 2.9, 3, 4, 5, 8.5)] == [10, 10, 20, 20, 30, 10, 20, 10]
    assert (steps.median, steps.scaled(0.5).at(3)) == (20, 15)
    for by in (0.0, 0.5, 1.0, 2.5, 3.0, 3.75, 6.5):
        moved = steps.shifted(by)
        times = [i / 8 + 1 / 16 for i in range(64)]
        assert [moved.at(t) for t in times] == [steps.at(t + by) for t in times]
    with pytest.raises(BadConfig, match="rise"):
        Steps((0.0, 4.0), (1.0, 2.0), 4.0)
    with pytest.raises(BadConfig, match="as many"):
        Steps((0.0,), (), 4.0)
