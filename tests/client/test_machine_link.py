"""Losing and finding the link: labels, dialling and deadlines; text is text."""

from __future__ import annotations

from outrider.client.events import (
    Closed,
    Connected,
    Dial,
    Finish,
    HangUp,
    Label,
    LinkState,
    NetworkChanged,
    Persist,
    Report,
    Revise,
)
from outrider.client.journal import restore
from outrider.client.machine_settings import Offline, Reconcile
from outrider.shared.errors import FingerprintMismatch, InvalidField, LinkDown
from outrider.shared.frames import (
    Attach,
    Commit,
    Context,
    DraftFrame,
    Drain,
    Failure,
    FailureReason,
    Fingerprints,
    Limits,
    Open,
    Opened,
    Progress,
    RoundOutcome,
    TokenKind,
    Turn,
    Verdict,
)
from tests.client.machine_bench import ALL, PRINTS, PROMPT, MachineBench, anchor, online, verified

A, R, B = TokenKind.ACCEPTED, TokenKind.RECOVERED, TokenKind.BONUS


def test_the_epoch_is_durable_before_the_dial() -> None:
    """Turn and epoch are in the journal, with a barrier, before anything is dialled."""
    bench = MachineBench()
    bench.begin()
    records = [a for a in bench.actions if isinstance(a, Persist | Dial)]
    assert isinstance(records[-1], Dial) and records[-1].epoch == 1
    before = records[-2]
    assert isinstance(before, Persist) and before.barrier and before.record == {"kind": "epoch", "epoch": 1}
    assert [r.record["kind"] for r in records if isinstance(r, Persist)] == ["session", "turn", "epoch"]


def test_nothing_timely_shows_the_tail_and_drafts_on() -> None:
    """After the soft deadline everything drafted is on display as provisional, with the stream still up."""
    bench = online()
    assert bench.text() == ()
    bench.wait(1.2)
    assert bench.text(Label.PROVISIONAL)[:4] == (66, 67, 68, 69)
    assert bench.machine.active is not None
    assert LinkState.LATE in [report.state for report in bench.take(Report)]
    assert len(bench.text()) > 20


def test_a_late_verdict_is_commit_like_any_other() -> None:
    """Shown tokens become verified in place or are taken back from the first difference on."""
    bench = online()
    bench.wait(1.2)
    bench.take(Revise)
    shown = len(bench.text())
    bench.down(verified(1, 5, (66, 67, 80), 2), conn=1)
    assert bench.text(Label.ACCEPTED) == (66, 67)
    assert bench.take(Revise)[0] == Revise(7, shown - 2)
    assert bench.text() == (66, 67, 80)
    assert bench.machine.link is LinkState.ONLINE


def test_progress_is_no_outage() -> None:
    """While the verifier prefills, only silence makes a round late."""
    bench = online()
    for _ in range(10):
        bench.wait(0.4)
        bench.down(Progress(1, 100))
    assert bench.text() == ()
    bench.wait(2.2)
    assert bench.text(Label.PROVISIONAL)


def test_a_silent_stream_is_probed_beside_and_then_given_up() -> None:
    """A second connection with the next epoch; the old one's frames count until the new Opened."""
    bench = online()
    bench.take(Dial)
    bench.wait(2.3)
    probe = bench.take(Dial)
    assert [(dial.epoch, dial.fresh) for dial in probe] == [(2, True)]
    bench.down(bench.commit(66, 67), conn=1)
    assert bench.text(Label.RUN_AHEAD) == (66, 67)
    bench.handle(Connected(2))
    opened = bench.frame(Open)
    assert opened.have == anchor(*PROMPT, 66, 67) and opened.rejoin
    bench.down(Opened(2, Attach.LIVE, opened.have, fingerprints=PRINTS, features=ALL), conn=2)
    assert [hang.conn for hang in bench.take(HangUp)] == [1]
    before = bench.text()
    bench.down(bench.commit(50), conn=1)
    assert bench.text() == before


