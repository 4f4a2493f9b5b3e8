"""The numbered choices of the wire, as in ``verifier.proto``; `outrider.shared.frames` has them all by name as well."""

from __future__ import annotations

from enum import IntEnum


class Feature(IntEnum):
    """What both ends must have agreed on before it may be used."""

    TREES = 1
    RUN_AHEAD = 2
    PIPELINE = 3
    STATE_ROWS = 4
    DRAFT_LAWS = 5
    PADDING = 6


class Attach(IntEnum):
    """How a stream found its session."""

    NEW = 1
    LIVE = 2
    REBUILD = 3
    NEED_CONTEXT = 4


class RowEncoding(IntEnum):
    """How the values of a state row travel."""

    F32 = 1
    F16 = 2
    INT8 = 3


class TokenKind(IntEnum):
    """Why a committed token is there."""

    ACCEPTED = 1
    RECOVERED = 2
    BONUS = 3
    RUN_AHEAD = 4
    JUDGED = 5


class RoundOutcome(IntEnum):
    """What became of a draft."""

    VERIFIED = 1
    SUPERSEDED = 2
    BUSY = 3
    ENDED = 4


class FinishReason(IntEnum):
    """Why a turn ended."""

    STOP_ID = 1
    LENGTH = 2
    CONTEXT = 3
    CANCELLED = 4


class FailureReason(IntEnum):
    """Why a stream ended; the status of each stands in ``outrider.shared.errors``."""

    FENCED = 1
    FINGERPRINT = 2
    PROTOCOL = 3
    DIVERGED = 4
    ROUND_CONFLICT = 5
    ROUND_GAP = 6
    INVALID = 7
    OUT_OF_RANGE = 8
    OVERLOADED = 9
    DRAINING = 10
    ENGINE = 11
    IDLE = 12
