"""The session machine against a verifier that the test plays."""

from __future__ import annotations

import pytest

from outrider.client.drafter import Proposal
from outrider.client.events import (
    BundleReady,
    Closed,
    Connected,
    Dial,
    Drafted,
    Fetch,
    Finish,
    Label,
    Propose,
    Report,
    StopAt,
)
from outrider.client.journal import UNREACHABLE
from outrider.client.plan import STREAMING, Plan
from outrider.netsim.world.toy import PLANE
from outrider.shared.errors import LinkDown
from outrider.shared.frames import (
    UNLIMITED,
    Attach,
    Cancel,
    Commit,
    DraftFrame,
    Feature,
    Fingerprints,
    FinishReason,
    Limits,
    Open,
    Opened,
    RoundOutcome,
    RowPlane,
    Rows,
    Steer,
    TokenKind,
    Turn,
    TurnEnd,
    Verdict,
)
from tests.client.machine_bench import ALL, PRINTS, PROMPT, MachineBench, anchor, online, verified

A, R, B = TokenKind.ACCEPTED, TokenKind.RECOVERED, TokenKind.BONUS


def test_open_says_all_and_carries_the_first_draft() -> None:
    """A new session: nothing is held, the prompt is in the turn, the draft hangs behind the prompt."""
    bench = MachineBench()
    bench.begin()
    opened = bench.attach()
    assert (opened.have.length, opened.turn.append_ids, opened.context, opened.rejoin) == (
        0,
        PROMPT,
        None,
        False,
    )
    assert opened.draft is not None and opened.draft.base == anchor(*PROMPT)
    assert opened.draft.draft.ids == (66, 67, 68, 69)


def test_one_round() -> None:
    """Propose, send, receive, commit; what the tail foresaw is kept, the next draft follows the new text."""
    bench = online()
    bench.down(verified(1, 5, (66, 67, 80), 2))
    assert bench.text(Label.ACCEPTED) == (66, 67) and bench.text(Label.RECOVERED) == (80,)
    sent = bench.frame(DraftFrame)
    assert sent.round == 2 and sent.window.seen == anchor(*PROMPT, 66, 67, 80)
    assert sent.draft.ids == (81, 82, 83, 84)
    assert bench.sequence == [*PROMPT, 66, 67, 80, 81, 82, 83, 84] + bench.sequence[12:]


def test_the_tail_grows_while_a_round_is_in_flight_and_becomes_the_next_draft() -> None:
    """After a draft kept whole the next one is there already."""
    bench = online()
    bench.take(Propose)
    bench.slow_drafter = True
    bench.down(verified(1, 5, (66, 67, 68, 69, 70), 4))
    # Three of the next four are there; the drafter is asked for the fourth only.
    asked = bench.take(Propose)
    assert [one.budget.max_depth for one in asked] == [1]
    bench.draft(asked[0])
    assert bench.frame(DraftFrame).draft.ids == (71, 72, 73, 74)


def test_streaming_needs_steering_only() -> None:
    """Empty drafts and unlimited run-ahead: one step in Open, then windows every sixteen tokens or second."""
    bench = MachineBench(STREAMING.fixed, drafter=False)
    bench.begin(max_new=2000)
    opened = bench.attach()
    assert opened.draft is not None and opened.draft.draft.ids == ()
    assert opened.window.run_ahead_until == UNLIMITED
    bench.down(verified(1, 5, (10,), 0))
    for token in range(1, 40):
        bench.down(bench.commit(token % 90 + 1))
    steers = bench.frames(Steer)
    assert len(steers) == 2 and bench.frames(DraftFrame) == []
    bench.down(bench.commit(5))
    bench.wait(1.1)
    assert bench.frame(Steer).window.seen == bench.machine.sequence.anchor


def test_a_stop_id_ends_the_turn_when_committed_and_not_before() -> None:
    """Drafted offline it only pauses drafting and says that the end is unconfirmed."""
    bench = MachineBench()
    bench.begin(append_ids=(*PROMPT, 95), max_new=50)
    bench.wait(1.5)
    assert bench.text() == (96, 0)
    assert bench.take(Finish) == []
    assert "ended, unconfirmed" in [report.note for report in bench.take(Report)]
    bench.attach()
    bench.down(verified(1, 6, (96, 7), 1))
    assert bench.text()[:2] == (96, 7)
    bench.down(bench.commit(0))
    assert bench.take(Finish) == [Finish("stop", True)]
    assert bench.text()[-1] == 0


