"""State rows in order, under the device's window; KV under its budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.cloud.events import MakeRows, RowsDone, StepDone, StreamWritable, WorkFailed
from outrider.cloud.rows_schedule import RowsSchedule
from outrider.cloud.table_state import TableSettings
from outrider.netsim.world.toy import PLANE
from outrider.shared.anchor import EMPTY, extend
from outrider.shared.codec import decode_rows
from outrider.shared.draft import Draft
from outrider.shared.frames import (
    UNLIMITED,
    Attach,
    Commit,
    DraftFrame,
    Opened,
    Rows,
    RowsWanted,
    Steer,
    TurnEnd,
    Verdict,
    Window,
)
from tests.cloud.table_bench import PROMPT, ROWS, SERVED, Bench, draft, ids_of, opening, turn

ROW = 12  # bytes of a toy row
LONG = tuple(range(1, 61))


def values(bench: Bench, rows: Rows) -> list[tuple[float, ...]]:
    """Decoded rows."""
    return [tuple(row) for row in decode_rows(rows.data, rows.count, PLANE).tolist()]


def test_prompt_rows_are_bulk_and_the_others_ascend() -> None:
    """With L tokens committed rows 0 … L-2 exist; each is the row of its own position and prefix."""
    bench = Bench()
    first = DraftFrame(1, 1, Window(EMPTY), Draft.chain(()), base=extend(EMPTY, PROMPT))
    bench.open(opening(rows=ROWS, draft=first))
    text = PROMPT + ids_of([bench.one(Verdict)])
    for number in range(2, 5):
        bench.up(draft(number, text, bench.alone(text, 2)))
        text += ids_of([bench.one(Verdict)])
    rows = bench.take(Rows)
    fresh = [one for one in rows if not one.bulk]
    bulk = [one for one in rows if one.bulk]
    assert [one.start for one in fresh] == sorted(one.start for one in fresh)
    assert sorted(n for one in rows for n in range(one.start, one.start + one.count)) == list(
        range(len(text) - 1)
    )
    assert max(one.start + one.count for one in bulk) == len(PROMPT) - 1
    for one in rows:
        expected = [bench.target.row(text[: n + 1], 1) for n in range(one.start, one.start + one.count)]
        assert values(bench, one) == expected


def test_bulk_rows_come_newest_first_under_the_acknowledged_window() -> None:
    """Never more unacknowledged bytes than the window; acknowledging brings the next ones."""
    window = 10 * ROW
    bench = Bench()
    wanted = RowsWanted(encoding=PLANE.encoding, bulk_window_bytes=window)
    bench.open(opening(turn=turn(ids=LONG), rows=wanted))
    received = 0
    seen: list[int] = []
    while rows := bench.take(Rows):
        assert sum(len(one.data) for one in rows) <= window
        received += sum(len(one.data) for one in rows)
        seen += [n for one in rows for n in range(one.start + one.count - 1, one.start - 1, -1)]
        bench.up(Steer(1, Window(extend(EMPTY, LONG), bulk_acked_bytes=received)))
    assert seen == list(range(len(LONG) - 2, -1, -1))


def test_nonsense_acknowledgements_open_nothing() -> None:
    """More bytes than were sent is ignored."""
    bench = Bench()
    wanted = RowsWanted(encoding=PLANE.encoding, bulk_window_bytes=10 * ROW)
    bench.open(opening(turn=turn(ids=LONG), rows=wanted))
    bench.take(Rows)
    bench.up(Steer(1, Window(extend(EMPTY, LONG), bulk_acked_bytes=10**6)))
    assert bench.take(Rows) == []


def test_rows_on_the_device_are_not_sent_again() -> None:
    """A resume asks only for what is missing."""
    bench = Bench()
    bench.open(opening(turn=turn(ids=LONG)))
    bench.lose()
    wanted = RowsWanted(first=10, held_from=20, held_until=50, encoding=PLANE.encoding)
    bench.open(opening(epoch=2, turn=turn(ids=LONG), rows=wanted), stream=2)
    rows = bench.take(Rows, 2)
    positions = sorted(n for one in rows for n in range(one.start, one.start + one.count))
    assert positions == [*range(10, 20), *range(50, len(LONG) - 1)]


def test_a_new_turn_sends_the_rows_of_its_own_text() -> None:
    """Rows from the kept length on are made anew and carry the new turn; older ones are not repeated."""
    bench = Bench()
    bench.open(opening(rows=ROWS))
    bench.take(Rows)
    ids = (70, 71, 72, 73)
    bench.up(turn(2, extend(EMPTY, PROMPT[:3]), ids))
    rows = bench.take(Rows)
    text = (*PROMPT[:3], *ids)
    assert {one.turn for one in rows} == {2}
    assert sorted(n for one in rows for n in range(one.start, one.start + one.count)) == [3, 4, 5]
    for one in rows:
        expected = [bench.target.row(text[: n + 1], 2) for n in range(one.start, one.start + one.count)]
        assert values(bench, one) == expected


def test_rows_asked_for_an_old_text_are_thrown_away() -> None:
    """A turn that begins while rows are being made gets its own."""
    schedule = RowsSchedule((PLANE,), ROWS)
    schedule.attach(10)
    job = schedule.next_job(1, 1, 9, 1)
    assert job is not None
    schedule.rewrite(4, 8)
    assert schedule.done((b"\0" * ROW * (job.stop - job.start),)) == []
    left = schedule.next_job(1, 2, 7, 2)
    assert left is not None and (left.turn, left.start, left.stop) == (2, 4, 7)


def test_rows_that_cannot_be_made_stop_the_rows_and_nothing_else() -> None:
    """The session goes on without."""
    bench = Bench()
    bench.hold = True
    bench.open(opening(rows=ROWS))
    bench.engine.kv.clear()
    held, bench.held = bench.held, []
    bench.hold = False
    bench.do(held)
    work = MakeRows(1, 1, 0, 4, True, PLANE.encoding, 99)
    bench.handle(RowsDone(work, ()))
    bench.up(draft(1, PROMPT))
    assert ids_of([bench.one(Verdict)]) == bench.alone(PROMPT, 1)


def test_a_slow_reader_pauses_run_ahead_and_rows() -> None:
    """Above the queue limit nothing is made that nobody asked for; below it everything goes on."""
    bench = Bench(settings=TableSettings(max_queued_bytes=1000))
    bench.open(opening(rows=ROWS))
    bench.take(Rows)
    bench.handle(StreamWritable(1, 1001))
    bench.up(Steer(1, Window(extend(EMPTY, PROMPT), UNLIMITED)))
    assert bench.take(Commit) == []
    bench.handle(StreamWritable(1, 0))
    assert ids_of(bench.take(Commit)) == bench.alone(PROMPT, 100)
    assert bench.take(Rows)


def test_an_eviction_that_waits_for_a_pass_is_over_when_the_pass_loses_the_kv() -> None:
    """Nothing is left to evict then: the session is rebuilt once, and the next time its KV is live again."""
    bench = Bench()
    bench.open(opening(rows=ROWS))
    bench.hold = True
    bench.up(draft(1, PROMPT))
    (session,) = bench.table.sessions.values()
    bench.table.evict(session)
    assert session.evict_when_idle
    works = bench.steps[-1].works
    bench.engine.evict(session.key)
    bench.hold, bench.held = False, []
    bench.handle(StepDone(tuple(WorkFailed(work.key, "lost", no_room=True) for work in works)))
    assert not session.evict_when_idle and not session.kv
    for number, attach in ((2, Attach.REBUILD), (3, Attach.LIVE)):
        bench.open(opening(epoch=number, rows=ROWS), stream=number)
        assert bench.one(Opened, number).attach is attach


@pytest.mark.parametrize("sessions", [3, 10])
def test_more_sessions_than_the_budget_holds_are_only_slower(sessions: int) -> None:
    """KV for about three of them, all active: every text is the target's own and the budget holds throughout."""
    served = replace(SERVED, kv_bytes_per_token=10, kv_budget_bytes=10 * 150)
    bench = Bench(served, TableSettings(prefill_chunk=16))
    texts: dict[int, tuple[int, ...]] = {}
    for number in range(1, sessions + 1):
        prompt = tuple((number * 31 + n * 7) % 96 + 1 for n in range(30))
        texts[number] = prompt
        made = turn(ids=prompt, max_length=45)
        bench.open(opening(session_id=bytes([number]) * 16, turn=made), stream=number)
    starts = dict(texts)
    for rounds in range(1, 20):
        bench.hold = True
        for number, text in texts.items():
            if len(text) < 45:
                bench.up(draft(rounds, text, bench.alone(text, 2)), number)
        bench.release()
        assert bench.table.kv_bytes() <= served.kv_budget_bytes
        for number in texts:
            texts[number] += ids_of(bench.take(Verdict, number))
    for number, text in texts.items():
        assert text == starts[number] + bench.alone(starts[number], 15)
        assert len(bench.take(TurnEnd, number)) == 1
    assert not bench.engine.broken
    assert bool(bench.evicted) == (sessions > 3)


def test_prefill_comes_in_chunks_and_does_not_starve_drafts() -> None:
    """A long prompt is consumed piece by piece, small ones while drafts wait."""
    bench = Bench(settings=TableSettings(prefill_chunk=16, prefill_chunk_busy=4))
    bench.open(opening())
    bench.steps.clear()
    bench.hold = True
    bench.up(draft(1, PROMPT))
    bench.open(opening(session_id=b"b" * 16, turn=turn(ids=LONG)), stream=2)
    bench.up(draft(2, PROMPT, base=extend(EMPTY, PROMPT + bench.alone(PROMPT, 1))))
    bench.release()
    sizes = [[len(getattr(work, "ids", ())) for work in step.works] for step in bench.steps]
    assert [0, 4] in sizes or [4, 0] in sizes
    assert max(max(size) for size in sizes) == 16
    assert len(bench.engine.kv[2]) == len(LONG) - 1
