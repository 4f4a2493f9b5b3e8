"""Every message of the wire as a frozen dataclass: what the sans-I/O cores speak.

Field names, units and meanings are those of ``proto/outrider/v1/verifier.proto``, the first file to read.
Protobuf exists only at the edge: ``outrider.shared.wire`` converts and checks. Ids and parents are tuples of int
here and packed little-endian bytes there. Optional messages are ``None`` when absent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.shared.draft import Draft
from outrider.shared.enums import Attach as Attach
from outrider.shared.enums import FailureReason as FailureReason
from outrider.shared.enums import Feature as Feature
from outrider.shared.enums import FinishReason as FinishReason
from outrider.shared.enums import RoundOutcome as RoundOutcome
from outrider.shared.enums import RowEncoding as RowEncoding
from outrider.shared.enums import TokenKind as TokenKind
from outrider.shared.sampling import LogProbs, Sampling

PROTOCOL = 2
"""Minor version of the wire spoken here; 2 brought the warps beyond top_p, and log-probabilities."""

UNLIMITED = 2**32 - 1
"""``Window.run_ahead_until`` without a limit."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A prefix of the session's sequence: its length in tokens and the rolling hash of its ids."""

    length: int
    hash: int


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """SHA-256 digests (32 bytes each, or empty): law and tokenizer refuse, bundle never does."""

    law: bytes = b""
    tokenizer: bytes = b""
    bundle: bytes = b""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server accepts; counts are tokens, nodes or rounds, times are milliseconds."""

    max_context_tokens: int = 8192
    max_tree_nodes: int = 64
    max_tree_depth: int = 16
    max_chain_tokens: int = 512
    max_rounds_in_flight: int = 4
    max_run_ahead_tokens: int = 256
    max_inline_context_bytes: int = 8192
    kv_idle_ttl_ms: int = 120_000
    log_idle_ttl_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Measured cost of one target pass, for pacing."""

    widths: tuple[int, ...] = ()
    costs_us: tuple[int, ...] = ()
    context_tokens: int = 0
    prefill_us_per_token: int = 0


@dataclass(frozen=True, slots=True)
class Numerics:
    """How far "identical to the target alone" holds, measured at start-up."""

    width_invariant: bool = False
    near_tie_gap: float = 0.0


@dataclass(frozen=True, slots=True)
class RowPlane:
    """Layout of one kind of state row: ``width`` values in ``parts`` equal parts, each with its own int8 scale."""

    plane: int
    width: int
    encoding: RowEncoding
    content: str
    parts: int = 1


# ------------------------------------------------------------------------------------------------------- describe


@dataclass(frozen=True, slots=True)
class BundleInfo:
    """A drafter bundle whose state rows the server can make."""

    sha256: bytes
    size_bytes: int
    drafter_kind: str
    draft_vocabulary_size: int = 0
    training_step: int = 0
    planes: tuple[RowPlane, ...] = ()


@dataclass(frozen=True, slots=True)
class Description:
    """The answer to Describe; ``fingerprints.bundle`` is the recommended one."""

    fingerprints: Fingerprints
    vocabulary_size: int
    target_name: str = ""
    dtype: str = "float32"
    stop_ids: tuple[int, ...] = ()
    rules: tuple[str, ...] = ()
    features: tuple[Feature, ...] = ()
    limits: Limits = field(default_factory=Limits)
    bundles: tuple[BundleInfo, ...] = ()
    numerics: Numerics = field(default_factory=Numerics)
    protocol_min: int = 1
    protocol_max: int = PROTOCOL


# ------------------------------------------------------------------------------------------------------------- up


