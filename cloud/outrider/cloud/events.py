"""What goes into and comes out of the verifier's session table (sans-I/O: ``table.handle(event, now) -> actions``).

``now`` is monotonic seconds. A *stream* is one Decode call, numbered by the service. A *key* names a session inside
this process (an int made by the table); the engine knows keys only, never session ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from outrider.cloud.rules import Audit
from outrider.shared.draft import Draft
from outrider.shared.errors import InvalidField
from outrider.shared.frames import DownFrame, FailureReason, Open, RowEncoding, Rule, TokenKind, UpFrame
from outrider.shared.sampling import History, LogProbs, Sampling

# ----------------------------------------------------------------------------------------------------- engine work


@dataclass(frozen=True, slots=True)
class Prefill:
    """Let the target consume ``ids`` at positions start …; no logits are wanted."""

    key: int
    start: int
    ids: tuple[int, ...]
    final: bool = False
    """Keep the target's final hidden states beside the KV: the session's drafter reads them."""


@dataclass(frozen=True, slots=True)
class Verify:
    """Consume the committed ids not yet in the KV, then judge ``draft`` below the last of them.

    ``pending`` has at least one id (the last committed one) at positions start …; an empty draft is one step.
    """

    key: int
    start: int
    pending: tuple[int, ...]
    draft: Draft
    sampling: Sampling
    rule: Rule
    final: bool = False
    """As in `Prefill`."""
    history: History | None = None
    """The text up to the end of ``pending``, where the sampling's law depends on it."""
    log_probs: bool = False
    """Say how likely each committed token was."""
    stop_ids: frozenset[int] = frozenset()
    """The ids that end the turn: no judge may let them through."""
    coin_key: bytes = b""
    """Whose coins the rule throws; empty = it has none to throw, and a rule that needs some fails."""


@dataclass(frozen=True, slots=True)
class MakeRows:
    """State rows of positions start … stop-1, all of them consumed by the target already."""

    key: int
    turn: int
    start: int
    stop: int
    bulk: bool
    encoding: RowEncoding
    serial: int = 0
    """Tells two requests for the same range apart."""
    bundle: bytes = b""
    """SHA-256 of the bundle they are for: whose server half makes them."""


Work = Prefill | Verify


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The ids are in the KV."""

    key: int


@dataclass(frozen=True, slots=True)
class Verified:
    """The rule's verdict. KV afterwards: start + len(pending) + len(accepted) positions, compacted to that path.

    ``accepted`` are node indices of the draft (0-based, root to leaf); ``next_id`` is the recovered or bonus token.
    """

    key: int
    accepted: tuple[int, ...]
    next_id: int
    near_ties: int = 0
    compute_us: int = 0
    log_probs: tuple[LogProbs, ...] = ()
    """Of the accepted tokens and the next one, where they were asked for."""
    kinds: tuple[TokenKind, ...] = ()
    """The rule's kinds of these tokens; empty = as the draft tells: accepted, and recovered or bonus."""
    audit: Audit | None = None
    """What the rule did to the law, where it can tell."""


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """This session's work failed; its KV is gone, others are untouched. ``no_room``: the KV budget was the reason."""

    key: int
    why: str
    no_room: bool = False
    refused: InvalidField | None = None
    """The draft was at fault: what the rule would not judge."""


Outcome = Prefilled | Verified | WorkFailed

# ---------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """A Decode call whose first frame is a valid Open."""

    stream: int
    principal: str
    open: Open


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """A later frame of a stream, already checked for schema (``outrider.shared.wire``)."""

    stream: int
    frame: UpFrame


@dataclass(frozen=True, slots=True)
class StreamLost:
    """The stream ended or broke; the session stays (detached)."""

    stream: int


@dataclass(frozen=True, slots=True)
class StreamWritable:
    """Bytes still queued towards the device; above the limit run-ahead and bulk rows pause."""

    stream: int
    queued_bytes: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """The outcomes of the last RunStep, in its order."""

    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class RowsDone:
    """Encoded rows, one bytes object per plane in plane order; empty when they could not be made."""

    work: MakeRows
    planes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Stop admitting; tell open streams."""

    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed (``wake_at``)."""


TableEvent = (
    StreamOpened | FrameReceived | StreamLost | StreamWritable | StepDone | RowsDone | DrainRequested | Tick
)

# --------------------------------------------------------------------------------------------------------- actions


class Priority(IntEnum):
    """Writer order within one stream, lowest first."""

    URGENT = 0
    COMMIT = 1
    SIGN = 2
    BULK = 3


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Write a frame to a stream."""

    stream: int
    frame: DownFrame
    priority: Priority


@dataclass(frozen=True, slots=True)
class EndStream:
    """End the stream after what is queued; None = a clean end, else the status of that reason."""

    stream: int
    reason: FailureReason | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RunStep:
    """One packed target pass. At most one is under way; answered by StepDone."""

    works: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class RunRows:
    """Make state rows, in the engine's order, outside the verdict's path. Answered by RowsDone."""

    work: MakeRows


@dataclass(frozen=True, slots=True)
class TruncateKv:
    """The KV of ``key`` keeps its first ``length`` positions."""

    key: int
    length: int


@dataclass(frozen=True, slots=True)
class EvictKv:
    """The KV of ``key`` is dropped; its ids stay in the table."""

    key: int


@dataclass(frozen=True, slots=True)
class Count:
    """Add ``value`` to a counter or observe it, by metric name."""

    metric: str
    value: float = 1.0
    labels: tuple[tuple[str, str], ...] = ()


TableAction = SendFrame | EndStream | RunStep | RunRows | TruncateKv | EvictKv | Count
