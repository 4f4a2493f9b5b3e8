"""The tail is one operation: commit, drop the equal head, cut at the first difference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.tail import Committed, Tail

IDS = st.lists(st.integers(0, 3), max_size=8)


def test_a_commit_that_was_foreseen_shortens_the_tail() -> None:
    """What was shown becomes verified, the rest of the tail stays."""
    tail = Tail(10, [1, 2, 3, 4], shown=3)
    assert tail.commit(10, [1, 2]) == Committed(kept=2, shown=2, revised=0, cut=False)
    assert (tail.start, tail.ids, tail.shown) == (12, [3, 4], 1)


def test_the_first_difference_cuts_the_tail() -> None:
    """Everything from the difference on is wrong, on display or not."""
    tail = Tail(10, [1, 2, 3, 4], shown=3)
    assert tail.commit(10, [1, 9]) == Committed(kept=1, shown=1, revised=2, cut=True)
    assert (tail.start, tail.ids, tail.shown) == (12, [], 0)


def test_a_commit_longer_than_the_tail_cuts_nothing() -> None:
    """A bonus token after a draft kept whole takes nothing back."""
    tail = Tail(10, [1, 2], shown=2)
    assert tail.commit(10, [1, 2, 7]) == Committed(kept=2, shown=2, revised=0, cut=False)
    assert (tail.start, tail.ids, tail.shown) == (13, [], 0)


def test_a_commit_elsewhere_is_refused() -> None:
    """Positions are the caller's to strip."""
    with pytest.raises(ValueError, match="starts at 10"):
        Tail(10).commit(11, [1])


@given(ids=IDS, shown=st.integers(0, 8), committed=IDS, more=IDS)
def test_laws(ids: list[int], shown: int, committed: list[int], more: list[int]) -> None:
    """For any commit: the display equals the committed text and a tail that continues it, or was taken back."""
    shown = min(shown, len(ids))
    tail = Tail(5, list(ids), shown)
    display = ids[:shown]
    result = tail.commit(5, committed)
    assert ids[: result.kept] == committed[: result.kept]
    assert result.shown == min(result.kept, shown)
    display = display[: len(display) - result.revised]
    assert display[: len(committed)] == committed[: len(display)]
    assert tail.start == 5 + len(committed)
    assert result.shown + result.revised + tail.shown == shown
    if not result.cut:
        assert tail.ids == ids[result.kept :]
    tail.extend(more)
    start, newly = tail.show()
    assert start + len(newly) == tail.end and tail.shown == len(tail.ids)


@given(ids=IDS, shown=st.integers(0, 8), length=st.integers(0, 16))
def test_cutting_takes_back_exactly_what_was_shown_beyond(ids: list[int], shown: int, length: int) -> None:
    """A cut keeps positions below the length and counts what was on display above it."""
    shown = min(shown, len(ids))
    tail = Tail(5, list(ids), shown)
    revised = tail.cut(length)
    kept = max(length - 5, 0)
    assert tail.ids == ids[:kept]
    assert revised == shown - tail.shown and tail.shown <= len(tail.ids)
