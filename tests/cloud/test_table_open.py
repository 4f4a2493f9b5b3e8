"""How an Open finds its session: every row of the protocol's first decision table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outrider.cloud.events import DrainRequested
from outrider.cloud.table_state import TableSettings
from outrider.shared.anchor import EMPTY, extend
from outrider.shared.draft import Draft
from outrider.shared.frames import (
    UNLIMITED,
    Attach,
    Close,
    Commit,
    Context,
    DraftFrame,
    Drain,
    FailureReason,
    Fingerprints,
    FinishReason,
    Open,
    Opened,
    RoundOutcome,
    Rule,
    TokenKind,
    TurnEnd,
    Verdict,
    Window,
)
from tests.cloud.table_bench import PRINTS, PROMPT, SERVED, Bench, draft, ids_of, opening, turn


def with_text(bench: Bench, count: int = 6) -> tuple[int, ...]:
    """A session with some generated text; the whole text."""
    bench.open(opening(window=Window(EMPTY, run_ahead_until=len(PROMPT) + count)))
    bench.take(Commit)
    bench.take(Opened)
    return PROMPT + bench.alone(PROMPT, count)


def test_a_new_session_is_opened_before_its_prefill() -> None:
    """Opened comes at once and says what the whole sequence is; the first draft's verdict follows."""
    bench = Bench()
    bench.hold = True
    first = DraftFrame(1, 1, Window(EMPTY), Draft.chain(()), base=extend(EMPTY, PROMPT))
    bench.open(opening(draft=first))
    opened = bench.one(Opened)
    assert (opened.attach, opened.epoch, opened.committed) == (Attach.NEW, 1, extend(EMPTY, PROMPT))
    assert bench.take(Verdict) == []
    bench.release()
    verdict = bench.one(Verdict)
    assert verdict.outcome is RoundOutcome.VERIFIED
    assert ids_of([verdict]) == bench.alone(PROMPT, 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"protocol_min": 3, "protocol_max": 4}, FailureReason.PROTOCOL),
        ({"fingerprints": Fingerprints(b"x" * 32)}, FailureReason.FINGERPRINT),
        ({"fingerprints": Fingerprints(b"", b"x" * 32)}, FailureReason.FINGERPRINT),
        ({"turn": turn(rule=Rule("judge"))}, FailureReason.INVALID),
        ({"turn": turn(rule=Rule("greedy", (("x", 1.0),)))}, FailureReason.INVALID),
        ({"turn": turn(ids=(1,) * 9000)}, FailureReason.OUT_OF_RANGE),
    ],
)
def test_what_no_session_could_serve_is_refused(change: dict[str, Any], reason: FailureReason) -> None:
    """Protocol, law, tokenizer, rule and length are checked before anything computes; no session is made."""
    bench = Bench()
    bench.open(opening(**change))
    assert bench.failure().reason is reason
    assert not bench.table.sessions and not bench.steps


def test_an_unknown_or_empty_fingerprint_is_no_mismatch() -> None:
    """An empty law means whatever is served; another bundle means no rows and nothing else."""
    bench = Bench()
    bench.open(opening(fingerprints=Fingerprints(bundle=b"x" * 32)))
    opened = bench.one(Opened)
    assert opened.planes == () and opened.fingerprints.bundle == b""
    assert opened.fingerprints.law == PRINTS.law


def test_an_old_epoch_is_fenced_and_a_newer_one_fences() -> None:
    """Of two streams of a session only the one with the greater epoch lives."""
    bench = Bench()
    text = with_text(bench)
    bench.open(opening(epoch=1), stream=2)
    assert bench.failure(2).last_epoch == 1
    assert 1 not in bench.ended
    bench.open(opening(epoch=5, have=extend(EMPTY, text)), stream=3)
    assert bench.failure(1).reason is FailureReason.FENCED
    assert bench.one(Opened, 3).attach is Attach.LIVE


def test_sessions_are_keyed_by_principal() -> None:
    """Somebody else's session id is an unknown one."""
    bench = Bench()
    with_text(bench)
    bench.open(opening(epoch=1), stream=2, principal="q")
    assert bench.one(Opened, 2).attach is Attach.NEW
    assert len(bench.table.sessions) == 2 and not bench.ended


