"""Stop strings over a text in pieces: found where they end, held back while they may begin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.shared.stops import completes, cut, settled

STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)


@given(st.lists(st.text("ab\n", max_size=4), max_size=10), STOPS, st.integers(0, 6))
def test_pieces_end_where_the_whole_text_does(pieces: list[str], stops: list[str], free: int) -> None:
    """The first piece that completes a stop string is the first after which the text behind the ``free`` first pieces
    holds one."""
    text, least = "", 0
    for number, piece in enumerate(pieces):
        before, text = text, text + piece
        least = len(text) if number < free else least
        assert completes(before, piece, stops, least) == any(stop in text[least:] for stop in stops)
        if completes(before, piece, stops, least):
            ends = [text.find(stop, least) for stop in stops]
            assert cut(text, stops, least) == text[: min(end for end in ends if end >= 0)]
            return
    assert cut(text, stops, least) == text


@given(st.text("ab\n", max_size=12), st.text("ab\n", max_size=6), STOPS, st.integers(0, 12))
def test_what_is_settled_stands_and_nothing_else_is_held_back(
    text: str, more: str, stops: list[str], least: int
) -> None:
    """However the text goes on, what was settled stays; what is held back could have begun a stop string, and lies
    behind the least length."""
    least = min(least, len(text))
    shown = settled(text, stops, least)
    assert len(shown) >= least
    if cut(text, stops, least) == text:
        assert cut(text + more, stops, least).startswith(shown)
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)
    else:
        assert shown == cut(text, stops, least)
