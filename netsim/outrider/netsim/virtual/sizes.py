"""Bytes of every message of a round, from the real encoders: what gRPC hands to the socket.

A message costs its protobuf bytes, gRPC's prefix and HTTP/2's frame header. Figures of runs count protobuf bytes, as
the device's own statistics do; the link carries all of it.
"""

from __future__ import annotations

from functools import lru_cache

from outrider.shared.draft import Draft
from outrider.shared.frames import (
    Anchor,
    Attach,
    Commit,
    CostCurve,
    DraftFrame,
    Fingerprints,
    Open,
    Opened,
    RoundOutcome,
    Rows,
    RowsWanted,
    Steer,
    TokenKind,
    Turn,
    Verdict,
    Window,
)
from outrider.shared.wire import down_to_wire, up_to_wire

FRAMING = 14
"""gRPC's length prefix (5) and HTTP/2's frame header (9): on the link with every message."""
CALL_UP, CALL_DOWN = 90, 60
"""Header frames of one unary call on a warm connection, HPACK at work (assumed)."""
FIRST_UP = 350
"""HTTP/2 preface, settings and uncompressed headers of a stream's beginning (assumed)."""

_HASH, _ID = 0x9E3779B97F4A7C15, 20_000
_SEEN = Window(Anchor(300, _HASH), 0, 0)


@lru_cache(maxsize=4096)
def draft_bytes(nodes: int, chain: bool) -> int:
    """A draft of so many nodes; trees carry their parents."""
    ids = (_ID,) * nodes
    draft = Draft.chain(ids) if chain else Draft(ids, tuple(node // 2 for node in range(nodes)))
    return int(up_to_wire(DraftFrame(40, 1, _SEEN, draft)).ByteSize())


@lru_cache(maxsize=4096)
def verdict_bytes(tokens: int) -> int:
    """A verdict that commits so many tokens."""
    kinds = (TokenKind.ACCEPTED,) * (tokens - 1) + (TokenKind.RECOVERED,)
    commit = Commit(1, 300, (_ID,) * tokens, kinds)
    frame = Verdict(40, RoundOutcome.VERIFIED, commit, 0, tokens - 1, 2_000, 60_000)
    return int(down_to_wire(frame).ByteSize())


@lru_cache(maxsize=4096)
def commit_bytes(tokens: int) -> int:
    """A commit of run-ahead tokens."""
    commit = Commit(1, 300, (_ID,) * tokens, (TokenKind.RUN_AHEAD,) * tokens)
    return int(down_to_wire(commit).ByteSize())


@lru_cache(maxsize=4096)
def rows_bytes(count: int, row_bytes: int) -> int:
    """State rows of so many tokens; 0 for drafters that read none."""
    if row_bytes == 0 or count == 0:
        return 0
    return int(down_to_wire(Rows(1, 0, 300, count, bytes(count * row_bytes))).ByteSize())


@lru_cache(maxsize=1024)
def open_bytes(prompt: int, drafted: int) -> int:
    """The first message of a stream: who, what is held, the turn with its prompt, and a first draft."""
    turn = Turn(1, Anchor(0, _HASH), (_ID,) * prompt, prompt, prompt + 256, (2,))
    frame = Open(
        bytes(16),
        1,
        Anchor(0, _HASH),
        turn,
        _SEEN,
        fingerprints=Fingerprints(bytes(32), bytes(32), bytes(32)),
        draft=DraftFrame(1, 1, _SEEN, Draft.chain((_ID,) * drafted)),
        rows=RowsWanted(bulk_window_bytes=32_768),
    )
    return int(up_to_wire(frame).ByteSize())


@lru_cache(maxsize=1)
def opened_bytes() -> int:
    """The verifier's answer to it."""
    curve = CostCurve((1, 8, 16, 24, 32, 48, 64), (60_000,) * 7, 128, 6_000)
    frame = Opened(
        1, Attach.NEW, Anchor(0, _HASH), cost=curve, fingerprints=Fingerprints(bytes(32), bytes(32))
    )
    return int(down_to_wire(frame).ByteSize())


@lru_cache(maxsize=1)
def steer_bytes() -> int:
    """A window without a draft."""
    return int(up_to_wire(Steer(1, Window(Anchor(300, _HASH), 556, 0))).ByteSize())
