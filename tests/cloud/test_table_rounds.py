"""What becomes of a draft: every row of the protocol's second table, trimming, ends, run-ahead and long chains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outrider.cloud.events import StepDone, Verify, WorkFailed
from outrider.cloud.table_state import TableSettings
from outrider.netsim.world.toy import STOP_ID
from outrider.shared.anchor import EMPTY, extend
from outrider.shared.draft import Draft
from outrider.shared.frames import (
    UNLIMITED,
    Anchor,
    Cancel,
    Commit,
    DraftFrame,
    FailureReason,
    FinishReason,
    RoundOutcome,
    Steer,
    TokenKind,
    TurnEnd,
    Verdict,
    Window,
)
from outrider.shared.sampling import Sampling
from tests.cloud.table_bench import PROMPT, SERVED, Bench, draft, ids_of, opening, turn

A, R, B = TokenKind.ACCEPTED, TokenKind.RECOVERED, TokenKind.BONUS


def opened(bench: Bench, **changes: Any) -> Bench:
    """A session whose prompt is in the KV."""
    bench.open(opening(**changes))
    bench.sent.clear()
    bench.steps.clear()
    return bench


def test_a_chain_is_accepted_up_to_the_first_difference() -> None:
    """Accepted, then the target's own token: recovered after a refusal, bonus after a chain kept whole."""
    bench = opened(Bench())
    said = bench.alone(PROMPT, 8)
    wrong = (said[2] + 1) % 97
    bench.up(draft(1, PROMPT, (*said[:2], wrong, said[3])))
    verdict = bench.one(Verdict)
    assert (verdict.outcome, verdict.accepted, verdict.trimmed) == (RoundOutcome.VERIFIED, 2, 0)
    assert verdict.commit is not None
    assert (verdict.commit.start, verdict.commit.ids, verdict.commit.kinds) == (5, said[:3], (A, A, R))
    text = PROMPT + said[:3]
    bench.up(draft(2, text, said[3:5]))
    verdict = bench.one(Verdict)
    assert verdict.commit is not None and verdict.commit.kinds == (A, A, B)
    assert verdict.commit.ids == said[3:6]


def test_a_tree_commits_its_accepted_path() -> None:
    """Siblings are alternatives; the path may leave the first branch."""
    bench = opened(Bench())
    said = bench.alone(PROMPT, 4)
    wrong = (said[0] + 1) % 97
    tree = Draft((wrong, said[0], said[1], 96 - said[1]), (0, 0, 2, 2))
    bench.up(draft(1, PROMPT, draft=tree))
    verdict = bench.one(Verdict)
    assert verdict.commit is not None
    assert (verdict.commit.ids, verdict.commit.kinds) == (said[:3], (A, A, B))


def test_an_empty_draft_is_one_step() -> None:
    """No draft, no run-ahead: one token."""
    bench = opened(Bench())
    bench.up(draft(1, PROMPT))
    verdict = bench.one(Verdict)
    assert verdict.commit is not None and verdict.commit.kinds == (B,)


def test_a_repeated_round_is_answered_from_the_log() -> None:
    """The same tokens, marked as replayed, and no pass."""
    bench = opened(Bench())
    frame = draft(1, PROMPT, bench.alone(PROMPT, 2))
    bench.up(frame)
    first, passes = bench.one(Verdict), len(bench.steps)
    bench.up(frame)
    assert bench.one(Verdict) == replace(first, replayed=True)
    assert len(bench.steps) == passes


def test_a_round_repeated_with_other_content_is_a_conflict() -> None:
    """The number says it is the same round, the digest says it is not."""
    bench = opened(Bench())
    bench.up(draft(1, PROMPT, (1,)))
    bench.up(draft(1, PROMPT, (2,)))
    assert bench.failure().reason is FailureReason.ROUND_CONFLICT


def test_a_gap_and_too_many_rounds_are_refused() -> None:
    """Rounds count up by one, and no more are under way than granted."""
    bench = opened(Bench())
    bench.up(draft(2, PROMPT))
    assert bench.failure().reason is FailureReason.ROUND_GAP
    bench = opened(Bench())
    bench.hold = True
    for number in range(1, 6):
        bench.up(draft(number, PROMPT))
    failure = bench.failure()
    assert (failure.reason, failure.field) == (FailureReason.INVALID, "draft.round")


def test_a_window_that_is_not_in_the_log_is_divergence() -> None:
    """`seen` must match; a base may miss."""
    bench = opened(Bench())
    bench.up(draft(1, (*PROMPT, 1)))
    assert bench.failure().reason is FailureReason.DIVERGED


