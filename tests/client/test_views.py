"""What reaches stdout: verified text in a pipe, marks without colours, labels on a terminal; never a control code."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from outrider.client.answers import Answer, Finished
from outrider.client.events import Emit, Finish, Label, LinkState, Relabel, Report, Revise
from outrider.client.views import STYLES, LiveView, MarkedView, PipeView, View
from outrider.shared.tokenizer import Tokenizer
from tests.tiny import write_tokenizer

Actions = list[Emit | Relabel | Revise | Report | Finish]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The tiny byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.from_folder(folder)


def play(view: View, answer: Answer, actions: Actions) -> None:
    """Let the view see what the actions mean for the caller."""
    for action in actions:
        answer.take(action, 1.0)
        while not answer.queue.empty():
            view.show(answer.queue.get_nowait(), answer.transcript)
    view.close()


def outage(tokenizer: Tokenizer) -> tuple[Actions, str]:
    """Verified, then provisional text of which a part is kept and the rest revised; and the final text."""
    first, kept = tokenizer.encode("one two"), tokenizer.encode(" three")
    wrong, right = tokenizer.encode(" wxyz\n"), tokenizer.encode(" four\nfive")
    at = len(first)
    return [
        Report(LinkState.ONLINE),
        Emit(0, first, (Label.ACCEPTED,) * len(first)),
        Report(LinkState.OFFLINE, "the link went away"),
        Emit(at, kept + wrong, (Label.PROVISIONAL,) * len(kept + wrong)),
        Relabel(at, (Label.ACCEPTED,) * len(kept)),
        Revise(at + len(kept), len(wrong)),
        Emit(at + len(kept), right, (Label.RECOVERED, *[Label.BONUS] * (len(right) - 1))),
        Finish("length", True),
    ], "one two three four\nfive"


def test_a_pipe_gets_verified_text_only(tokenizer: Tokenizer) -> None:
    """Nothing is written that is taken back later; notes go to stderr."""
    actions, final = outage(tokenizer)
    out, err = io.StringIO(), io.StringIO()
    play(PipeView(out, err), Answer(tokenizer, 0, (), 0.0), actions)
    assert out.getvalue() == final + "\n"
    assert "the link went away" in err.getvalue()


def test_standalone_text_is_written_as_it_comes(tokenizer: Tokenizer) -> None:
    """With nothing that could take it back, provisional text goes to the pipe at once; kept to the end otherwise."""
    ids = tokenizer.encode("all alone")
    emitted = Emit(0, ids, (Label.PROVISIONAL,) * len(ids))
    for unverified, expected in ((True, "all alone"), (False, "")):
        out, answer = io.StringIO(), Answer(tokenizer, 0, (), 0.0)
        view = PipeView(out, io.StringIO(), unverified=unverified)
        answer.take(emitted, 0.0)
        view.show(answer.queue.get_nowait(), answer.transcript)
        assert out.getvalue() == expected
        answer.take(Finish("offline", False), 0.0)
        view.show(answer.queue.get_nowait(), answer.transcript)
        assert out.getvalue() == "all alone"


def test_half_a_stop_string_is_not_printed(tokenizer: Tokenizer) -> None:
    """The beginning of a stop string waits until it is known to be one, or not."""
    for text, expected in (("abc EN", "abc EN"), ("abc END", "abc "), ("abc EN.", "abc EN.")):
        ids = tokenizer.encode(text)
        out = io.StringIO()
        answer = Answer(tokenizer, 0, ("END",), 0.0)
        actions: Actions = [Emit(n, (token,), (Label.RUN_AHEAD,)) for n, token in enumerate(ids)]
        play(PipeView(out, io.StringIO()), answer, [*actions, Finish("stop", True)])
        assert out.getvalue() == expected + "\n"


def test_marks_tell_what_colours_would(tokenizer: Tokenizer) -> None:
    """Plain text: provisional tokens in brackets, what was taken back quoted, the link's state in words."""
    actions, _ = outage(tokenizer)
    out = io.StringIO()
    play(MarkedView(out), Answer(tokenizer, 0, (), 0.0), actions)
    text = out.getvalue()
    assert "one two" in text and "⟨ three wxyz\n⟩" in text
    assert f"revised: {len(tokenizer.encode(' wxyz') + (0,))} tokens taken back" in text
    assert "the link went away" in text and "online" in text
    assert "\x1b" not in text


