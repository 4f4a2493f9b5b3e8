"""A device: the real session machine, a journal that survives crashes, a toy drafter and a user."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from outrider.client.events import (
    Accept,
    AddRows,
    Begin,
    BundleReady,
    Closed,
    Connected,
    Dial,
    Drafted,
    Emit,
    Fetch,
    Finish,
    HangUp,
    MachineAction,
    MachineEvent,
    NetworkChanged,
    Persist,
    Persisted,
    Prime,
    Propose,
    Received,
    Relabel,
    Report,
    Revise,
    Rollback,
    Send,
    StopAt,
    Tick,
)
from outrider.client.journal import Record, Restored, restore
from outrider.client.machine import SessionMachine
from outrider.client.machine_settings import MachineSettings
from outrider.client.plan import FixedPacing
from outrider.netsim.world.history import History
from outrider.netsim.world.kernel import Kernel
from outrider.netsim.world.net import Link, Net, Stream
from outrider.netsim.world.schedule import DevicePlan
from outrider.netsim.world.server import PRINTS, Replica
from outrider.netsim.world.toy import STOP_ID, VOCABULARY, ToyDrafter, ToyTarget
from outrider.shared.errors import OutriderError
from outrider.shared.frames import DownFrame, Limits, Opened, RowEncoding, Rule


class Device:
    """One device and its user; a crash keeps the journal up to the last barrier and a bit of what follows."""

    def __init__(
        self,
        number: int,
        plan: DevicePlan,
        kernel: Kernel,
        net: Net,
        history: History,
        machine_class: type[SessionMachine],
        target: ToyTarget,
        replicas: list[Replica],
        rng: random.Random,
        limits: Limits,
    ) -> None:
        self.name = f"device {number}"
        self.number = number
        self.plan = plan
        self.kernel = kernel
        self.net = net
        self.history = history
        self.machine_class = machine_class
        self.target = target
        self.replicas = replicas
        self.rng = rng
        self.limits = limits
        self.link = Link()
        self.prefer = number % len(replicas)
        self.journal: list[Record] = []
        self.durable = 0
        self.life = 0
        self.up = True
        self.paused_until = 0.0
        self.backlog: deque[Callable[[], None]] = deque()
        self.turns_begun = 0
        self.done = False
        self._boot(None)
        self.kernel.at(0.0, self._next_turn)

    def _boot(self, restored: Restored | None) -> None:
        settings = MachineSettings(
            session_id=bytes([self.number + 1]) * 16,
            offline=self.plan.offline,
            reconcile=self.plan.reconcile,
            fingerprints=PRINTS if self.rng.random() < 0.5 else restored.fingerprints if restored else PRINTS,
            vocabulary=VOCABULARY,
            row_encoding=RowEncoding.F32,
            bulk_window_bytes=240,
            max_tail_tokens=96,
            stall_s=25.0,
            assumed_limits=self.limits,
        )
        seed = self.rng.randrange(2**32)
        self.machine = self.machine_class(
            settings, FixedPacing(self.plan.plan), random.Random(seed), restored
        )
        self.drafter = ToyDrafter(self.target, seed, self.plan.error_rate, [])
        self.streams: dict[int, Stream] = {}
        self.numbers: dict[int, int] = {}
        self.wake: float | None = None
        self.opened_epoch = 0
        if self.plan.bundle_at is not None:
            at = max(self.plan.bundle_at, self.kernel.now + 0.01)
            bundle = PRINTS.bundle if self.plan.rows else b""
            self._later(at, lambda: self.handle(BundleReady(bundle, int(self.plan.rows))))

    # ------------------------------------------------------------------------------------------------ user and faults

    def _later(self, at: float, action: Callable[[], None]) -> None:
        """Do something in this life only, and not while paused."""
        life = self.life

        def run() -> None:
            if life != self.life or not self.up:
                return
            if self.kernel.now < self.paused_until or self.backlog:
                self.backlog.append(action)
                self.kernel.at(self.paused_until, self._wake_up)
            else:
                action()

        self.kernel.at(at, run)

    def _wake_up(self) -> None:
        """After a pause everything happens at once, in the order in which it came."""
        while self.up and self.backlog and self.kernel.now >= self.paused_until:
            self.backlog.popleft()()
        if self.up and self.backlog:
            self.kernel.at(self.paused_until, self._wake_up)

    def _next_turn(self) -> None:
        if self.turns_begun >= len(self.plan.turns):
            self.done = self.machine.finished
            return
        turn = self.plan.turns[self.turns_begun]
        self.turns_begun += 1
        length = len(self.machine.sequence) + self.machine.tail.shown
        keep = length - round(length * turn.back)
        if keep + len(turn.append_ids) > self.limits.max_context_tokens - 2:
            keep = 0  # a new conversation rather than one that cannot fit
        begin = Begin(
            keep,
            turn.append_ids,
            turn.max_new,
            (STOP_ID,) if turn.knows_stop_ids else (),
            turn.sampling,
            Rule("greedy" if turn.sampling.greedy else "coupled"),
        )
        self.history.add(self.kernel.now, self.name, "begin", keep=keep, number=self.turns_begun)
        self.handle(begin)

    def stop(self, reason: str) -> None:
        """The user, or a stop string, ends the text somewhere in what is shown."""
        machine = self.machine
        shown = machine.displayed - machine.turn_start
        if not self.up or machine.finished or shown < 1 or self.kernel.now < self.paused_until:
            return
        back = self.rng.randrange(min(shown, 4)) if reason == "stop" else 0
        length = machine.displayed - back
        self.history.add(self.kernel.now, self.name, "stop_at", length=length, reason=reason)
        self.handle(StopAt(length, reason))

    def interrupt(self) -> None:
        """The user does not wait for the end of the turn."""
        if self.up and not self.machine.finished and self.turns_begun < len(self.plan.turns):
            if self.kernel.now >= self.paused_until:
                self.history.add(self.kernel.now, self.name, "interrupt")
                self._next_turn()

    def crash(self, duration: float) -> None:
        """Lose the process; a torn end of the journal may be lost with it."""
        if not self.up:
            return
        self.up = False
        self.life += 1
        self.backlog.clear()
        for stream in self.streams.values():
            stream.device_alive = False
            self.net.cut(stream, 0.0, self.net.latency_s)
        kept = self.rng.randint(self.durable, len(self.journal))
        del self.journal[kept:]
        self.history.add(self.kernel.now, self.name, "crash", records=kept)
        self.kernel.after(duration, self._restart)

    def _restart(self) -> None:
        self.up = True
        restored = restore(self.journal)
        ids = tuple(restored.sequence.ids)
        kinds = dict(restored.kinds)
        self.history.add(
            self.kernel.now,
            self.name,
            "restored",
            ids=ids,
            kinds=kinds,
            shown=tuple(restored.tail.ids),
            turn=restored.turn,
            end=restored.end,
        )
        self._boot(restored)
        if self.machine.finished:
            if restored.turn is None or restored.end is None:
                self.turns_begun = max(self.turns_begun - 1, 0)
            self._later(self.kernel.now + 0.1, self._next_turn)
        else:
            self.handle(Tick())

    # ------------------------------------------------------------------------------------------------------- network

    def connected(self, stream: Stream) -> None:
        """A stream is open."""
        self._later(self.kernel.now, lambda: self.handle(Connected(stream.conn)))

    def received(self, stream: Stream, frame: DownFrame) -> None:
        """A frame has come."""
        if isinstance(frame, Opened):
            self._later(self.kernel.now, lambda: self._opened(stream, frame))
        else:
            self._later(self.kernel.now, lambda: self.handle(Received(stream.conn, frame), stream.epoch))

    def closed(self, stream: Stream, error: OutriderError | None) -> None:
        """A stream has ended."""
        self._later(self.kernel.now, lambda: self.handle(Closed(stream.conn, error)))

    def _opened(self, stream: Stream, frame: Opened) -> None:
        self.handle(Received(stream.conn, frame), stream.epoch)
        active = self.machine.active
        if active is not None and active.number == stream.conn:
            self.opened_epoch = max(self.opened_epoch, stream.epoch)

    def _dial(self, action: Dial) -> None:
        self.history.add(self.kernel.now, self.name, "dial", epoch=action.epoch)
        replica = self.replicas[self.prefer]
        if action.fresh and self.rng.random() < 0.3:
            replica = self.rng.choice(self.replicas)
        life = replica.life
        stream = self.net.open(self, replica, self.link, lambda: replica.up and replica.life >= life)
        stream.conn, stream.epoch = action.conn, action.epoch
        self.streams[action.conn] = stream

    # ------------------------------------------------------------------------------------------------------- machine

    def handle(self, event: MachineEvent, epoch: int | None = None) -> None:
        """Let the machine handle an event and do what it says."""
        if not self.up:
            return
        actions = self.machine.handle(event, self.kernel.now)
        for action in actions:
            self._do(action, epoch)
        self._arm()

    def _do(self, action: MachineAction, epoch: int | None) -> None:
        add, now = self.history.add, self.kernel.now
        match action:
            case Dial():
                self._dial(action)
            case Send():
                if action.conn in self.streams:
                    self.net.up(self.streams[action.conn], action.frame)
            case HangUp():
                if action.conn in self.streams:
                    self.net.hang_up(self.streams[action.conn], action.cancel)
            case Persist():
                self._persist(action)
            case Prime():
                self.drafter.ids = list(action.ids)
            case Accept():
                self.drafter.ids.extend(action.ids)
            case Rollback():
                del self.drafter.ids[action.length :]
            case Propose():
                self._propose(action)
            case AddRows():
                rows = [tuple(row) for row in action.rows.tolist()]
                add(now, self.name, "rows", start=action.start, rows=rows)
            case Emit():
                stale = epoch is not None and epoch < self.opened_epoch
                add(
                    now,
                    self.name,
                    "emit",
                    start=action.start,
                    ids=action.ids,
                    labels=action.labels,
                    stale=stale,
                )
            case Relabel():
                add(now, self.name, "relabel", start=action.start, labels=action.labels)
            case Revise():
                add(now, self.name, "revise", start=action.start, removed=action.removed)
            case Finish():
                error = repr(action.error) if action.error else ""
                add(now, self.name, "finish", reason=action.reason, verified=action.verified, error=error)
                if not self.machine.finished:
                    pass  # the next turn has begun already
                elif self.turns_begun < len(self.plan.turns):
                    think = self.plan.turns[self.turns_begun].think_s
                    begun = self.turns_begun
                    self._later(now + think, lambda: self._next_turn() if begun == self.turns_begun else None)
                else:
                    self.done = True
            case Report():
                add(now, self.name, "report", state=str(action.state), note=action.note)
            case Fetch():
                pass

    def _propose(self, action: Propose) -> None:
        if action.base != len(self.drafter.ids):
            why = f"propose at {action.base}, the drafter holds {len(self.drafter.ids)}"
            self.history.add(self.kernel.now, self.name, "broken", why=why)
        proposal = self.drafter.propose(action.budget)
        took = self.plan.node_s * max(len(proposal.draft.ids), 1)
        self._later(self.kernel.now + took, lambda: self.handle(Drafted(action.base, proposal, took)))

    def _persist(self, action: Persist) -> None:
        self.journal.append(action.record)
        if action.record["kind"] == "turn":
            self.history.add(self.kernel.now, self.name, "turn", record=action.record)
        if action.barrier:
            number, life = len(self.journal), self.life

            def durable() -> None:
                if life == self.life and self.up:
                    self.durable = max(self.durable, number)
                    self.handle(Persisted(action.seq))

            self.kernel.after(self.plan.journal_s, durable)

    def network_up(self) -> None:
        """The platform reports a network."""
        if self.up and self.kernel.now >= self.paused_until:
            self.handle(NetworkChanged(True))

    def _arm(self) -> None:
        wake = self.machine.wake_at()
        if wake is None or (self.wake is not None and self.kernel.now < self.wake <= wake):
            return
        self.wake = wake

        def tick() -> None:
            if self.wake == wake:
                self.wake = None
                self.handle(Tick())

        self._later(max(wake, self.kernel.now + 1e-6), tick)