@pytest.mark.parametrize("base", [extend(EMPTY, (*PROMPT, 1, 2)), Anchor(4, 12345)])
def test_a_base_that_does_not_fit_is_superseded(base: Anchor) -> None:
    """Ahead of the log or of another text: an outcome without model work; the stream lives."""
    bench = opened(Bench())
    bench.up(draft(1, PROMPT, (3,), base=base))
    assert bench.one(Verdict).outcome is RoundOutcome.SUPERSEDED
    assert not bench.steps and not bench.ended
    bench.up(draft(2, PROMPT))
    assert bench.one(Verdict).outcome is RoundOutcome.VERIFIED


def test_trimming() -> None:
    """What was committed since the base is walked along the draft; below it the draft is verified."""
    bench = opened(Bench(), window=Window(EMPTY, run_ahead_until=len(PROMPT) + 2))
    said = bench.alone(PROMPT, 8)
    bench.up(draft(1, PROMPT, said[:4]))
    verdict = bench.one(Verdict)
    assert (verdict.trimmed, verdict.accepted) == (2, 2)
    assert verdict.commit is not None and verdict.commit.start == len(PROMPT) + 2
    assert verdict.commit.ids == said[2:5]


def test_a_draft_trimmed_whole_still_yields_a_token_and_one_that_left_the_log_none() -> None:
    """c equal to the draft's length is a step; a differing token is SUPERSEDED."""
    bench = opened(Bench(), window=Window(EMPTY, run_ahead_until=len(PROMPT) + 2))
    said = bench.alone(PROMPT, 8)
    bench.up(draft(1, PROMPT, said[:2]))
    assert ids_of([bench.one(Verdict)]) == said[2:3]
    bench.up(draft(2, PROMPT, ((said[0] + 1) % 97, said[1])))
    assert bench.one(Verdict).outcome is RoundOutcome.SUPERSEDED


def test_pipelined_rounds_are_answered_in_order() -> None:
    """Round 2 hangs below round 1 and predicts its bonus; round 3 was built on a refusal."""
    bench = opened(Bench())
    said = bench.alone(PROMPT, 12)
    bench.hold = True
    bench.up(draft(1, PROMPT, said[:3]))
    bench.up(draft(2, PROMPT, said[3:6], base=extend(EMPTY, PROMPT + said[:3])))
    wrong = (*said[6:7], (said[7] + 1) % 97)
    bench.up(draft(3, PROMPT, wrong, base=extend(EMPTY, PROMPT + said[:6])))
    bench.up(draft(4, PROMPT, said[8:9], base=extend(EMPTY, (*PROMPT, *said[:6], *wrong))))
    bench.release()
    verdicts = bench.take(Verdict)
    assert [v.round for v in verdicts] == [1, 2, 3, 4]
    assert [v.trimmed for v in verdicts] == [0, 1, 1, 0]
    assert verdicts[3].outcome is RoundOutcome.SUPERSEDED
    assert ids_of(verdicts) == said[:8]


def test_busy_changes_nothing() -> None:
    """Above the limit a draft is answered BUSY with advice, in its turn."""
    bench = opened(Bench(settings=TableSettings(max_waiting_drafts=1)))
    bench.hold = True
    bench.up(draft(1, PROMPT))
    bench.up(draft(2, PROMPT))
    bench.release()
    first, second = bench.take(Verdict)
    assert first.outcome is RoundOutcome.VERIFIED
    assert (second.outcome, second.retry_after_ms) == (RoundOutcome.BUSY, 50)
    bench.up(draft(3, PROMPT + ids_of([first])))
    assert bench.one(Verdict).outcome is RoundOutcome.VERIFIED


def test_rounds_of_an_old_turn_are_superseded_and_leave_no_trace() -> None:
    """A draft under way when the user rewrites the text commits nothing."""
    bench = opened(Bench())
    bench.hold = True
    bench.up(draft(1, PROMPT, bench.alone(PROMPT, 2)))
    bench.up(draft(2, PROMPT))
    newer = turn(2, extend(EMPTY, PROMPT[:2]), (50, 51))
    bench.up(newer)
    bench.release()
    assert [v.outcome for v in bench.take(Verdict)] == [RoundOutcome.SUPERSEDED] * 2
    assert bench.take(Commit) == []
    text = (*PROMPT[:2], 50, 51)
    bench.up(draft(3, text, turn=2))
    assert ids_of([bench.one(Verdict)]) == bench.alone(text, 1)
    assert not bench.engine.broken


