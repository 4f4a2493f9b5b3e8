"""A replica: the real session table over the toy engine, on virtual time."""

from __future__ import annotations

from collections import deque

from outrider.cloud.events import (
    DrainRequested,
    EndStream,
    EvictKv,
    FrameReceived,
    RowsDone,
    RunRows,
    RunStep,
    SendFrame,
    StepDone,
    StreamLost,
    StreamOpened,
    TableAction,
    TableEvent,
    Tick,
    TruncateKv,
)
from outrider.cloud.table import SessionTable
from outrider.cloud.table_state import RowSource, Served, TableSettings
from outrider.netsim.world.history import History
from outrider.netsim.world.kernel import Kernel
from outrider.netsim.world.net import Net, Stream
from outrider.netsim.world.schedule import Schedule
from outrider.netsim.world.toy import PLANE, STOP_ID, VOCABULARY, ToyEngine, ToyTarget
from outrider.shared.errors import from_failure
from outrider.shared.frames import (
    Commit,
    CostCurve,
    DownFrame,
    Failure,
    Feature,
    Fingerprints,
    Limits,
    Numerics,
    Open,
    TurnEnd,
    UpFrame,
    Verdict,
)
from outrider.shared.wire import UpChecks

PRINTS = Fingerprints(b"L" * 32, b"T" * 32, b"B" * 32)
LIMITS = Limits(max_chain_tokens=64, max_run_ahead_tokens=24, kv_idle_ttl_ms=20_000)
PRINCIPAL = "toy"

EngineAction = RunStep | RunRows | TruncateKv | EvictKv


