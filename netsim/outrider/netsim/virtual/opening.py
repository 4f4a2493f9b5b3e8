"""What every mode needs besides its rounds: opening a stream, finding the link again, writing alone."""

from __future__ import annotations

import math
from collections.abc import Generator

from outrider.netsim.virtual.server import Reply, Request
from outrider.netsim.virtual.session import Session
from outrider.netsim.virtual.sizes import (
    FIRST_UP,
    FRAMING,
    open_bytes,
    opened_bytes,
    rows_bytes,
    verdict_bytes,
)

CONNECT_S = 5.0
"""As the device: the longest wait from dialling to the answer to Open."""
OFFLINE_DEPTH = 8
"""As the device: tokens a proposal while it writes alone."""
NEVER = math.inf


def up(session: Session, nbytes: int, now: float) -> float:
    """Send a message of the device; when the verifier has it."""
    session.counts.bytes_up += nbytes
    return session.link.up.send(nbytes + FRAMING, now)


def down(session: Session, nbytes: int, now: float) -> float:
    """Send a message of the verifier; when the device has it."""
    session.counts.bytes_down += nbytes
    return session.link.down.send(nbytes + FRAMING, now)


def send_rows(session: Session, count: int, now: float) -> None:
    """State rows follow a verdict; nothing waits for them but the link."""
    nbytes = rows_bytes(count, session.row_bytes)
    if nbytes:
        session.counts.bytes_down += nbytes
        session.link.down.release(nbytes + FRAMING, now + session.cost.rows_s)


def dial(session: Session, now: float, drafted: int) -> tuple[float, float, float]:
    """Handshake and Open: when Open is sent, when the verifier has it, and when the device has its answer."""
    ready = session.link.connect(now)
    if ready == NEVER:
        return NEVER, NEVER, NEVER
    session.counts.calls += 1
    size = open_bytes(session.answer.prompt, drafted)
    session.counts.bytes_up += size
    there = session.link.up.send(size + FRAMING + FIRST_UP, ready)
    if there == NEVER:
        return NEVER, NEVER, NEVER
    return ready, there, down(session, opened_bytes(), there)


def begin(session: Session) -> Generator[Request, Reply, float]:
    """The stream's beginning: dial, prefill. Returns when the first pass may begin; inf if there is no link."""
    if session.journal is not None:
        session.journal.began(session.now)
    ready, there, opened = dial(session, session.now, 0)
    soft_at = session.now + session.deadlines.first_s
    if opened == NEVER and session.link.told_s < NEVER:  # it broke, and another one may not
        there, opened = find(session, session.now, session.now + CONNECT_S, 0)
        ready = there
    if session.drafts and opened > soft_at:
        alone(session, soft_at, opened)
    if opened == NEVER:
        session.cut_off = True
        return NEVER
    session.deadlines.sample(opened - ready, 0, 0)
    session.now = session.progress_at = opened
    prompt = session.answer.prompt - 1
    if prompt < 1:
        return there
    reply = yield (there, -prompt, 1)
    session.counts.forward_s += session.cost.seconds(-prompt)
    return reply[-1]


def first_token(session: Session, ready: float) -> Generator[Request, Reply, float]:
    """The first token is the target's: a pass of one row behind the prefill. Returns when the pass ended."""
    reply = yield (ready, 1, 1)
    session.counts.forward_s += session.cost.seconds(1)
    answered = deliver(session, verdict_bytes(1), reply[-1])
    if answered == NEVER:
        if session.drafts:
            alone(session, session.now + session.deadlines.soft(), NEVER)
        session.cut_off = True
        return NEVER
    send_rows(session, session.answer.prompt, reply[-1])
    session.commit(max(answered, session.now), 1)
    return reply[-1]


def find(session: Session, silent_since: float, gone_at: float, drafted: int) -> tuple[float, float]:
    """Dial until Open is answered: when the verifier has it, and when the device has its answer; inf: never."""
    link = session.link
    gone_at = min(gone_at, max(link.told_s, silent_since))
    at = min(silent_since + session.deadlines.probe(), gone_at)
    while True:
        _, there, opened = dial(session, at, drafted)
        if opened == NEVER and link.told_s == NEVER:
            return NEVER, NEVER
        if opened - at <= CONNECT_S:
            session.counts.reconnects += 1
            session.backoff.reset()
            return there, max(opened, gone_at)
        at += min(CONNECT_S, max(link.told_s - at, 0.0)) + session.backoff.next()


def deliver(session: Session, nbytes: int, at: float, opened: float = 0.0) -> float:
    """Send down what the verifier has at ``at``, on another stream where that one breaks; when the device has it."""
    while True:
        answered = down(session, nbytes, at)
        if answered < NEVER or session.link.told_s == NEVER:
            return max(answered, opened)
        at, opened = find(session, at, at + session.deadlines.dead(), 0)
        if opened == NEVER:
            return NEVER


def alone(session: Session, since: float, until: float) -> None:
    """Nothing timely comes: show what is drafted as provisional, and draft on, until ``until``."""
    display = session.display
    if until < NEVER:
        display.alone_s += max(until - since, 0.0)
    if session.tail > session.shown:
        _show(session, since)
    step = OFFLINE_DEPTH * session.device.step.level_s(1)
    at = max(since, session.drafter_free) + step
    while at < until and session.tail < session.left:
        session.tail = min(session.tail + OFFLINE_DEPTH, session.left)
        session.drafter_free = at
        _show(session, at)
        at += step
    if session.tail < session.left and at > until:
        session.drafter_free = at  # a proposal is under way when the verdict comes


def _show(session: Session, at: float) -> None:
    fresh = session.tail - session.shown
    session.display.provisional += fresh
    session.display.show(at)
    if session.journal is not None:
        session.journal.alone(at, session.committed + session.shown, fresh)
    session.shown = session.tail