def test_a_live_resume_catches_up_from_the_log() -> None:
    """The device gets the tokens beyond what it has, with their kinds, and the target makes no pass for them."""
    bench = Bench()
    text = with_text(bench)
    bench.lose()
    passes = len(bench.steps)
    have = text[: len(PROMPT) + 2]
    bench.open(opening(epoch=2, have=extend(EMPTY, have)), stream=2)
    assert bench.one(Opened, 2).attach is Attach.LIVE
    commit = bench.one(Commit, 2)
    assert (commit.start, commit.ids) == (len(have), text[len(have) :])
    assert set(commit.kinds) == {TokenKind.RUN_AHEAD}
    assert len(bench.steps) == passes


def test_a_turn_that_ended_says_so_again() -> None:
    """TurnEnd is part of the log."""
    bench = Bench()
    bench.open(opening(turn=turn(max_length=len(PROMPT) + 2), window=Window(EMPTY, UNLIMITED)))
    end = bench.one(TurnEnd)
    assert end.reason is FinishReason.LENGTH
    bench.lose()
    again = opening(epoch=2, turn=turn(max_length=len(PROMPT) + 2))
    bench.open(again, stream=2)
    assert bench.one(TurnEnd, 2) == end
    assert ids_of(bench.take(Commit, 2)) == bench.alone(PROMPT, 2)


def test_a_newer_turn_keeps_the_kv_of_what_it_keeps() -> None:
    """Only the new part of the sequence is prefilled."""
    bench = Bench()
    text = with_text(bench)
    keep = extend(EMPTY, text[:8])
    newer = turn(2, keep, (40, 41, 42))
    bench.lose()
    bench.steps.clear()
    bench.open(opening(epoch=2, have=keep, turn=newer), stream=2)
    opened = bench.one(Opened, 2)
    assert opened.attach is Attach.LIVE
    assert opened.committed == extend(EMPTY, (*text[:8], 40, 41, 42))
    assert sum(len(work.ids) for step in bench.steps for work in step.works if hasattr(work, "ids")) == 2
    assert not bench.engine.broken


def test_evicted_kv_is_rebuilt_from_the_log() -> None:
    """After the KV lease the ids are still known: a rebuild, not a request for context."""
    bench = Bench()
    text = with_text(bench)
    bench.lose()
    bench.wait(121)
    assert bench.evicted
    bench.open(opening(epoch=2, have=extend(EMPTY, text)), stream=2)
    assert bench.one(Opened, 2).attach is Attach.REBUILD
    bench.up(draft(1, text), 2)
    assert ids_of([bench.one(Verdict, 2)]) == bench.alone(text, 1)


def test_another_replica_rebuilds_from_inline_context() -> None:
    """A replica that never saw the session serves it from ids alone."""
    text = PROMPT + Bench().alone(PROMPT, 4)
    bench = Bench()
    bench.open(opening(epoch=9, have=extend(EMPTY, text), context=Context(0, text), rejoin=True))
    assert bench.one(Opened).attach is Attach.REBUILD
    bench.up(draft(1, text))
    assert ids_of([bench.one(Verdict)]) == bench.alone(text, 1)


def context_open(text: tuple[int, ...]) -> Open:
    """An Open that names a text without its ids, with a first draft."""
    window = Window(extend(EMPTY, text))
    return opening(epoch=2, have=window.seen, draft=DraftFrame(1, 1, window, Draft.chain(())))


def test_missing_ids_are_asked_for_on_the_same_stream() -> None:
    """NEED_CONTEXT, pieces in order, and the draft of the Open needs not be sent again."""
    bench = Bench()
    text = PROMPT + bench.alone(PROMPT, 4)
    bench.open(context_open(text))
    opened = bench.one(Opened)
    # The prompt travels in the turn itself.
    assert (opened.attach, opened.context_from) == (Attach.NEED_CONTEXT, len(PROMPT))
    bench.up(Context(len(PROMPT), text[len(PROMPT) : len(PROMPT) + 2]))
    assert bench.take(Verdict) == []
    bench.up(Context(len(PROMPT) + 2, text[len(PROMPT) + 2 :]))
    assert ids_of([bench.one(Verdict)]) == bench.alone(text, 1)


