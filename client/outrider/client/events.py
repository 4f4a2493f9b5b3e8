"""What goes into and comes out of the device's session machine (sans-I/O: ``machine.handle(event, now) -> actions``).

``now`` is monotonic seconds. A *conn* numbers one attempt to attach: one connection, one Decode stream, one epoch.
The machine owns committed ids and the tail; the adapter (``session.py``) owns sockets, files, the drafter and clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from outrider.client.drafter import Budget, Confidence, Proposal
from outrider.shared.errors import OutriderError
from outrider.shared.frames import DownFrame, Rule, RuleReport, UpFrame
from outrider.shared.sampling import LogProbs, Sampling


class Label(StrEnum):
    """What a shown token is: the first four are the target's own, JUDGED ones it let through, the last two it has not
    seen.
    """

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"
    RUN_AHEAD = "run-ahead"
    JUDGED = "judged"
    PROVISIONAL = "provisional"
    KEPT = "kept"


class LinkState(StrEnum):
    """What the device knows of its link."""

    CONNECTING = "connecting"
    ONLINE = "online"
    LATE = "late"
    OFFLINE = "offline"


# ---------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Begin:
    """Start a turn: sequence = first ``keep`` committed ids + ``append_ids``; then at most ``max_new`` tokens."""

    keep: int
    append_ids: tuple[int, ...]
    max_new: int
    stop_ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    rule: Rule = field(default_factory=Rule)
    log_probs: bool = False
    """Ask for the log-probabilities of committed tokens."""
    stops: tuple[str, ...] = ()
    """Stop strings, for the journal: the caller looks for them."""


@dataclass(frozen=True, slots=True)
class StopAt:
    """The text ends at absolute token ``length`` (stop string or the user's wish); nothing after it is shown."""

    length: int
    reason: str
    amends: bool = False
    """The turn has just ended, in the same commit, at or beyond this length: it ends here instead."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """The drafter's answer to Propose; an empty draft means that it has nothing to say."""

    base: int
    proposal: Proposal
    elapsed_s: float = 0.0
    passes: int = 0
    """Runs of the drafter's model in that time; 0 = not counted: one for each level of the draft."""
    fed: int = 0
    """Nodes that went through it."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The stream of ``conn`` is open and can be written to."""

    conn: int


@dataclass(frozen=True, slots=True)
class Received:
    """A frame of ``conn``, schema-checked."""

    conn: int
    frame: DownFrame


@dataclass(frozen=True, slots=True)
class Closed:
    """``conn`` ended; ``error`` None = a clean end. ``outrider.shared.errors.surfaces`` tells which end the turn."""

    conn: int
    error: OutriderError | None


@dataclass(frozen=True, slots=True)
class Persisted:
    """The record with this number is durable."""

    seq: int


@dataclass(frozen=True, slots=True)
class PersistFailed:
    """The journal cannot be written; the session goes on without it and says so."""

    seq: int
    why: str


@dataclass(frozen=True, slots=True)
class BundleReady:
    """A drafter with this bundle digest (empty: none needed) is loaded; ``planes`` many row planes are read."""

    sha256: bytes
    planes: int
    confidence: Confidence = Confidence()


@dataclass(frozen=True, slots=True)
class NetworkChanged:
    """The platform says that the network came or went."""

    up: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed (``wake_at``)."""


MachineEvent = (
    Begin
    | StopAt
    | Drafted
    | Connected
    | Received
    | Closed
    | Persisted
    | PersistFailed
    | BundleReady
    | NetworkChanged
    | Tick
)

# --------------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a connection of its own and a Decode stream; answer Connected or Closed. The epoch is durable by then."""

    conn: int
    epoch: int
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """Write a frame."""

    conn: int
    frame: UpFrame


@dataclass(frozen=True, slots=True)
class HangUp:
    """Half-close (detach, the KV stays) or cancel at once."""

    conn: int
    cancel: bool


@dataclass(frozen=True, slots=True)
class Persist:
    """Append a record (see ``journal.py``); with ``barrier`` it must be durable, and Persisted is awaited."""

    seq: int
    record: dict[str, object]
    barrier: bool


@dataclass(frozen=True, slots=True)
class Prime:
    """drafter.begin(ids)."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Propose:
    """drafter.propose(budget) at sequence length ``base``; at most one is under way."""

    base: int
    budget: Budget


@dataclass(frozen=True, slots=True)
class Accept:
    """drafter.accept(ids)."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rollback:
    """drafter.rollback(length)."""

    length: int


@dataclass(frozen=True, slots=True)
class AddRows:
    """drafter.add_rows(plane, start, rows); ``rows`` is decoded and checked, float32 [count, width]."""

    plane: int
    start: int
    rows: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Emit:
    """Show ids at positions start …, all with one label each."""

    start: int
    ids: tuple[int, ...]
    labels: tuple[Label, ...]
    log_probs: tuple[LogProbs | None, ...] = ()
    """One per id where the turn asked for them and the target has decided."""


@dataclass(frozen=True, slots=True)
class Relabel:
    """Tokens already shown at start … are now known to be right (provisional → accepted)."""

    start: int
    labels: tuple[Label, ...]
    log_probs: tuple[LogProbs, ...] = ()


@dataclass(frozen=True, slots=True)
class Revise:
    """Take back ``removed`` tokens shown from position ``start`` on; what replaces them comes as Emit."""

    start: int
    removed: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The turn is over: "stop", "length", "context", "cancelled", "offline" (ended unverified) or "error"."""

    reason: str
    verified: bool
    error: OutriderError | None = None


@dataclass(frozen=True, slots=True)
class Audited:
    """The verifier's report on the turn's rule; comes after `Finish` where the text ended by itself."""

    report: RuleReport


@dataclass(frozen=True, slots=True)
class Report:
    """The link state, or something the user should know."""

    state: LinkState
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch this bundle in the background, on a connection of its own; empty = the one that Describe recommends."""

    sha256: bytes


MachineAction = (
    Dial
    | Send
    | HangUp
    | Persist
    | Prime
    | Propose
    | Accept
    | Rollback
    | AddRows
    | Emit
    | Relabel
    | Revise
    | Finish
    | Audited
    | Report
    | Fetch
)