def test_a_dead_stream_is_cancelled() -> None:
    """Three seconds without any frame while an answer is owed."""
    bench = online()
    bench.wait(3.2)
    assert HangUp(1, cancel=True) in bench.take(HangUp)
    assert bench.machine.active is None


def test_an_outage_sends_the_provisional_chain_and_catch_up_comes_first() -> None:
    """The verifier may be ahead; its commits trim the chain, and the verdict decides the rest."""
    bench = online()
    bench.handle(Closed(1, LinkDown("reset")))
    bench.wait(1.0)
    alone = bench.text(Label.PROVISIONAL)
    assert alone[:8] == tuple(range(66, 74))
    opened = bench.attach(Attach.LIVE, committed=anchor(*PROMPT, 66, 67))
    assert opened.draft is not None and opened.draft.draft.ids == alone[: len(opened.draft.draft.ids)]
    assert opened.context == Context(0, ()) or opened.context is None
    bench.down(Commit(1, 5, (66, 67), (A, B)))
    assert bench.text(Label.ACCEPTED, Label.BONUS) == (66, 67)
    bench.down(verified(1, 7, (68, 69, 1), 2))
    assert bench.text() == (66, 67, 68, 69, 1)


def test_a_resume_of_some_text_offers_its_ids() -> None:
    """Short contexts travel inside Open; long ones wait to be asked for."""
    bench = online()
    bench.down(verified(1, 5, (66, 80), 1))
    bench.handle(Closed(1, LinkDown("reset")))
    bench.wait(0.3)
    opened = bench.attach(Attach.REBUILD)
    assert opened.context == Context(0, (*PROMPT, 66, 80))
    tight = online(assumed_limits=Limits(max_inline_context_bytes=8))
    tight.down(verified(1, 5, (66, 80), 1))
    tight.machine.limits = Limits(max_inline_context_bytes=8)
    tight.handle(Closed(1, LinkDown("reset")))
    tight.wait(0.3)
    opened = tight.attach(Attach.NEED_CONTEXT, committed=anchor(), context_from=5)
    assert opened.context is None
    assert tight.frame(Context) == Context(5, (66, 80))


def test_reconcile_keep_continues_after_the_provisional_text() -> None:
    """Back online, the shown text stays as it is and the verifier goes on behind it."""
    bench = MachineBench(reconcile=Reconcile.KEEP)
    bench.begin(stop_ids=(), max_new=40)
    bench.attach()
    bench.slow_drafter = True
    bench.handle(Closed(1, LinkDown("reset")))
    bench.wait(0.05)
    shown = bench.text(Label.PROVISIONAL)
    opened = bench.attach(Attach.LIVE)
    assert opened.turn.append_ids == shown and opened.turn.turn == 2
    assert bench.text(Label.KEPT) == shown
    assert opened.turn.generated_from == len(PROMPT) and opened.turn.max_length == len(PROMPT) + 40


def test_reconcile_pause_shows_nothing() -> None:
    """No provisional text, no drafting without a link."""
    bench = online(reconcile=Reconcile.PAUSE)
    bench.handle(Closed(1, LinkDown("reset")))
    bench.wait(5)
    assert bench.text() == ()


def test_offline_always_never_dials() -> None:
    """The drafter alone, up to the limit; the end is unverified and says so."""
    bench = MachineBench(offline=Offline.ALWAYS)
    bench.begin(max_new=20)
    assert bench.take(Dial) == []
    assert bench.text(Label.PROVISIONAL) == tuple(range(66, 86))
    assert bench.take(Finish) == [Finish("offline", False)]


def test_offline_never_shows_nothing_unverified() -> None:
    """It waits, and dials."""
    bench = online(offline=Offline.NEVER)
    bench.wait(2)
    bench.handle(Closed(1, LinkDown("reset")))
    bench.wait(20)
    assert bench.text() == () and len(bench.take(Dial)) > 3


