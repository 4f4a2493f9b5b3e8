"""A session machine whose verifier is the test: actions by kind, and what the user sees."""

from __future__ import annotations

import random
from typing import Any, TypeVar

from outrider.client.drafter import Proposal
from outrider.client.events import (
    Accept,
    Begin,
    BundleReady,
    Connected,
    Dial,
    Drafted,
    Emit,
    Label,
    MachineAction,
    MachineEvent,
    Persist,
    Persisted,
    Prime,
    Propose,
    Received,
    Relabel,
    Revise,
    Rollback,
    Send,
    Tick,
)
from outrider.client.machine import SessionMachine
from outrider.client.machine_settings import MachineSettings
from outrider.client.plan import FixedPacing, Plan
from outrider.shared.anchor import EMPTY, extend
from outrider.shared.frames import (
    Anchor,
    Attach,
    Commit,
    DownFrame,
    Feature,
    Fingerprints,
    Open,
    Opened,
    RoundOutcome,
    TokenKind,
    UpFrame,
    Verdict,
)

PROMPT = (3, 14, 15, 92, 65)
PRINTS = Fingerprints(b"L" * 32, b"T" * 32)
ALL = (Feature.TREES, Feature.RUN_AHEAD, Feature.PIPELINE, Feature.STATE_ROWS)
ActionT = TypeVar("ActionT", bound=MachineAction)
FrameT = TypeVar("FrameT", bound=UpFrame)
VERIFIED = frozenset({Label.ACCEPTED, Label.RECOVERED, Label.BONUS, Label.RUN_AHEAD})


class MachineBench:
    """Drives one machine; the drafter proposes what ``drafts`` says, or counts up from the last id."""

    def __init__(
        self, plan: Plan | None = None, drafter: bool = True, restored: Any = None, **changes: Any
    ) -> None:
        settings = MachineSettings(session_id=b"s" * 16, **changes)
        self.plan = plan or Plan(4, 4)
        self.machine = SessionMachine(settings, FixedPacing(self.plan), random.Random(1), restored)
        self.now = 0.0
        self.actions: list[MachineAction] = []
        self.sequence: list[int] = []
        self.shown: list[tuple[int, Label | None]] = []
        self.slow_drafter = False
        if drafter:
            self.handle(BundleReady(b"", 0))

    def handle(self, event: MachineEvent) -> None:
        """Give the machine an event; persists and proposals are answered at once."""
        for action in self.machine.handle(event, self.now):
            self.actions.append(action)
            self._do(action)

    def _do(self, action: MachineAction) -> None:
        match action:
            case Persist():
                if action.barrier:
                    self.handle(Persisted(action.seq))
            case Prime():
                self.sequence = list(action.ids)
            case Accept():
                self.sequence.extend(action.ids)
            case Rollback():
                del self.sequence[action.length :]
            case Propose():
                if not self.slow_drafter:
                    self.draft(action)
            case Emit():
                self._pad(action.start)
                self.shown += list(zip(action.ids, action.labels, strict=True))
            case Relabel():
                for position, label in enumerate(action.labels, action.start):
                    self.shown[position] = (self.shown[position][0], label)
            case Revise():
                if action.start + action.removed != len(self.shown):
                    raise ValueError("revised text is not the end of what is shown")
                del self.shown[action.start :]
            case _:
                pass

    def _pad(self, start: int) -> None:
        given = self.machine.sequence.ids
        while len(self.shown) < start:
            self.shown.append((given[len(self.shown)], None))

    def draft(self, action: Propose) -> None:
        """Answer a proposal: ids that count up from the sequence's last one."""
        if action.base != len(self.sequence):
            raise ValueError("the drafter holds another text")
        last = self.sequence[-1]
        ids = [(last + n + 1) % 97 for n in range(action.budget.max_depth)]
        self.handle(Drafted(action.base, Proposal.chain(ids, [-0.1] * len(ids))))

    # ------------------------------------------------------------------------------------------------- conveniences

    def begin(self, **changes: Any) -> None:
        """A turn after the prompt."""
        values: dict[str, Any] = {"keep": 0, "append_ids": PROMPT, "max_new": 100, "stop_ids": (0,)}
        self.handle(Begin(**{**values, **changes}))

    def attach(self, attach: Attach = Attach.NEW, committed: Anchor | None = None, **changes: Any) -> Open:
        """Connect the attempt under way and answer its Open."""
        dial = self.take(Dial)[-1]
        self.handle(Connected(dial.conn))
        opened = self.frame(Open)
        anchor = self.machine.sequence.anchor if committed is None else committed
        answer = Opened(dial.epoch, attach, anchor, fingerprints=PRINTS, features=ALL)
        for name, value in changes.items():
            object.__setattr__(answer, name, value)
        self.down(answer, dial.conn)
        return opened

    def down(self, frame: DownFrame, conn: int | None = None) -> None:
        """A frame of the verifier, on the newest connection unless told otherwise."""
        number = conn if conn is not None else max(self._numbers())
        self.handle(Received(number, frame))

    def _numbers(self) -> list[int]:
        machine = self.machine
        return [conn.number for conn in (machine.active, machine.candidate) if conn is not None]

    def commit(self, *ids: int, kind: TokenKind = TokenKind.RUN_AHEAD, turn: int = 1) -> Commit:
        """A commit that follows the present text."""
        return Commit(turn, len(self.machine.sequence), ids, (kind,) * len(ids))

    def take(self, kind: type[ActionT]) -> list[ActionT]:
        """Actions of one kind so far, which are then forgotten."""
        found: list[ActionT] = [action for action in self.actions if isinstance(action, kind)]
        self.actions = [action for action in self.actions if not isinstance(action, kind)]
        return found

    def frames(self, kind: type[FrameT]) -> list[FrameT]:
        """Frames of one kind sent so far, which are then forgotten."""
        found: list[FrameT] = [
            a.frame for a in self.actions if isinstance(a, Send) and isinstance(a.frame, kind)
        ]
        self.actions = [a for a in self.actions if not (isinstance(a, Send) and isinstance(a.frame, kind))]
        return found

    def frame(self, kind: type[FrameT]) -> FrameT:
        """The only frame of a kind sent."""
        found = self.frames(kind)
        if len(found) != 1:
            raise ValueError(f"{len(found)} frames of {kind.__name__}")
        return found[0]

    def wait(self, seconds: float) -> None:
        """Let time pass, ticking whenever the machine asks for it."""
        end = self.now + seconds
        while (wake := self.machine.wake_at()) is not None and wake <= end:
            self.now = max(self.now + 1e-6, wake)
            self.handle(Tick())
        self.now = end
        self.handle(Tick())

    def text(self, *labels: Label) -> tuple[int, ...]:
        """Generated ids on display, of these labels (of all when none is named)."""
        return tuple(i for i, label in self.shown if label is not None and (not labels or label in labels))


def online(plan: Plan | None = None, **changes: Any) -> MachineBench:
    """A machine with a first draft of four tokens under way: 66, 67, 68, 69."""
    bench = MachineBench(plan, **changes)
    bench.begin()
    bench.attach()
    return bench


def verified(number: int, start: int, ids: tuple[int, ...], accepted: int, turn: int = 1) -> Verdict:
    """A verdict whose last token is the target's own."""
    kinds = (TokenKind.ACCEPTED,) * accepted + (TokenKind.RECOVERED,) * (len(ids) - accepted)
    return Verdict(number, RoundOutcome.VERIFIED, Commit(turn, start, ids, kinds), accepted=accepted)


def anchor(*ids: int) -> Anchor:
    """The anchor of a text."""
    return extend(EMPTY, ids)
