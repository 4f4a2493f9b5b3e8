"""Tokens that the verifier decodes alone and sends as they come: plain streaming, and run-ahead."""

from __future__ import annotations

from collections.abc import Generator

from outrider.netsim.virtual.opening import NEVER, alone, deliver, find, up
from outrider.netsim.virtual.server import Reply, Request
from outrider.netsim.virtual.session import Session
from outrider.netsim.virtual.sizes import FRAMING, commit_bytes, rows_bytes, steer_bytes
from outrider.netsim.virtual.steady import run_stream, steady_of

STEER_TOKENS = 16
"""As the device: a window is sent again after so many tokens."""


def steer(session: Session, now: float) -> float:
    """Let the verifier run ahead from now on; when it knows."""
    session.counts.calls += 1
    return up(session, steer_bytes(), now)


def stream(session: Session, start: float, count: int) -> Generator[Request, Reply, float]:
    """``count`` tokens from ``start`` on. Returns when the verifier had the last one (inf: the link is gone)."""
    session.counts.bytes_up += count // STEER_TOKENS * steer_bytes()
    steady = steady_of(session)
    if steady is not None:
        ended = run_stream(session, steady, start, count)
        if ended is not None:
            return ended
    reply = yield (start, 1, count)
    session.counts.forward_s += count * session.cost.seconds(1)
    ends = reply[1:]
    taken = 0
    while taken < count:
        taken += _take(session, ends, taken)
        if session.cut_off:
            return NEVER
    return ends[-1]


def _take(session: Session, ends: Reply, taken: int) -> int:
    """Deliver the next token, or, when the stream had to be opened again, all that were decoded meanwhile."""
    link, deadlines = session.link, session.deadlines
    size = commit_bytes(1) + FRAMING
    session.counts.bytes_down += size - FRAMING
    arrival = link.send("down", size, ends[taken])
    rows = rows_bytes(1, session.row_bytes)
    if rows:
        session.counts.bytes_down += rows
        link.release("down", rows + FRAMING, ends[taken] + session.cost.rows_s)
    owed = max(session.progress_at, ends[taken] if taken == 0 else 0.0)
    writes = session.drafts
    if arrival - owed <= (deadlines.soft() if writes else deadlines.dead()):
        session.commit(arrival, 1)
        return 1
    late_at = owed + deadlines.soft()
    if arrival - owed > deadlines.dead():
        return _again(session, ends, taken, owed, late_at)
    alone(session, late_at, arrival)
    session.commit(arrival, 1)
    return 1


def _again(session: Session, ends: Reply, taken: int, owed: float, late_at: float) -> int:
    there, opened = find(session, owed, owed + session.deadlines.dead(), 0)
    if session.drafts:
        alone(session, late_at, opened)
    if opened == NEVER:
        session.cut_off = True
        return 0
    tokens = max(sum(1 for end in ends[taken:] if end <= there), 1)
    nbytes = commit_bytes(tokens)
    answered = deliver(session, nbytes, max(there, ends[taken]), opened)
    if answered == NEVER:
        if session.drafts:
            alone(session, opened, NEVER)
        session.cut_off = True
        return 0
    session.commit(max(answered, opened), tokens)
    return tokens