def test_refusals_surface_and_link_errors_do_not() -> None:
    """What no waiting can mend ends the turn; everything else is drafted through."""
    bench = online()
    bench.down(Failure(FailureReason.INVALID, "bad", field="draft.ids"))
    finish = bench.take(Finish)[0]
    assert finish.reason == "error" and isinstance(finish.error, InvalidField)
    bench = online()
    for failure in (
        FailureReason.ENGINE,
        FailureReason.OVERLOADED,
        FailureReason.DRAINING,
        FailureReason.IDLE,
    ):
        bench.down(Failure(failure, "later"))
        assert bench.take(Finish) == []
        bench.wait(6)
        bench.attach(Attach.LIVE)


def test_another_law_is_refused_before_any_token() -> None:
    """A verifier that serves another target than the session began with."""
    bench = MachineBench(fingerprints=Fingerprints(b"X" * 32))
    bench.begin()
    bench.attach()
    finish = bench.take(Finish)[0]
    assert isinstance(finish.error, FingerprintMismatch) and bench.text() == ()


def test_fencing_jumps_to_the_epoch_told() -> None:
    """A device whose journal is behind learns the last epoch and goes on above it."""
    bench = MachineBench()
    bench.begin()
    bench.handle(Connected(1))
    bench.down(Failure(FailureReason.FENCED, "old", last_epoch=41))
    bench.wait(1)
    assert bench.take(Dial)[-1].epoch == 42


def test_busy_waits_as_long_as_told() -> None:
    """No new draft before the advice has run out."""
    bench = online()
    bench.down(Verdict(1, RoundOutcome.BUSY, retry_after_ms=500))
    assert bench.frames(DraftFrame) == []
    bench.wait(0.4)
    assert bench.frames(DraftFrame) == []
    bench.wait(0.2)
    assert len(bench.frames(DraftFrame)) == 1


def test_drain_moves_to_a_new_connection_within_the_spread() -> None:
    """The old stream serves until the new one is open."""
    bench = online()
    bench.take(Dial)
    bench.down(Drain(5000, 400))
    bench.wait(0.41)
    assert bench.take(Dial)[0].fresh
    assert bench.machine.active is not None


def test_a_network_change_dials_at_once() -> None:
    """No back-off outlives the news that the network is back."""
    bench = MachineBench()
    bench.begin()
    for _ in range(6):
        conn = bench.take(Dial)[-1].conn
        bench.handle(Closed(conn, LinkDown("refused")))
        bench.wait(5)
    bench.handle(Closed(bench.machine.candidate.number, LinkDown("refused")))  # type: ignore[union-attr]
    bench.take(Dial)
    bench.handle(NetworkChanged(True))
    assert len(bench.take(Dial)) == 1


def test_a_finished_turn_keeps_its_stream_for_a_while() -> None:
    """The next turn rides on it; after the linger it is half-closed."""
    bench = online()
    bench.down(verified(1, 5, (66, 0), 1))
    assert bench.take(Finish) == [Finish("stop", True)]
    bench.wait(10)
    assert bench.take(HangUp) == []
    bench.begin(keep=7, append_ids=(44,))
    assert bench.frame(Turn).keep == anchor(*PROMPT, 66, 0)
    bench.down(verified(2, 8, (0,), 0, turn=2))
    bench.wait(31)
    assert bench.take(HangUp) == [HangUp(1, cancel=False)]


def test_a_killed_device_resumes_from_its_journal() -> None:
    """Committed and provisional text come back, the epoch rises, and Open speaks of the same turn."""
    bench = online()
    bench.down(verified(1, 5, (66, 67, 80), 2))
    bench.handle(Closed(1, LinkDown("reset")))
    bench.wait(0.2)
    journal = [action.record for action in bench.take(Persist)]
    restored = restore(journal)
    again = MachineBench(restored=restored)
    again.handle(NetworkChanged(True))
    dial = again.take(Dial)[-1]
    assert dial.epoch > max(int(str(r["epoch"])) for r in journal if r["kind"] == "epoch")
    again.handle(Connected(dial.conn))
    opened = again.frame(Open)
    assert opened.have == anchor(*PROMPT, 66, 67, 80) and opened.turn == bench.machine.turn
    assert opened.draft is not None and opened.draft.draft.ids[:2] == (81, 82)