def test_turn_end_must_be_where_the_text_is() -> None:
    """The verifier's word for context and cancelled; elsewhere it is a violation."""
    bench = MachineBench()
    bench.begin()
    bench.attach(limits=Limits(max_context_tokens=6))
    bench.down(bench.commit(66))
    bench.down(TurnEnd(1, FinishReason.CONTEXT, anchor(*PROMPT, 66)))
    assert bench.take(Finish) == [Finish("context", True)]
    bench = online()
    bench.down(bench.commit(66))
    bench.down(TurnEnd(1, FinishReason.CONTEXT, anchor(*PROMPT, 66)))
    assert bench.machine.violations == 1 and bench.take(Finish) == []
    bench = online()
    bench.down(TurnEnd(1, FinishReason.STOP_ID, anchor(*PROMPT, 66)))
    assert bench.machine.violations == 1 and bench.take(Finish) == []


def test_a_stop_string_in_committed_text_cuts_there() -> None:
    """Nothing after it stays, the verifier is told, and the next turn continues from the cut."""
    bench = online()
    bench.down(bench.commit(66, 67, 68, 69))
    bench.handle(StopAt(7, "stop"))
    assert bench.text() == (66, 67)
    assert bench.take(Finish) == [Finish("stop", True)]
    assert bench.frame(Cancel).turn == 1
    bench.begin(keep=7, append_ids=(40,))
    told = bench.frame(Turn)
    assert (told.turn, told.keep, told.append_ids) == (2, anchor(*PROMPT, 66, 67), (40,))


def test_a_verifier_that_was_given_up_is_not_told_to_end_the_turn() -> None:
    """A word that comes through later would end a turn that its journal can still go on with."""
    for reason, told in ((UNREACHABLE, 0), ("cancelled", 1)):
        bench = online()
        bench.down(bench.commit(66, 67))
        bench.handle(StopAt(bench.machine.displayed, reason))
        assert bench.take(Finish) == [Finish(reason, True)]
        assert len(bench.frames(Cancel)) == told


def test_a_stop_string_in_provisional_text_only_pauses() -> None:
    """Verified, it ends the turn exactly there; refused, drafting goes on."""
    for said, ends in (((66, 67, 68), True), ((66, 9), False)):
        bench = online()
        bench.wait(1.2)
        bench.handle(StopAt(7, "stop"))
        assert bench.text() == (66, 67)
        assert bench.take(Finish) == []
        bench.down(verified(1, 5, said, len(said) - 1), conn=1)
        if ends:
            assert bench.text() == (66, 67) and bench.take(Finish) == [Finish("stop", True)]
        else:
            assert bench.text()[:2] == (66, 9) and bench.take(Finish) == []


def test_a_user_turn_adopts_provisional_text() -> None:
    """What was on display becomes given, labelled kept, and is never revised."""
    bench = online()
    bench.handle(Closed(1, LinkDown("reset")))
    bench.wait(0.5)
    shown = bench.text()
    keep = len(PROMPT) + 3
    bench.begin(keep=keep, append_ids=(50, 51))
    assert bench.text(Label.KEPT) == shown[:3]
    turn = bench.machine.turn
    assert turn is not None
    assert (turn.keep, turn.append_ids) == (anchor(*PROMPT), (*shown[:3], 50, 51))
    assert turn.generated_from == keep + 2


def test_pipelining_sends_the_tail_while_rounds_are_in_flight() -> None:
    """Round 2 hangs below round 1; after a cut the device drafts anew at once."""
    bench = online(Plan(3, 3, rounds=3))
    sent = bench.frames(DraftFrame)
    assert [frame.round for frame in sent] == [2, 3]
    assert sent[0].base == anchor(*PROMPT, 66, 67, 68)
    assert sent[0].draft.ids == (69, 70, 71)
    bench.down(verified(1, 5, (66, 9), 1))
    again = bench.frames(DraftFrame)
    assert again[0].base in (None, anchor(*PROMPT, 66, 9)) and again[0].draft.ids == (10, 11, 12)
    bench.down(Verdict(2, RoundOutcome.SUPERSEDED))
    bench.down(Verdict(3, RoundOutcome.SUPERSEDED))
    bench.down(verified(4, 7, (10, 11, 12, 13), 3))
    assert bench.text() == (66, 9, 10, 11, 12, 13)


def test_rows_reach_the_drafter_only_for_decided_text_of_this_turn() -> None:
    """Another turn's are dropped, undecided positions are a violation, bulk bytes are acknowledged."""
    bench = online()
    bench.down(Rows(1, 0, 0, 1, b"\0" * 4))
    assert bench.machine.violations == 1