@pytest.mark.parametrize(
    ("piece", "field"),
    [
        (Context(6, (1, 2, 3)), "context.start"),
        (Context(5, (1, 2, 3, 4)), "context.ids"),
        (Context(5, (1, 2, 3, 4, 5)), "context.ids"),
    ],
)
def test_wrong_context_is_refused(piece: Context, field: str) -> None:
    """Gaps, ids that do not hash to `have`, and ids beyond it."""
    bench = Bench()
    bench.open(context_open(PROMPT + bench.alone(PROMPT, 4)))
    bench.up(piece)
    failure = bench.failure()
    assert (failure.reason, failure.field) == (FailureReason.INVALID, field)


def test_where_the_device_contradicts_the_log_the_device_wins() -> None:
    """Another text of the same turn replaces the log and keeps the common part's KV."""
    bench = Bench()
    text = with_text(bench)
    other = (*text[:7], 90, 91)
    bench.lose()
    bench.open(opening(epoch=2, have=extend(EMPTY, other), context=Context(0, other)), stream=2)
    assert bench.one(Opened, 2).committed == extend(EMPTY, other)
    bench.up(draft(1, other), 2)
    assert ids_of([bench.one(Verdict, 2)]) == bench.alone(other, 1)
    assert not bench.engine.broken


def test_have_must_fit_its_own_turn() -> None:
    """A text shorter than the turn's own ids is neither the kept prefix nor the turn applied."""
    bench = Bench()
    bench.open(opening(have=extend(EMPTY, PROMPT[:3])))
    assert bench.failure().field == "open.have"


def test_sessions_are_bounded_and_the_oldest_detached_goes_first() -> None:
    """Attached sessions are never thrown out; with nothing else to throw out, a new one is refused."""
    bench = Bench(settings=TableSettings(max_sessions=2))
    for number in (1, 2):
        bench.open(opening(session_id=bytes([number]) * 16), stream=number)
    bench.open(opening(session_id=b"z" * 16), stream=3)
    failure = bench.failure(3)
    assert failure.reason is FailureReason.OVERLOADED and failure.retry_after_ms > 0
    bench.lose(1)
    bench.open(opening(session_id=b"z" * 16), stream=4)
    assert bench.one(Opened, 4).attach is Attach.NEW
    assert len(bench.table.sessions) == 2


def test_prefill_is_admitted_by_tokens_and_live_sessions_pass() -> None:
    """A stampede of rebuilds is told when to come back; who needs no prefill gets in."""
    bench = Bench(replace(SERVED), TableSettings(max_prefill_backlog_tokens=30))
    text = with_text(bench)
    bench.hold = True
    bench.open(opening(session_id=b"a" * 16, turn=turn(ids=(7,) * 25)), stream=2)
    bench.open(opening(session_id=b"b" * 16, turn=turn(ids=(7,) * 25)), stream=3)
    assert bench.failure(3).reason is FailureReason.OVERLOADED
    bench.lose(1)
    bench.open(opening(epoch=2, have=extend(EMPTY, text)), stream=4)
    assert bench.one(Opened, 4).attach is Attach.LIVE


def test_draining_tells_open_streams_and_admits_none() -> None:
    """Drain, refusal with advice, and the cut at the deadline."""
    bench = Bench()
    with_text(bench)
    bench.handle(DrainRequested(5_000))
    assert bench.one(Drain).deadline_ms == 5_000
    bench.open(opening(session_id=b"z" * 16), stream=2)
    assert bench.failure(2).reason is FailureReason.DRAINING
    bench.wait(5.1)
    assert bench.failure(1).reason is FailureReason.DRAINING


def test_close_with_forget_leaves_nothing() -> None:
    """KV, log and ids are gone; closing without keeps them."""
    bench = Bench()
    with_text(bench)
    bench.up(Close(forget=False))
    assert bench.table.sessions and bench.ended[1].reason is None
    bench.open(opening(epoch=2), stream=2)
    bench.up(Close(forget=True), 2)
    assert not bench.table.sessions and bench.engine.kv == {}


def test_ids_are_forgotten_after_their_lease() -> None:
    """An hour after detaching the session is unknown."""
    bench = Bench()
    with_text(bench)
    bench.lose()
    bench.wait(3_601)
    assert not bench.table.sessions and bench.table.wake_at() is None