def test_a_terminal_ends_with_the_final_text(tokenizer: Tokenizer) -> None:
    """Whatever was repainted on the way, what stays on the screen is the answer."""
    actions, final = outage(tokenizer)
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=80, color_system=None, highlight=False, legacy_windows=False
    )
    play(LiveView(console), Answer(tokenizer, 0, (), 0.0), actions)
    assert screen(out.getvalue())[: len(final.split("\n"))] == final.split("\n")


@pytest.mark.parametrize("alone", [True, False])
def test_a_terminal_says_what_a_device_does_without_a_link(tokenizer: Tokenizer, alone: bool) -> None:
    """It drafts alone, unless it was told never to."""
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=80, color_system=None, highlight=False, legacy_windows=False
    )
    play(LiveView(console, alone=alone), Answer(tokenizer, 0, (), 0.0), outage(tokenizer)[0])
    assert ("offline, drafting alone" in out.getvalue()) is alone
    assert "offline" in out.getvalue()


def test_every_label_has_a_style_of_its_own() -> None:
    """No two labels look the same, and the unverified ones differ without colours too."""
    assert set(STYLES) == set(Label)
    assert len(set(STYLES.values())) == len(STYLES)
    assert all("underline" in STYLES[label] for label in (Label.PROVISIONAL, Label.KEPT))


@given(text=st.text(st.sampled_from("a\x1b[31m\x9b]0;\x07\r\x08\u202e\n"), max_size=30))
def test_no_control_code_reaches_the_terminal(tokenizer: Tokenizer, text: str) -> None:
    """A target that writes escape sequences moves no cursor and sets no title."""
    ids = tokenizer.encode(text)
    actions: Actions = [Emit(n, (token,), (Label.ACCEPTED,)) for n, token in enumerate(ids)]
    for make in (lambda out: PipeView(out, out), MarkedView):
        out = io.StringIO()
        play(make(out), Answer(tokenizer, 0, (), 0.0), [*actions, Finish("length", True)])
        assert not set(out.getvalue()) & set("\x1b\x9b\x07\r\x08\u202e")


def test_figures_of_an_answer(tokenizer: Tokenizer) -> None:
    """Provisional, kept and revised tokens are counted, and the labels of the final text."""
    actions, _ = outage(tokenizer)
    answer = Answer(tokenizer, 0, (), 0.0)
    events = []
    for now, action in enumerate(actions):
        answer.take(action, float(now))
        while not answer.queue.empty():
            events.append(answer.queue.get_nowait())
    finished = events[-1]
    assert isinstance(finished, Finished)
    kept, wrong = len(tokenizer.encode(" three")), len(tokenizer.encode(" wxyz\n"))
    stats = finished.stats
    assert (stats.provisional, stats.kept, stats.revised) == (kept + wrong, kept, wrong)
    assert stats.tokens == len(answer.transcript.ids) == sum(stats.labels.values())
    assert stats.labels["recovered"] == 1 and "provisional" not in stats.labels
    assert stats.first_at == 1.0 and stats.ended_at == 7.0 and stats.offline_s == 5.0


def screen(written: str) -> list[str]:
    """What a terminal shows after this: line feeds, carriage returns, cursor up and erase line are understood."""
    lines, row, column, at = [""], 0, 0, 0
    while at < len(written):
        if written.startswith("\x1b[", at):
            end = next(n for n in range(at + 2, len(written)) if written[n].isalpha())
            count, kind = written[at + 2 : end], written[end]
            if kind == "A":
                row = max(row - int(count or 1), 0)
            elif kind == "K":
                lines[row] = "" if count == "2" else lines[row][:column]
            at = end + 1
            continue
        character = written[at]
        at += 1
        if character == "\n":
            row, column = row + 1, 0
            lines.extend([""] * (row + 1 - len(lines)))
        elif character == "\r":
            column = 0
        else:
            lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]
