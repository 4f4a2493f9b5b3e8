"""A journal adds up to the session it came from, whatever part of its end is lost."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from outrider.client.journal import (
    Record,
    commit_record,
    end_record,
    epoch_record,
    provisional_record,
    restore,
    session_record,
    turn_record,
)
from outrider.shared.anchor import EMPTY, extend
from outrider.shared.errors import InvalidField
from outrider.shared.frames import Fingerprints, Rule, TokenKind, Turn
from outrider.shared.sampling import LogProbs, Sampling

A, B = TokenKind.ACCEPTED, TokenKind.BONUS
FIRST = Turn(1, EMPTY, (5, 6, 7), 3, 20, (0,), Sampling(0.5, 4, 0.9, 2**40), Rule("coupled"))
SECOND = Turn(2, extend(EMPTY, (5, 6, 7, 8)), (30,), 5, 25)


def records() -> list[Record]:
    """A session of two turns, the second under way and partly provisional; through JSON, as a file would."""
    made = [
        session_record(b"s" * 16, Fingerprints(b"l" * 32, b"t" * 32)),
        epoch_record(1),
        turn_record(FIRST),
        commit_record(1, 3, (8, 9), (A, B)),
        end_record(1, "stop", True, 5),
        turn_record(SECOND),
        epoch_record(2),
        commit_record(2, 5, (40,), (A,)),
        provisional_record(2, 6, (41, 42)),
        provisional_record(2, 8, (43,)),
        commit_record(2, 6, (41,), (A,)),
    ]
    return [json.loads(json.dumps(record)) for record in made]


def test_everything_comes_back() -> None:
    """Ids, kinds, turn, epoch, tail."""
    state = restore(records())
    assert state.session_id == b"s" * 16
    assert state.fingerprints == Fingerprints(b"l" * 32, b"t" * 32)
    assert state.epoch == 2
    assert state.turn == SECOND
    assert state.sequence.ids == [5, 6, 7, 8, 30, 40, 41]
    assert state.kinds == {3: A, 5: A, 6: A}
    assert (state.tail.start, state.tail.ids, state.tail.shown) == (7, [42, 43], 2)
    assert state.end is None


def test_the_first_turn_comes_back_whole() -> None:
    """Sampling, rule and stop ids survive JSON; an ended turn says why."""
    state = restore(records()[:5])
    assert state.turn == FIRST
    assert state.end == "stop"
    assert state.sequence.anchor == extend(EMPTY, (5, 6, 7, 8, 9))


def test_a_turn_that_gave_up_on_its_verifier_is_not_over() -> None:
    """Nothing ended but the waiting: with a verifier the turn goes on where it stands; a cancelled one does not."""
    under_way = restore(records())
    for reason, end in (("unreachable", None), ("cancelled", "cancelled")):
        state = restore([*records(), end_record(2, reason, False, 7)])
        assert state.end == end
        assert state.sequence.ids == under_way.sequence.ids
        assert len(state.tail.ids) == (0 if end else 2)


def test_every_prefix_is_a_session() -> None:
    """Losing the end of a journal loses text, never sense."""
    whole = records()
    for length in range(len(whole) + 1):
        state = restore(whole[:length])
        assert state.tail.start == len(state.sequence) or state.turn is None


def test_provisional_text_that_was_refused_is_gone() -> None:
    """A commit that differs cuts the tail, as it did on the device."""
    made = [*records(), commit_record(2, 7, (99,), (A,))]
    state = restore(made)
    assert state.sequence.ids[-1] == 99
    assert state.tail.ids == []


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "nonsense"},
        {"kind": "commit", "turn": 2, "start": 3, "ids": [1], "kinds": [1]},
        {"kind": "commit", "turn": 2, "start": "7", "ids": [1], "kinds": [1]},
        {"kind": "turn", "turn": 3, "keep": 99, "append": []},
        {"kind": "epoch", "epoch": None},
    ],
)
def test_contradictions_are_refused(bad: Record) -> None:
    """A record that cannot follow is named, not guessed at."""
    with pytest.raises(InvalidField):
        restore([*records(), bad])


def test_warps_stops_and_log_probs_come_back() -> None:
    """A resumed turn is the turn that was begun, and what was told of its tokens is known; a rewrite forgets."""
    sampling = Sampling(0.5, 4, 0.9, 2**40, 0.05, 1.2, 0.5, -0.25, 7, ((3, -1.5), (9, 0.1)))
    told = (LogProbs(-0.25, -0.125), LogProbs(-3.5, -math.inf))
    warped = replace(FIRST, sampling=sampling, log_probs=True)
    made = [turn_record(warped, ("END", "\n\n")), commit_record(1, 3, (8, 9), (A, B), told)]
    state = restore(json.loads(json.dumps(made, allow_nan=False)))
    assert state.turn == warped and state.stops == ("END", "\n\n")
    assert state.log_probs == dict(enumerate(told, 3))
    later = restore([*made, turn_record(SECOND)])
    assert later.turn == SECOND and later.stops == () and later.log_probs == {3: told[0]}


def test_journals_from_before_the_warps_are_read() -> None:
    """Without the later names a turn has none of them; a warp of the future is refused."""
    old = turn_record(FIRST)
    del old["warps"]
    assert restore([old]).turn == FIRST
    strange: list[object] = [{"min_q": 1.0}, [], {"min_p": 7.0}]
    for warps in strange:
        with pytest.raises(InvalidField):
            restore([{**old, "warps": warps}])
