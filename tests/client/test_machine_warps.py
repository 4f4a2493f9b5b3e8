"""What the session machine does about warps, log-probabilities, and stop strings in the commit that ends a turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outrider.client.events import Emit, Finish, Label, Persist, Relabel, StopAt
from outrider.client.journal import restore
from outrider.shared.errors import ProtocolMismatch
from outrider.shared.frames import Open, Turn
from outrider.shared.sampling import LogProbs, Sampling
from tests.client.machine_bench import PROMPT, MachineBench, anchor

TOLD = tuple(LogProbs(-0.5 * n, -0.25 * n) for n in range(4))
WARPED = Sampling(min_tokens=3, presence_penalty=0.5)


def begun(**changes: Any) -> MachineBench:
    """A machine with a stream of a verifier that knows everything, and a turn under way."""
    bench = MachineBench(journal=True)
    bench.begin(**changes)
    bench.attach()
    return bench


def test_log_probs_reach_display_and_journal() -> None:
    """Committed tokens come with theirs, those shown provisionally before get them, and a restored session has them."""
    bench = begun(log_probs=True)
    bench.wait(1.2)
    shown = len(bench.text(Label.PROVISIONAL))
    assert shown >= 2
    bench.down(replace(bench.commit(66, 67, 9, 8), log_probs=TOLD), conn=1)
    assert bench.take(Relabel)[-1].log_probs == TOLD[:2]
    assert [emit.log_probs for emit in bench.take(Emit) if emit.log_probs] == [TOLD[2:]]
    restored = restore(action.record for action in bench.take(Persist))
    assert restored.turn is not None and restored.turn.log_probs
    assert restored.log_probs == dict(enumerate(TOLD, len(PROMPT)))


@pytest.mark.parametrize(("asked", "told"), [(True, ()), (True, TOLD[:1]), (False, TOLD[:2])])
def test_log_probs_come_as_asked_or_not_at_all(asked: bool, told: tuple[LogProbs, ...]) -> None:
    """Missing, too few, or unasked: a verifier that breaks the protocol."""
    bench = begun(log_probs=asked)
    bench.down(replace(bench.commit(66, 67), log_probs=told))
    assert bench.machine.violations == 1 and bench.machine.sequence.ids == list(PROMPT)


def test_a_stop_id_before_the_least_length_is_a_lie() -> None:
    """The verifier suppresses stop ids, so none can come that early; at the least length the turn ends by one."""
    for early, violations in (((0,), 1), ((66, 67, 0), 1), ((66, 67, 68, 0), 0)):
        bench = begun(sampling=WARPED)
        bench.down(bench.commit(*early))
        assert bench.machine.violations == violations
        assert bool(bench.take(Finish)) == (not violations)


def test_a_stop_string_in_the_commit_that_ends_the_turn_still_cuts() -> None:
    """By length or a stop id, the turn ended further on: it ends at the stop string, in journal and next turn too."""
    for ids, changes in (((66, 67, 68, 69), {"max_new": 4}), ((66, 67, 68, 0), {})):
        bench = begun(**changes)
        bench.down(bench.commit(*ids))
        bench.handle(StopAt(7, "stop", amends=True))
        assert bench.text() == (66, 67)
        assert bench.take(Finish)[-1] == Finish("stop", True)
        restored = restore(action.record for action in bench.take(Persist))
        assert (restored.sequence.ids, restored.end) == ([*PROMPT, 66, 67], "stop")
        bench.begin(keep=7, append_ids=(40,))
        assert bench.frame(Turn).keep == anchor(*PROMPT, 66, 67)


def test_a_late_stop_without_amends_changes_nothing() -> None:
    """What ended stays as it ended."""
    bench = begun(max_new=4)
    bench.down(bench.commit(66, 67, 68, 69))
    bench.handle(StopAt(7, "stop"))
    assert bench.text() == (66, 67, 68, 69) and bench.take(Finish) == [Finish("length", True)]


@pytest.mark.parametrize("changes", [{"sampling": WARPED}, {"log_probs": True}])
def test_an_older_verifier_is_not_asked_for_what_it_would_leave_out(changes: dict[str, Any]) -> None:
    """Its Opened ends the turn with an error; so does a later turn on a stream that served an earlier one."""
    bench = MachineBench()
    bench.begin(**changes)
    assert bench.attach(protocol=1).protocol_min == 2
    (end,) = bench.take(Finish)
    assert isinstance(end.error, ProtocolMismatch)
    bench = MachineBench()
    bench.begin()
    assert bench.attach(protocol=1).protocol_min == 1 and bench.take(Finish) == []
    bench.begin(keep=5, append_ids=(40,), **changes)
    assert isinstance(bench.take(Finish)[-1].error, ProtocolMismatch)
    assert bench.frames(Turn) == [] and bench.frames(Open) == []
