"""Ten seeded bugs. A checker that catches none of them proves nothing about the real cores.

Each is one wrong line in one core; the simulator must find it within a bounded number of seeds.
"""

from __future__ import annotations

from dataclasses import replace

from outrider.client.conn import Conn
from outrider.client.events import AddRows, Dial, StopAt
from outrider.client.journal import epoch_record
from outrider.client.machine import SessionMachine
from outrider.cloud.events import Priority, Verified
from outrider.cloud.session_log import Session
from outrider.cloud.steps import Gain, Job
from outrider.cloud.table import SessionTable
from outrider.cloud.table_state import Stream
from outrider.netsim.world.world import Build
from outrider.shared.codec import decode_rows
from outrider.shared.frames import Commit, DownFrame, Rows, TokenKind, TurnEnd


class CommitWithoutPosition(SessionMachine):
    """Appends whatever a commit carries, covered already or not."""

    def _apply(self, conn: Conn, commit: Commit) -> None:
        conn.known = max(conn.known, commit.start + len(commit.ids))
        conn.progress_at, conn.late = self.now, False
        self.commit(commit.ids, commit.kinds)


class NoCatchUp(SessionTable):
    """Resumes without sending what the device has missed."""

    def catch_up(self, stream: Stream, start: int) -> None:
        if stream.session.ended is not None:
            self.send(stream, stream.session.end_frame())


class RunAheadOutsideLog(SessionTable):
    """Sends run-ahead tokens and does not write them down."""

    def _commit(self, job: Job, gain: Gain, outcome: Verified) -> None:
        stream = self.stream_of(job.session)
        if job.round is None and stream is not None and gain.kinds[-1] is TokenKind.RUN_AHEAD:
            session = job.session
            self.send(stream, Commit(session.turn_number, session.length, gain.ids, gain.kinds))
            session.run_until = 0
        else:
            super()._commit(job, gain, outcome)


class OldStreamAfterNewEpoch(SessionMachine):
    """Goes on listening to streams that a newer attachment has replaced."""

    _old: dict[int, Conn]

    def conn_of(self, number: int) -> Conn | None:
        found = super().conn_of(number)
        self._old = getattr(self, "_old", {})
        if found is not None:
            self._old[number] = found
        return found or self._old.get(number)

    def drop(self, conn: Conn, cancel: bool) -> None:
        self.forget(conn)


class TurnNotEchoed(SessionMachine):
    """Takes every frame as one of the present turn."""

    def _on_commit(self, conn: Conn, commit: Commit) -> None:
        if not self.finished:
            self._apply(conn, replace(commit, turn=self.turn_number))


class EpochNotStored(SessionMachine):
    """Dials before the epoch is durable."""

    def dial(self, fresh: bool) -> None:
        self.epoch += 1
        self._conns += 1
        self._dial_at = None
        self.candidate = Conn(self._conns, self.epoch, self.now, fresh)
        self.persist(epoch_record(self.epoch))
        self.act(Dial(self._conns, self.epoch, fresh))


class TextAfterStopKept(SessionMachine):
    """Ends the turn at a stop string and leaves what came after it."""

    def _cut_at(self, event: StopAt) -> None:
        self._cut_tail(len(self.sequence))
        self.finish(event.reason, verified=True)


class TurnEndLost(SessionTable):
    """Ends turns without telling."""

    def send(self, stream: Stream, frame: DownFrame, priority: Priority = Priority.COMMIT) -> None:
        if not isinstance(frame, TurnEnd):
            super().send(stream, frame, priority)


class RowsOfAnotherTurn(SessionMachine):
    """Gives the drafter rows of whatever turn they were made for."""

    def _on_rows(self, conn: Conn, rows: Rows) -> None:
        plane = conn.planes.get(rows.plane)
        if rows.bulk:
            conn.bulk_received += len(rows.data)
        if plane is not None and rows.start + rows.count <= len(self.sequence):
            self.act(AddRows(rows.plane, rows.start, decode_rows(rows.data, rows.count, plane)))


class PathShiftedByOne(SessionTable):
    """Takes the accepted path one node too late."""

    def gain(self, session: Session, job: Job, path: tuple[int, ...], outcome: Verified) -> Gain:
        gain = super().gain(session, job, path, outcome)
        if gain.accepted < 2 or len(gain.ids) < 3:
            return gain
        return replace(gain, ids=(*gain.ids[1:], gain.ids[-1]))


MUTANTS: dict[str, Build] = {
    "commit-without-position": Build(machine=CommitWithoutPosition),
    "no-catch-up": Build(table=NoCatchUp),
    "run-ahead-outside-log": Build(table=RunAheadOutsideLog),
    "old-stream-after-new-epoch": Build(machine=OldStreamAfterNewEpoch),
    "turn-not-echoed": Build(machine=TurnNotEchoed),
    "epoch-not-stored": Build(machine=EpochNotStored),
    "text-after-stop-kept": Build(machine=TextAfterStopKept),
    "turn-end-lost": Build(table=TurnEndLost),
    "rows-of-another-turn": Build(machine=RowsOfAnotherTurn),
    "accepted-path-shifted": Build(table=PathShiftedByOne),
}
"""Seeded bugs by name."""
