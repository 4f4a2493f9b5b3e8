"""Stop strings over a text in pieces: found where they end, held back while they may begin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.shared.stops import completes, cut, settled

STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)


@given(st.lists(st.text("ab\n", max_size=4), max_size=10), STOPS)
def test_pieces_end_where_the_whole_text_does(pieces: list[str], stops: list[str]) -> None:
    """The first piece that completes a stop string is the first after which the text so far holds one."""
    text = ""
    for piece in pieces:
        before, text = text, text + piece
        assert completes(before, piece, stops) == any(stop in text for stop in stops)
        if completes(before, piece, stops):
            assert cut(text, stops) == text[: min(text.find(stop) for stop in stops if stop in text)]
            return
    assert cut(text, stops) == text


@given(st.text("ab\n", max_size=12), st.text("ab\n", max_size=6), STOPS)
def test_what_is_settled_stands_and_nothing_else_is_held_back(text: str, more: str, stops: list[str]) -> None:
    """However the text goes on, what was settled stays; and what is held back could have begun a stop string."""
    shown = settled(text, stops)
    if cut(text, stops) == text:
        assert cut(text + more, stops).startswith(shown)
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)
    else:
        assert shown == cut(text, stops)
