"""How the device gets and keeps a stream: epochs, dialling, losing, the three deadlines, and giving up.

Losing the link changes labels, dialling and pacing, and nothing else: text is text.
"""

from __future__ import annotations

import random

from outrider.client.conn import Conn
from outrider.client.drafter import Confidence
from outrider.client.events import Closed, Dial, HangUp, LinkState, NetworkChanged, Send
from outrider.client.journal import Restored, epoch_record
from outrider.client.machine_settings import MachineSettings, Offline, Reconcile
from outrider.client.plan import Pacing
from outrider.client.text import TextMachine
from outrider.client.timers import Backoff, Deadlines
from outrider.shared.errors import (
    LinkDown,
    OutriderError,
    ProtocolViolation,
    Refused,
    surfaces,
)
from outrider.shared.frames import (
    Ping,
    UpFrame,
)

_MAX_EPOCH_JUMP = 1_000_000


class DialMachine(TextMachine):
    """The part of the session machine that owns connections."""

    def __init__(
        self, settings: MachineSettings, pacing: Pacing, rng: random.Random, restored: Restored | None = None
    ) -> None:
        super().__init__(settings, rng, restored)
        self.pacing = pacing
        self.epoch = restored.epoch if restored else 0
        self.attached_before = restored is not None and restored.epoch > 0
        self.fingerprints = restored.fingerprints if restored else settings.fingerprints
        self.bundle = b""
        self.num_planes = 0
        self.active: Conn | None = None
        self.candidate: Conn | None = None
        self.deadlines = Deadlines(settings.first_soft_s)
        self.backoff = Backoff(rng)
        self.violations = 0
        self.limits = settings.assumed_limits
        self.distrust: ProtocolViolation | None = None
        """Why the verifier was given up, if it was."""
        self.given_up = settings.offline is Offline.ALWAYS
        self.rounds_judged = self.rounds_dry = self.guesses_judged = self.guesses_right = 0
        self.confidence = Confidence()
        self.excess_s = 0.0
        """Smoothed time that a verdict takes beyond the bare pass."""
        self._conns = 0
        self._dial_at: float | None = None
        self._waiting_barrier: tuple[int, Conn] | None = None
        self._linger_until: float | None = None
        self._asked_for_bundle = False
        self._nonce = 0
        self._pinged: tuple[int, float] | None = None
        self._alone_at: float | None = None

    # ------------------------------------------------------------------------------------------------------ dialling

    @property
    def alone(self) -> bool:
        """Whether nothing timely comes from a verifier, whatever the cause."""
        if self.given_up:
            return True
        if self.active is not None:
            return self.active.late
        return self._alone_at is not None and self.now >= self._alone_at

    @property
    def writes_alone(self) -> bool:
        """Whether text may be shown that no verifier has seen."""
        if self.settings.offline is Offline.ALWAYS:
            return True
        return self.settings.offline is Offline.AUTO and self.settings.reconcile is not Reconcile.PAUSE

    @property
    def wants_link(self) -> bool:
        """Whether a stream is of use now."""
        return not self.given_up and not self.finished

    def dial_if_due(self) -> None:
        """Start an attempt when a stream is wanted and none is there or under way."""
        if not self.wants_link or self.active is not None or self.candidate is not None:
            return
        if self._dial_at is None or self.now >= self._dial_at:
            self.dial(fresh=self.attached_before)

    def dial(self, fresh: bool) -> None:
        """Start an attempt under a new epoch, which is durable before the attempt is."""
        self.epoch += 1
        self._conns += 1
        self._dial_at = None
        conn = Conn(self._conns, self.epoch, self.now, fresh, self.limits)
        self.candidate = conn
        if self._alone_at is None and self.active is None:
            self._alone_at = self.now + self.settings.first_soft_s
        number = self.persist(epoch_record(self.epoch), barrier=True)
        if number:
            self._waiting_barrier = (number, conn)
        else:
            self.act(Dial(conn.number, conn.epoch, fresh))

    def on_persisted(self, seq: int) -> None:
        """An epoch is durable (or never will be): now it may be used."""
        if self._waiting_barrier is not None and self._waiting_barrier[0] == seq:
            _, conn = self._waiting_barrier
            self._waiting_barrier = None
            if self.candidate is conn:
                self.act(Dial(conn.number, conn.epoch, conn.fresh))

    def on_network(self, event: NetworkChanged) -> None:
        """The platform knows better than any timer."""
        self.deadlines.unsettle()
        if event.up:
            self.backoff.reset()
            self._dial_at = None

    def conn_of(self, number: int) -> Conn | None:
        """The connection with this number, if it still matters."""
        for conn in (self.active, self.candidate):
            if conn is not None and conn.number == number:
                return conn
        return None

    def send(self, conn: Conn, frame: UpFrame) -> None:
        """Write a frame."""
        self.act(Send(conn.number, frame))

    # -------------------------------------------------------------------------------------------------------- losing

    def on_closed(self, event: Closed) -> None:
        """A stream or an attempt has ended."""
        conn = self.conn_of(event.conn)
        if conn is None:
            return
        if isinstance(event.error, ProtocolViolation) and not event.error.ours:
            self.violation(conn, event.error.detail)
        else:
            self.lost(conn, event.error)

    def lost(self, conn: Conn, error: OutriderError | None) -> None:
        """Forget a connection; what was under way on it is merely drafted text."""
        served = conn.opened is not None and conn.progress_at > conn.dialled_at
        self.forget(conn)
        if error is not None and surfaces(error):
            self.hang_up_all()
            self.finish("error", verified=False, error=error)
            return
        advice_s = error.retry_after_ms / 1000 if isinstance(error, Refused) else 0.0
        last_epoch = getattr(error, "last_epoch", 0)
        if self.epoch < last_epoch <= self.epoch + _MAX_EPOCH_JUMP:
            self.epoch = last_epoch
        if served and not advice_s:
            self.backoff.reset()
        self._dial_at = self.now + self.backoff.next(advice_s)

    def forget(self, conn: Conn) -> None:
        """Take a connection out of the books."""
        if self._waiting_barrier is not None and self._waiting_barrier[1] is conn:
            self._waiting_barrier = None
        if conn is self.active:
            self.active = None
            self._alone_at = self.now
        if conn is self.candidate:
            self.candidate = None

    def drop(self, conn: Conn, cancel: bool) -> None:
        """End a connection from this side."""
        self.act(HangUp(conn.number, cancel))
        self.forget(conn)

    def hang_up_all(self) -> None:
        """End every connection."""
        for conn in (self.active, self.candidate):
            if conn is not None:
                self.drop(conn, cancel=True)

    def violation(self, conn: Conn, why: str) -> None:
        """The verifier did what the protocol forbids: drop the stream; after a few times drop the verifier."""
        self.violations += 1
        self.limits = self.settings.assumed_limits  # those it told are worth as little as the rest
        self.drop(conn, cancel=True)
        self._dial_at = self.now + self.backoff.next()
        if self.violations >= self.settings.max_violations:
            self.hang_up_all()
            self.given_up = True
            self.distrust = ProtocolViolation(why)
            self.report(LinkState.OFFLINE, f"the verifier breaks the protocol and is not asked again: {why}")
            self.end_if_hopeless()

    def end_if_hopeless(self) -> None:
        """End the turn when the verifier was given up and the device may not or cannot write alone."""
        if self.distrust is not None and not (self.writes_alone and self.drafter_ready):
            self.finish("error", verified=False, error=self.distrust)

    # -------------------------------------------------------------------------------------------------------- timers

    def owed_since(self, conn: Conn) -> float | None:
        """Since when the verifier owes something on this stream; None when it does not."""
        if conn.rounds:
            return max(conn.progress_at, min(round_.sent_at for round_ in conn.rounds.values()))
        runs_ahead = conn.run_until > len(self.sequence)
        return conn.progress_at if runs_ahead and not self.finished else None

    def soft_at(self, conn: Conn) -> float | None:
        """When the text is late."""
        if self.finished:
            return None
        if conn.rounds:
            return min(round_.deadline for round_ in conn.rounds.values())
        owed = self.owed_since(conn)
        return None if owed is None else max(owed, conn.window_at) + self.deadlines.soft()

    def check_deadlines(self) -> None:
        """Act on every deadline that has passed."""
        candidate, active = self.candidate, self.active
        if candidate is not None and self.now >= candidate.dialled_at + self.settings.connect_s:
            self.drop(candidate, cancel=True)
            self._dial_at = self.now + self.backoff.next()
        if active is not None:
            self._check_active(active)
        if self._linger_until is not None and self.now >= self._linger_until:
            self._linger_until = None
            if self.finished:
                for conn in (self.active, self.candidate):
                    if conn is not None:
                        self.drop(conn, cancel=False)

    def _check_active(self, conn: Conn) -> None:
        soft = self.soft_at(conn)
        if soft is not None and self.now >= soft and not conn.late:
            conn.late = True
            self._ping(conn)
        silent_since = self._silent_since(conn)
        owed = self.owed_since(conn)
        stalled = owed is not None and self.now >= owed + self.settings.stall_s
        if stalled or (silent_since is not None and self.now >= silent_since + self.deadlines.dead()):
            self.lost(conn, LinkDown("nothing came from the verifier"))
            self.act(HangUp(conn.number, cancel=True))
            self._dial_at = self.now
        elif self.candidate is None and self._looks_elsewhere(conn, silent_since):
            conn.leave_at = None
            self.dial(fresh=True)

    def _looks_elsewhere(self, conn: Conn, silent_since: float | None) -> bool:
        if not self.wants_link or (self._dial_at is not None and self.now < self._dial_at):
            return False
        silent = silent_since is not None and self.now >= silent_since + self.deadlines.probe()
        return silent or (conn.leave_at is not None and self.now >= conn.leave_at)

    def _silent_since(self, conn: Conn) -> float | None:
        owed = self.owed_since(conn)
        return None if owed is None else max(conn.heard_at, owed)

    def _ping(self, conn: Conn) -> None:
        self._nonce = self._nonce % 0xFFFFFFFF + 1
        self._pinged = (self._nonce, self.now)
        self.send(conn, Ping(self._nonce))

    def timer_times(self) -> list[float]:
        """When something has to be looked at again."""
        times: list[float | None] = [self._linger_until]
        if self.wants_link and self.active is None and self.candidate is None:
            times.append(self._dial_at if self._dial_at is not None else self.now)
        if self.candidate is not None:
            times.append(self.candidate.dialled_at + self.settings.connect_s)
        if self.active is not None:
            times += self._active_times(self.active)
        if self.active is None and self._alone_at is not None and self.now < self._alone_at:
            times.append(self._alone_at)
        return [time for time in times if time is not None]

    def _active_times(self, conn: Conn) -> list[float | None]:
        silent_since = self._silent_since(conn)
        times: list[float | None] = [None if conn.late else self.soft_at(conn)]
        owed = self.owed_since(conn)
        if silent_since is not None and owed is not None:
            times += [silent_since + self.deadlines.dead(), owed + self.settings.stall_s]
        if self.candidate is None and self.wants_link:
            after = self._dial_at or 0.0
            if silent_since is not None:
                times.append(max(silent_since + self.deadlines.probe(), after))
            if conn.leave_at is not None:
                times.append(max(conn.leave_at, after))
        return times