class Replica:
    """One verifier process; a crash forgets everything and counts up ``life``."""

    def __init__(
        self,
        number: int,
        schedule: Schedule,
        kernel: Kernel,
        net: Net,
        history: History,
        table_class: type[SessionTable],
        target: ToyTarget,
    ) -> None:
        self.name = f"replica {number}"
        self.number = number
        self.schedule = schedule
        self.kernel = kernel
        self.net = net
        self.history = history
        self.table_class = table_class
        self.target = target
        self.life = 0
        self.up = True
        self.stalled_until = 0.0
        self.shared_passes = 0
        self._boot()

    def _boot(self) -> None:
        served = Served(
            vocabulary=VOCABULARY,
            fingerprints=PRINTS,
            stop_ids=frozenset({STOP_ID}),
            limits=Limits(
                max_context_tokens=self.schedule.context,
                max_chain_tokens=LIMITS.max_chain_tokens,
                max_run_ahead_tokens=LIMITS.max_run_ahead_tokens,
                max_inline_context_bytes=self.schedule.inline_bytes,
                kv_idle_ttl_ms=LIMITS.kv_idle_ttl_ms,
            ),
            features=(Feature.TREES, Feature.RUN_AHEAD, Feature.PIPELINE, Feature.STATE_ROWS),
            sources=(RowSource(PRINTS.bundle, (PLANE,)),),
            cost=CostCurve(
                (1, 64), (round(self.schedule.pass_s * 1e6), round(self.schedule.pass_s * 1.5e6)), 64, 20
            ),
            numerics=Numerics(True, 1e-4),
            replica=self.life.to_bytes(4, "little") + self.number.to_bytes(4, "little"),
            kv_bytes_per_token=1,
            kv_budget_bytes=max(self.schedule.kv_tokens, min(self.schedule.context, 256)),
        )
        settings = TableSettings(prefill_chunk=self.schedule.prefill_chunk)
        self.table = self.table_class(served, settings)
        self.engine = ToyEngine(self.target)
        self.streams: dict[int, Stream] = {}
        self.work: deque[EngineAction] = deque()
        self.busy = False
        self.wake: float | None = None

    # ------------------------------------------------------------------------------------------------------ faults

    def crash(self, duration: float) -> None:
        """Lose everything and come back after a while."""
        if not self.up:
            return
        self.up = False
        self.life += 1
        self.shared_passes += self.engine.shared_passes
        self.history.add(self.kernel.now, self.name, "crash")
        streams, self.streams = list(self.streams.values()), {}
        for stream in streams:
            stream.server_alive = False
            self.net.cut(stream, self.net.latency_s, 0.0)

        def restart() -> None:
            self.up = True
            self._boot()
            self.history.add(self.kernel.now, self.name, "restart")

        self.kernel.after(duration, restart)

    def evict(self) -> None:
        """Memory pressure from outside: no session keeps its KV."""
        if self.up:
            for session in self.table.sessions.values():
                self.table.evict(session)
            self.handle(Tick())

    def drain(self, deadline_s: float) -> None:
        """Leave in an orderly way, then start again."""
        if self.up:
            self.handle(DrainRequested(round(deadline_s * 1000)))
            life = self.life
            self.kernel.after(deadline_s + 0.5, lambda: self.crash(0.2) if life == self.life else None)

    # ----------------------------------------------------------------------------------------------------- streams

    def received_up(self, stream: Stream, frame: UpFrame) -> None:
        """A frame of a device."""
        if not self.up:
            return
        self.history.add(self.kernel.now, self.name, "up", stream=stream.number, frame=frame)
        if isinstance(frame, Open):
            self.streams[stream.number] = stream
            self.handle(StreamOpened(stream.number, PRINCIPAL, frame))
        else:
            self.handle(FrameReceived(stream.number, frame))

    def lost(self, stream: Stream) -> None:
        """A stream has ended."""
        if self.streams.pop(stream.number, None) is not None:
            self.handle(StreamLost(stream.number))

    def up_checks(self, stream: Stream) -> UpChecks:
        """What the edge checks frames against."""
        known = self.table.streams.get(stream.number)
        return UpChecks(self.table.served.limits, VOCABULARY, known.granted if known else None)

    def handle(self, event: TableEvent) -> None:
        """Let the table handle an event and do what it says."""
        for action in self.table.handle(event, self.kernel.now):
            self._do(action)
        self._check_bounds()
        self._arm()

    def _do(self, action: TableAction) -> None:
        match action:
            case SendFrame():
                self._send(action.stream, action.frame)
            case EndStream():
                stream = self.streams.pop(action.stream, None)
                if stream is not None:
                    failure = Failure(action.reason, action.detail) if action.reason is not None else None
                    self.net.end_by_server(stream, from_failure(failure) if failure else None)
            case RunStep() | RunRows() | TruncateKv() | EvictKv():
                self.work.append(action)
                self._work()
            case _:
                pass

    def _send(self, number: int, frame: DownFrame) -> None:
        stream = self.streams.get(number)
        if stream is None:
            return
        self.history.add(self.kernel.now, self.name, "down", stream=number, frame=frame)
        commit = frame.commit if isinstance(frame, Verdict) else frame
        session = self.table.streams[number].session if number in self.table.streams else None
        if isinstance(commit, Commit) and session is not None and commit.turn == session.turn_number:
            stop = commit.start + len(commit.ids)
            log = session.log.slice(commit.start, stop)
            self.history.add(
                self.kernel.now,
                self.name,
                "committed",
                start=commit.start,
                ids=commit.ids,
                log=log,
                turn=commit.turn,
            )
        if isinstance(frame, TurnEnd) and session is not None and frame.end != session.log.anchor:
            self.history.add(self.kernel.now, self.name, "broken", why="TurnEnd is not at the log's end")
        self.net.down(stream, frame)

    # ------------------------------------------------------------------------------------------------------ engine

    def _work(self) -> None:
        """Start the next engine action; they run one after the other, in the table's order."""
        while self.work and not self.busy:
            action = self.work.popleft()
            if isinstance(action, TruncateKv):
                self.engine.truncate(action.key, action.length)
            elif isinstance(action, EvictKv):
                self.engine.evict(action.key)
            else:
                self.busy = True
                life, engine = self.life, self.engine
                start = max(self.kernel.now, self.stalled_until)
                took = self.schedule.pass_s if isinstance(action, RunStep) else 0.001

                def finish(
                    action: RunStep | RunRows = action, engine: ToyEngine = engine, life: int = life
                ) -> None:
                    if life != self.life or not self.up:
                        return
                    self.busy = False
                    if isinstance(action, RunStep):
                        self.handle(StepDone(engine.run(action.works)))
                    else:
                        self.handle(RowsDone(action.work, engine.rows(action.work)))
                    self._work()

                self.kernel.at(start + took, finish)

    def _check_bounds(self) -> None:
        for why in self.engine.broken:
            self.history.add(self.kernel.now, self.name, "broken", why=why)
        self.engine.broken.clear()
        if self.table.kv_bytes() > self.table.served.kv_budget_bytes:
            self.history.add(self.kernel.now, self.name, "broken", why="more KV than the budget")

    def _arm(self) -> None:
        wake = self.table.wake_at()
        if wake is None or (self.wake is not None and self.kernel.now < self.wake <= wake):
            return
        self.wake, life = wake, self.life

        def tick() -> None:
            if life == self.life and self.up and self.wake == wake:
                self.wake = None
                self.handle(Tick())

        self.kernel.at(max(wake, self.kernel.now + 1e-6), tick)
