"""A session table over the toy engine, run until it is idle: what the tests of the table are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from outrider.cloud.events import (
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
from outrider.netsim.world.toy import PLANE, STOP_ID, VOCABULARY, ToyEngine, ToyTarget
from outrider.shared.anchor import EMPTY, extend
from outrider.shared.draft import Draft
from outrider.shared.frames import (
    UNLIMITED,
    Anchor,
    Commit,
    DownFrame,
    DraftFrame,
    Failure,
    Feature,
    Fingerprints,
    Open,
    RowsWanted,
    Rule,
    Turn,
    UpFrame,
    Verdict,
    Window,
)
from outrider.shared.sampling import Sampling

PROMPT = (3, 14, 15, 92, 65)
PRINTS = Fingerprints(b"L" * 32, b"T" * 32, b"B" * 32)
FEATURES = (Feature.TREES, Feature.RUN_AHEAD, Feature.PIPELINE, Feature.STATE_ROWS)
SERVED = Served(
    vocabulary=VOCABULARY,
    fingerprints=PRINTS,
    stop_ids=frozenset({STOP_ID}),
    features=FEATURES,
    sources=(RowSource(PRINTS.bundle, (PLANE,)),),
)
FrameT = TypeVar("FrameT", bound=DownFrame)
__all__ = ["UNLIMITED"]


class Bench:
    """One table, one engine, one clock; frames by stream in the order they were sent."""

    def __init__(self, served: Served = SERVED, settings: TableSettings | None = None, key: int = 11) -> None:
        self.target = ToyTarget(key)
        self.engine = ToyEngine(self.target)
        self.table = SessionTable(served, settings)
        self.now = 0.0
        self.sent: dict[int, list[DownFrame]] = {}
        self.ended: dict[int, EndStream] = {}
        self.steps: list[RunStep] = []
        self.evicted: list[int] = []
        self.held: list[TableAction] = []
        self.hold = False
        """Leave passes undone, to look at what happens meanwhile."""

    def handle(self, event: TableEvent) -> None:
        """Give the table an event and do what it says, until it is idle."""
        self.do(self.table.handle(event, self.now))

    def do(self, actions: list[TableAction]) -> None:
        """Do what a table said."""
        for action in actions:
            match action:
                case SendFrame():
                    self.sent.setdefault(action.stream, []).append(action.frame)
                case EndStream():
                    self.ended[action.stream] = action
                case TruncateKv():
                    self.engine.truncate(action.key, action.length)
                case EvictKv():
                    self.engine.evict(action.key)
                    self.evicted.append(action.key)
                case RunStep():
                    self.steps.append(action)
                    self._run(action)
                case RunRows():
                    self._run(action)
                case _:
                    pass

    def _run(self, action: RunStep | RunRows) -> None:
        if self.hold:
            self.held.append(action)
        elif isinstance(action, RunStep):
            self.handle(StepDone(self.engine.run(action.works)))
        else:
            self.handle(RowsDone(action.work, self.engine.rows(action.work)))

    def release(self) -> None:
        """Do the passes held back, and go on without holding."""
        self.hold, held, self.held = False, self.held, []
        self.do(held)

    def open(self, frame: Open, stream: int = 1, principal: str = "p") -> None:
        """A stream whose first frame is this."""
        self.handle(StreamOpened(stream, principal, frame))

    def up(self, frame: UpFrame, stream: int = 1) -> None:
        """A later frame."""
        self.handle(FrameReceived(stream, frame))

    def lose(self, stream: int = 1) -> None:
        """The stream is gone."""
        self.handle(StreamLost(stream))

    def wait(self, seconds: float) -> None:
        """Let time pass, ticking whenever the table asks for it."""
        end = self.now + seconds
        while (wake := self.table.wake_at()) is not None and wake <= end:
            self.now = max(self.now, wake)
            self.handle(Tick())
        self.now = end
        self.handle(Tick())

    def take(self, kind: type[FrameT], stream: int = 1) -> list[FrameT]:
        """The frames of one kind sent so far, which are then forgotten."""
        frames = self.sent.get(stream, [])
        self.sent[stream] = [frame for frame in frames if not isinstance(frame, kind)]
        return [frame for frame in frames if isinstance(frame, kind)]

    def one(self, kind: type[FrameT], stream: int = 1) -> FrameT:
        """The only frame of a kind."""
        frames = self.take(kind, stream)
        if len(frames) != 1:
            raise ValueError(f"{len(frames)} frames of {kind.__name__}")
        return frames[0]

    def sent_commits(self, stream: int = 1) -> list[Commit]:
        """All Commit frames so far, not forgotten."""
        return [frame for frame in self.sent.get(stream, []) if isinstance(frame, Commit)]

    def failure(self, stream: int = 1) -> Failure:
        """The failure that ended a stream, whose status is of the same reason."""
        failure = self.one(Failure, stream)
        if self.ended[stream].reason is not failure.reason:
            raise ValueError("status and frame disagree")
        return failure

    def alone(self, ids: tuple[int, ...], count: int, sampling: Sampling | None = None) -> tuple[int, ...]:
        """What the target alone says after ``ids``."""
        text = list(ids)
        for _ in range(count):
            text.append(self.target.next_id(text, sampling or Sampling()))
        return tuple(text[len(ids) :])


def turn(number: int = 1, keep: Anchor = EMPTY, ids: tuple[int, ...] = PROMPT, **changes: Any) -> Turn:
    """A turn over the toy vocabulary that does not end by itself soon (no stop id is in the vocabulary)."""
    start = keep.length + len(ids)
    made = Turn(number, keep, ids, start, start + 100, stop_ids=(VOCABULARY - 1 + 10**6,))
    made = replace(made, **changes)
    return made if made.sampling.greedy or "rule" in changes else replace(made, rule=Rule("coupled"))


def opening(epoch: int = 1, **changes: Any) -> Open:
    """An Open of a new session; window and have follow from what is changed."""
    made = Open(b"s" * 16, epoch, EMPTY, turn(), Window(EMPTY), fingerprints=PRINTS, features=FEATURES)
    made = replace(made, **changes)
    return (
        made if made.window.seen == made.have else replace(made, window=replace(made.window, seen=made.have))
    )


def draft(number: int, text: tuple[int, ...], ids: tuple[int, ...] = (), **changes: Any) -> DraftFrame:
    """A chain after ``text``, all of which the device has."""
    made = DraftFrame(number, 1, Window(extend(EMPTY, text)), Draft.chain(ids))
    return replace(made, **changes)


def ids_of(frames: list[Verdict] | list[Commit]) -> tuple[int, ...]:
    """The ids that verdicts or commits carry, in order."""
    commits = [frame.commit if isinstance(frame, Verdict) else frame for frame in frames]
    return tuple(token_id for commit in commits if commit is not None for token_id in commit.ids)


ROWS = RowsWanted(encoding=PLANE.encoding)