@dataclass(frozen=True, slots=True)
class Window:
    """What the device holds and what the server may do without hearing more; the latest received counts."""

    seen: Anchor
    run_ahead_until: int = 0
    bulk_acked_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """How verdicts are reached; parameters belong to lossy rules only."""

    name: str = "greedy"
    parameters: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """One rewrite of the sequence's end by the device, and the generation that follows."""

    turn: int
    keep: Anchor
    append_ids: tuple[int, ...]
    generated_from: int
    max_length: int
    stop_ids: tuple[int, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    rule: Rule = field(default_factory=Rule)
    log_probs: bool = False
    """Commits say how likely their tokens were."""

    @property
    def protocol(self) -> int:
        """Lowest minor version in which a verifier understands all of this turn."""
        return 1 if self.sampling.plain and not self.log_probs else 2


@dataclass(frozen=True, slots=True)
class RowsWanted:
    """Which rows to send; those in [held_from, held_until) are on the device already."""

    first: int = 0
    held_from: int = 0
    held_until: int = 0
    encoding: RowEncoding = RowEncoding.INT8
    bulk_window_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DraftFrame:
    """One round's draft. ``base`` None means ``window.seen``; an empty draft asks for one step."""

    round: int
    turn: int
    window: Window
    draft: Draft
    base: Anchor | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """A piece of the ids the server asked for."""

    start: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """Attach, new or again; self-contained."""

    session_id: bytes
    epoch: int
    have: Anchor
    turn: Turn
    window: Window
    protocol_min: int = 1
    protocol_max: int = PROTOCOL
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    features: tuple[Feature, ...] = ()
    context: Context | None = None
    draft: DraftFrame | None = None
    rows: RowsWanted | None = None
    rejoin: bool = False


@dataclass(frozen=True, slots=True)
class Steer:
    """A window without a draft."""

    turn: int
    window: Window


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the turn."""

    turn: int


@dataclass(frozen=True, slots=True)
class Close:
    """Leave; ``forget`` drops KV, log and ids now."""

    forget: bool = False


@dataclass(frozen=True, slots=True)
class Ping:
    """Application-level sign of life, answered by Pong."""

    nonce: int


UpFrame = Open | DraftFrame | Steer | Turn | Context | Cancel | Close | Ping

# ----------------------------------------------------------------------------------------------------------- down


@dataclass(frozen=True, slots=True)
class Opened:
    """The session is admitted; sent before prefill."""

    epoch: int
    attach: Attach
    committed: Anchor
    protocol: int = PROTOCOL
    context_from: int = 0
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    features: tuple[Feature, ...] = ()
    limits: Limits = field(default_factory=Limits)
    planes: tuple[RowPlane, ...] = ()
    cost: CostCurve = field(default_factory=CostCurve)
    prefill_estimate_us: int = 0
    replica: bytes = b""
    numerics: Numerics = field(default_factory=Numerics)


@dataclass(frozen=True, slots=True)
class Rows:
    """State rows of ``count`` consecutive tokens, encoded as agreed for the plane."""

    turn: int
    plane: int
    start: int
    count: int
    data: bytes
    bulk: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens at positions start … start+n-1 of ``turn``."""

    turn: int
    start: int
    ids: tuple[int, ...]
    kinds: tuple[TokenKind, ...]
    rows: tuple[Rows, ...] = ()
    near_ties: int = 0
    log_probs: tuple[LogProbs, ...] = ()
    """One per id in turns that ask for them, otherwise none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The one answer to a round, in round order."""

    round: int
    outcome: RoundOutcome
    commit: Commit | None = None
    trimmed: int = 0
    accepted: int = 0
    queue_us: int = 0
    compute_us: int = 0
    retry_after_ms: int = 0
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class RuleReport:
    """By which rule a turn was judged, and what that did to the law.

    The sums are over the drafted tokens that this verifier tested by laws; 0 where the rule compares none. Each is an
    expectation given the text before the token: of rejecting (`rejection`), of the total variation between the law of
    what is emitted and the target's (`loss`), and between target and draft law (`tv`). The judge's are seen at the
    drafted tokens and right on average.
    """

    rule: Rule
    """With every parameter it has, defaults included."""
    positions: int = 0
    rejection: float = 0.0
    loss: float = 0.0
    tv: float = 0.0
    client_laws: bool = False
    """Tokens were accepted by draft laws that the client alone vouches for: it could have steered the text."""

    @property
    def gap(self) -> float:
        """rejection + loss - tv: 0 for lossless rules and the best lossy ones, above 0 for others."""
        return self.rejection + self.loss - self.tv


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The turn is over; part of the log, sent again on resume."""

    turn: int
    reason: FinishReason
    end: Anchor
    report: RuleReport | None = None
    """None from a verifier that does not report."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Sign of life while nothing can be committed."""

    turn: int
    prefilled: int
    remaining_estimate_us: int = 0


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to Ping; nonce 0 is unasked."""

    nonce: int
    hold_us: int = 0


@dataclass(frozen=True, slots=True)
class Drain:
    """This server is leaving; attach elsewhere on a new connection after uniform(0, reconnect_after_ms)."""

    deadline_ms: int
    reconnect_after_ms: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Last frame of a failed stream."""

    reason: FailureReason
    detail: str = ""
    committed: Anchor | None = None
    retry_after_ms: int = 0
    last_epoch: int = 0
    field: str = ""
    remedy: str = ""


DownFrame = Opened | Verdict | Commit | Rows | TurnEnd | Progress | Pong | Drain | Failure