def test_a_stop_id_in_the_accepted_path_ends_exactly_there() -> None:
    """No bonus, nothing after it, and drafted ids after the stop id are not looked at."""
    bench = Bench()
    said = bench.alone(PROMPT, 5)
    opened(bench, turn=turn(stop_ids=(said[2],)))
    first = said.index(said[2])
    bench.up(draft(1, PROMPT, said))
    verdict, end = bench.one(Verdict), bench.one(TurnEnd)
    assert ids_of([verdict]) == said[: first + 1]
    assert (end.reason, end.end) == (FinishReason.STOP_ID, extend(EMPTY, PROMPT + said[: first + 1]))
    bench.up(draft(2, PROMPT))
    assert bench.one(Verdict).outcome is RoundOutcome.ENDED


def test_the_targets_own_stop_ids_hold_when_the_turn_names_none() -> None:
    """An empty list means those of Describe."""
    bench = Bench()
    open_turn = turn(stop_ids=(), max_length=2000)
    bench.open(opening(turn=open_turn, window=Window(EMPTY, UNLIMITED)))
    for _ in range(20):
        text = PROMPT + ids_of(bench.sent_commits())
        if STOP_ID in text:
            break
        bench.up(Steer(1, Window(extend(EMPTY, text), UNLIMITED)))
    assert text.index(STOP_ID) == len(text) - 1
    assert bench.one(TurnEnd).reason is FinishReason.STOP_ID


@pytest.mark.parametrize("room", [1, 2, 3])
def test_the_limit_inside_an_accepted_block_ends_exactly_there(room: int) -> None:
    """max_length cuts the draft, not the commit; every kind is as the whole draft would have it."""
    bench = Bench()
    opened(bench, turn=turn(max_length=len(PROMPT) + room))
    said = bench.alone(PROMPT, 5)
    bench.up(draft(1, PROMPT, said))
    verdict = bench.one(Verdict)
    assert ids_of([verdict]) == said[:room]
    assert verdict.commit is not None and set(verdict.commit.kinds) == {A}
    assert bench.one(TurnEnd).reason is FinishReason.LENGTH


def test_a_full_context_is_a_clean_end() -> None:
    """The context limit ends the turn like any other limit."""
    limits = replace(SERVED.limits, max_context_tokens=len(PROMPT) + 3)
    bench = Bench(replace(SERVED, limits=limits))
    bench.open(opening(window=Window(EMPTY, UNLIMITED)))
    assert bench.one(TurnEnd).reason is FinishReason.CONTEXT
    assert ids_of(bench.sent_commits()) == bench.alone(PROMPT, 3)


def test_run_ahead_is_absolute_clipped_and_may_go_down() -> None:
    """The latest window counts; it never takes back what was committed."""
    limits = replace(SERVED.limits, max_run_ahead_tokens=4)
    bench = Bench(replace(SERVED, limits=limits))
    bench.open(opening(window=Window(EMPTY, UNLIMITED)))
    said = bench.alone(PROMPT, 9)
    assert ids_of(bench.sent_commits()) == said[:4]
    text = PROMPT + said[:4]
    bench.up(Steer(1, Window(extend(EMPTY, text), run_ahead_until=len(text) + 1)))
    assert ids_of(bench.sent_commits()) == said[:5]
    bench.up(Steer(1, Window(extend(EMPTY, text), run_ahead_until=2)))
    assert ids_of(bench.sent_commits()) == said[:5]


def test_drafts_go_before_run_ahead() -> None:
    """A run-ahead step gives way to another session's draft, once."""
    bench = Bench()
    said = bench.alone(PROMPT, 9)
    bench.open(opening())
    bench.open(opening(session_id=b"b" * 16), stream=2)
    bench.hold = True
    bench.steps.clear()
    bench.up(draft(1, PROMPT, said[:2]))
    bench.up(Steer(1, Window(extend(EMPTY, PROMPT), UNLIMITED)), 2)
    bench.up(draft(2, PROMPT, said[3:4], base=extend(EMPTY, PROMPT + said[:3])))
    for _ in range(2):
        held, bench.held = bench.held, []
        for action in held:
            bench.handle(StepDone(bench.engine.run(action.works)))  # type: ignore[union-attr]
    widths = [
        [len(work.draft.ids) for work in step.works if isinstance(work, Verify)] for step in bench.steps[:3]
    ]
    assert widths[0] == [2]
    assert widths[1] == [1]
    assert widths[2] == [0]