def test_a_bundle_that_arrives_late_changes_drafts_not_text() -> None:
    """Streaming until the drafter is there, then drafts on the same text."""
    bench = MachineBench(Plan(3, 3), drafter=False)
    bench.begin()
    opened = bench.attach()
    assert opened.draft is not None and opened.draft.draft.ids == ()
    bench.down(verified(1, 5, (66,), 0))
    assert bench.frame(DraftFrame).draft.ids == ()
    bench.handle(BundleReady(b"", 0))
    bench.down(verified(2, 6, (67,), 0))
    assert bench.frame(DraftFrame).draft.ids == (68, 69, 70)


@pytest.mark.parametrize("idle", [False, True])
def test_a_bundle_that_reads_rows_gets_a_stream_that_brings_them(idle: bool) -> None:
    """It attaches again, once: at once in the middle of a turn, with the next turn when it came between two."""
    bench = online()
    bench.take(Dial)
    if idle:
        bench.down(verified(1, 5, (66, 67, 68, 69, 0), 4))
        assert bench.take(Finish)
    bench.handle(BundleReady(b"B" * 32, 1))
    if idle:
        assert not bench.take(Dial)
        bench.begin(keep=0)
    (dial,) = bench.take(Dial)
    bench.handle(Connected(dial.conn))
    opened = bench.frame(Open)
    assert opened.rows is not None and opened.fingerprints.bundle == b"B" * 32
    answer = Opened(dial.epoch, Attach.LIVE, bench.machine.sequence.anchor, fingerprints=PRINTS, features=ALL)
    bench.down(answer, dial.conn)
    bench.handle(BundleReady(b"B" * 32, 1))
    bench.handle(StopAt(bench.machine.end, "stop"))
    bench.begin(keep=0)
    assert not bench.take(Dial)


def test_another_drafter_is_timed_anew() -> None:
    """Step times are those of today's drafter: not of the one before, whose last answer may still come."""
    bench = online()
    bench.slow_drafter = True

    def answer(elapsed_s: float) -> None:
        """A chain of four for what the drafter was asked for last, then text that it did not foresee."""
        draft = Proposal.chain((1, 2, 3, 4), (-0.1,) * 4)
        bench.handle(Drafted(bench.take(Propose)[-1].base, draft, elapsed_s, 4, 4))
        bench.down(bench.commit(40))

    bench.down(bench.commit(90))
    for _ in range(8):
        answer(4e-6)
    quick = bench.machine.draft_step
    assert quick is not None and quick.level_s(1) == pytest.approx(1e-6)
    bench.handle(BundleReady(b"", 0))
    assert bench.machine.draft_step == quick
    bench.handle(BundleReady(b"m" * 32, 0))
    assert bench.machine.draft_step is None
    answer(4e-6)
    assert bench.machine.draft_step is None
    answer(0.040)
    slow = bench.machine.draft_step
    assert slow is not None and slow.level_s(1) == pytest.approx(0.010)


@pytest.mark.parametrize("seen", [1, 3])
def test_a_commit_that_is_covered_changes_nothing(seen: int) -> None:
    """Applying a frame twice, or one already covered, is harmless."""
    bench = online()
    bench.down(bench.commit(66, 67, 68))
    before = bench.text()
    bench.down(Commit(1, 5, (66, 67, 68)[:seen], (A,) * seen))
    assert bench.text() == before and bench.machine.violations == 0


@pytest.mark.parametrize(
    ("held", "planes", "granted", "offered", "asked"),
    [
        (b"", 0, ALL, (), [b"N" * 32]),  # none yet: the one Opened names
        (b"B" * 32, 1, ALL, (PLANE,), []),  # its rows come, so it is served
        (b"B" * 32, 1, ALL, (), [b"N" * 32]),  # rows are made, but not for this one
        (b"B" * 32, 0, ALL, (), [b""]),  # reads no rows: only Describe can tell
        (b"B" * 32, 1, tuple(set(ALL) - {Feature.STATE_ROWS}), (), [b""]),  # rows are made for none
    ],
)
def test_a_newer_bundle_is_heard_of_once_a_session(
    held: bytes, planes: int, granted: tuple[Feature, ...], offered: tuple[RowPlane, ...], asked: list[bytes]
) -> None:
    """Whether rows come says that a bundle is served; where that says nothing, what is described is asked for, once."""
    bench = MachineBench(drafter=False)
    if held:
        bench.handle(BundleReady(held, planes))
    prints = Fingerprints(PRINTS.law, PRINTS.tokenizer, b"N" * 32)
    bench.begin()
    bench.attach(fingerprints=prints, features=granted, planes=offered)
    assert [action.sha256 for action in bench.take(Fetch)] == asked
    bench.handle(Closed(1, LinkDown("gone")))
    bench.wait(3.0)
    bench.attach(Attach.LIVE, fingerprints=prints, features=granted, planes=())
    assert [action.sha256 for action in bench.take(Fetch)] == ([] if asked else [b"N" * 32])
