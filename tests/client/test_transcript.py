"""The display of an answer: labels, text that is taken back, and stop strings that end it exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.events import Label
from outrider.client.transcript import Transcript
from outrider.shared.tokenizer import Tokenizer
from tests.tiny import write_tokenizer

STOPS = ("END", "\n\n", "stop here", "é!")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The tiny byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.from_folder(folder)


def emit(transcript: Transcript, ids: tuple[int, ...], label: Label = Label.ACCEPTED) -> None:
    """Append ids with one label."""
    transcript.emit(transcript.end, ids, (label,) * len(ids))


def test_labels_and_positions(tokenizer: Tokenizer) -> None:
    """Tokens keep their position; the verified part ends at the first provisional or kept one."""
    transcript = Transcript(tokenizer, 100)
    emit(transcript, tokenizer.encode("one "))
    emit(transcript, tokenizer.encode("two"), Label.PROVISIONAL)
    verified = len(tokenizer.encode("one "))
    assert [piece.position for piece in transcript.pieces] == list(range(100, transcript.end))
    assert transcript.verified == verified
    transcript.relabel(100 + verified, (Label.ACCEPTED,))
    assert transcript.verified == verified + 1
    transcript.relabel(90, (Label.KEPT,) * 11)
    assert transcript.pieces[0].label is Label.KEPT and transcript.verified == 0
    with pytest.raises(ValueError, match="display ends"):
        transcript.emit(100, (5,), (Label.BONUS,))


@given(data=st.data())
def test_text_is_whole_after_any_revision(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Whatever was shown and taken back, the text is that of the ids on display, and valid at every step."""
    transcript = Transcript(tokenizer, 7)
    for _ in range(data.draw(st.integers(1, 6))):
        emit(transcript, tokenizer.encode(data.draw(st.text("aé漢🙂 \n", max_size=6))))
        transcript.text().encode()
        cut = data.draw(st.integers(7, transcript.end))
        gone = transcript.revise(cut)
        assert transcript.end == cut and all(piece.position >= cut for piece in gone)
        transcript.text().encode()
    emit(transcript, tokenizer.encode(" end"))
    transcript.close()
    assert transcript.text() == tokenizer.decode(transcript.ids)


@given(text=st.text("ENDéstop her!\n", max_size=40), least=st.one_of(st.just(0), st.integers(0, 20)))
def test_a_stop_string_ends_exactly_there(tokenizer: Tokenizer, text: str, least: int) -> None:
    """Token by token: nothing settled is ever taken back, nothing from the first stop string on is ever settled; one
    that begins within the least length is none."""
    ids = tokenizer.encode(text)
    free = Transcript(tokenizer, 0)
    emit(free, ids[:least])
    behind = len(free.text())
    first = min((at for stop in STOPS if (at := text.find(stop, behind)) >= 0), default=len(text))
    transcript = Transcript(tokenizer, 3, STOPS, least)
    printed, found = "", None
    for token in ids:
        emit(transcript, (token,))
        settled = transcript.settled(transcript.verified)
        assert settled.startswith(printed)
        printed = settled
        found = transcript.stop_after(3)
        if found is not None:
            break
    assert (found is not None) == (first < len(text))
    assert found is None or found == transcript.end
    assert text[:first].startswith(printed)
    transcript.close()
    assert transcript.text() == text[:first]
    assert "".join(piece.text for piece in transcript.pieces) == text[:first]


@given(text=st.text("ENDab", max_size=30), cut=st.integers(0, 30), least=st.integers(0, 9))
def test_stops_across_what_was_checked_before(tokenizer: Tokenizer, text: str, cut: int, least: int) -> None:
    """Looking only at new tokens finds a stop string that began in old ones, if not within the least length."""
    ids = tokenizer.encode(text)
    old, new = ids[:cut], ids[cut:]
    transcript = Transcript(tokenizer, 0, ("END",), least)
    emit(transcript, old)
    if transcript.stop_after(0) is not None:
        return
    emit(transcript, new)
    assert transcript.stop_after(len(old)) == transcript.stop_after(0)


def test_an_unfinished_character_is_given_out_at_the_end(tokenizer: Tokenizer) -> None:
    """Half a character is not shown while it may be completed, and replaced when it was the last."""
    transcript = Transcript(tokenizer, 0)
    emit(transcript, tokenizer.encode("a🙂")[:-1])
    assert transcript.text() == "a"
    transcript.close()
    assert transcript.text() == tokenizer.decode(transcript.ids) == "a�"