def test_one_pass_carries_the_drafts_of_all_sessions() -> None:
    """Drafts that wait together are verified together, and each gets what it would get alone."""
    bench = Bench()
    for number in range(1, 5):
        prompt = (*PROMPT, number)
        bench.open(opening(session_id=bytes([number]) * 16, turn=turn(ids=prompt)), stream=number)
    bench.hold = True
    bench.up(draft(1, (*PROMPT, 1)))
    for number in range(2, 5):
        prompt = (*PROMPT, number)
        bench.up(draft(1, prompt, bench.alone(prompt, number)), number)
    bench.release()
    assert max(len(step.works) for step in bench.steps) == 3
    for number in range(2, 5):
        assert ids_of([bench.one(Verdict, number)]) == bench.alone((*PROMPT, number), number + 1)


def test_long_chains_are_verified_in_growing_windows() -> None:
    """16, 32, 64 … while everything is accepted; commits flow on the way and the verdict ends the round."""
    bench = opened(Bench(), turn=turn(max_length=400))
    said = bench.alone(PROMPT, 201)
    bench.up(draft(1, PROMPT, said[:200]))
    widths = [len(work.draft.ids) for step in bench.steps for work in step.works if isinstance(work, Verify)]
    assert widths == [16, 32, 64, 85]
    commits, verdict = bench.take(Commit), bench.one(Verdict)
    assert [len(commit.ids) for commit in commits] == [17, 33, 65]
    assert ids_of([*commits]) + ids_of([verdict]) == said[:201]
    assert all(kind is A for commit in commits for kind in commit.kinds)


def test_a_long_chain_that_is_wrong_costs_one_small_pass() -> None:
    """The usual case after an outage: the first window fails and the rest is never computed."""
    bench = opened(Bench())
    said = bench.alone(PROMPT, 40)
    chain = (*said[:3], *((token_id + 1) % 97 for token_id in said[3:]))
    bench.up(draft(1, PROMPT, chain))
    assert ids_of([bench.one(Verdict)]) == said[:4]
    assert [len(w.draft.ids) for s in bench.steps for w in s.works if isinstance(w, Verify)] == [16]


def test_cancel_ends_the_turn_once() -> None:
    """A cancelled turn says so; a second Cancel and the pass under way change nothing."""
    bench = opened(Bench())
    bench.hold = True
    bench.up(draft(1, PROMPT))
    bench.up(Cancel(1))
    assert bench.one(TurnEnd).reason is FinishReason.CANCELLED
    bench.release()
    assert bench.one(Verdict).outcome is RoundOutcome.ENDED
    bench.up(Cancel(1))
    assert bench.take(TurnEnd) == []


def test_a_stop_of_one_session_leaves_the_others_alone() -> None:
    """A failed work ends its own stream; the pass's other sessions get their verdicts."""
    bench = Bench()
    for number in (1, 2):
        bench.open(opening(session_id=bytes([number]) * 16), stream=number)
    bench.hold = True
    bench.up(draft(1, PROMPT))
    bench.up(draft(1, PROMPT), 2)
    held, bench.held = bench.held, []
    bench.handle(StepDone((WorkFailed(1, "broken"),)))
    del held
    bench.release()
    assert bench.failure(1).reason is FailureReason.ENGINE
    assert bench.one(Verdict, 2).outcome is RoundOutcome.VERIFIED


def test_trap_b9_sampled_text_is_the_targets_own_whatever_was_drafted() -> None:
    """Sampling is part of verification: with coins keyed by seed and position the text does not depend on drafts."""
    sampling = Sampling(temperature=0.9, seed=5)
    bench = opened(Bench(), turn=turn(sampling=sampling))
    said = bench.alone(PROMPT, 6, sampling)
    bench.up(draft(1, PROMPT, (*said[:2], 1, 2)))
    text = PROMPT + ids_of([bench.one(Verdict)])
    bench.up(draft(2, text, (9, 9, 9)))
    text += ids_of([bench.one(Verdict)])
    assert text == PROMPT + said[: len(text) - len(PROMPT)]


def test_draft_frames_before_their_turn_are_refused() -> None:
    """A turn that has not begun is the device's error."""
    bench = opened(Bench())
    bench.up(DraftFrame(1, 2, Window(extend(EMPTY, PROMPT)), Draft.chain(())))
    assert bench.failure().field == "draft.turn"
