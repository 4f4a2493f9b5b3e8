"""The dials of a session machine."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum

from outrider.shared.frames import Feature, Fingerprints, Limits, RowEncoding


class Offline(StrEnum):
    """What the device does without a link."""

    AUTO = "auto"
    """Draft on alone, reconcile later."""
    NEVER = "never"
    """Wait."""
    ALWAYS = "always"
    """Never connect."""


class Reconcile(StrEnum):
    """What becomes of text drafted alone once the link is back."""

    REVISE = "revise"
    """The verifier checks it; what it would not have said is replaced."""
    KEEP = "keep"
    """It stays, labelled, and the verifier goes on after it."""
    PAUSE = "pause"
    """None is shown in the first place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSettings:
    """Dials of a session; times in seconds."""

    session_id: bytes
    """16 random bytes."""
    offline: Offline = Offline.AUTO
    reconcile: Reconcile = Reconcile.REVISE
    journal: bool = True
    """Whether records are written; without, nothing is persisted and nothing waited for."""
    fingerprints: Fingerprints = Fingerprints()
    features: tuple[Feature, ...] = (
        Feature.TREES,
        Feature.RUN_AHEAD,
        Feature.PIPELINE,
        Feature.STATE_ROWS,
    )
    """What is asked of the verifier."""
    row_encoding: RowEncoding = RowEncoding.INT8
    bulk_window_bytes: int = 32_768
    vocabulary: int = 2**32
    offline_depth: int = 8
    """Tokens a proposal while drafting alone."""
    max_tail_tokens: int = 2048
    """Tokens drafted beyond the committed text, at most."""
    assumed_limits: Limits = Limits()
    """The verifier's limits before it has told them (its Describe may have)."""
    fetch_bundle: bool = True
    """Ask for a bundle when the verifier sends no rows for the present one."""
    first_soft_s: float = 1.0
    connect_s: float = 5.0
    """Longest wait from dialling to the answer to Open."""
    stall_s: float = 60.0
    """Longest wait for text that is owed, whatever other signs of life come."""
    linger_s: float = 30.0
    """How long a stream stays after its turn."""
    steer_s: float = 1.0
    steer_tokens: int = 16
    """A window is sent again after this much time or this many tokens of run-ahead."""
    draft_secret: bytes = field(default_factory=lambda: os.urandom(32), repr=False)
    """What drawn drafts are drawn with; a verifier that knew it could choose what it judges."""
    max_violations: int = 3
    """Protocol violations after which the verifier is given up."""
