"""One unary call per token: every token pays the round trip. What a naive client of a stateful service does."""

from __future__ import annotations

from outrider.netsim.virtual.opening import NEVER, begin, find, first_token
from outrider.netsim.virtual.server import Passes
from outrider.netsim.virtual.session import Session
from outrider.netsim.virtual.sizes import CALL_DOWN, CALL_UP, FRAMING, draft_bytes, verdict_bytes
from outrider.netsim.virtual.steady import run_calls, steady_of

NAME = "unary"
DRAFTS = None


def run(session: Session) -> Passes:
    """Ask, wait, ask again. A call that is not answered in time is made again on a new connection."""
    ready = yield from begin(session)
    ended = NEVER if ready == NEVER else (yield from first_token(session, ready))
    steady = steady_of(session)
    if steady is not None:
        run_calls(session, steady)
    while ended < NEVER and session.left and not session.cut_off:
        yield from call(session)


def call(session: Session) -> Passes:
    """One call."""
    sent = session.now
    session.counts.calls += 1
    link, question, reply_bytes = session.link, draft_bytes(0, chain=True), verdict_bytes(1)
    session.counts.bytes_up += question
    arrival = link.up.send(question + FRAMING + CALL_UP, sent)
    answered = NEVER
    if arrival < NEVER:
        began, ended = yield (arrival, 1, 1)
        session.counts.forward_s += session.cost.seconds(1)
        session.counts.bytes_down += reply_bytes
        answered = link.down.send(reply_bytes + FRAMING + CALL_DOWN, ended)
    if answered - sent > session.deadlines.dead():
        there, opened = find(session, sent, sent + session.deadlines.dead(), 0)
        answered = NEVER
        if opened < NEVER:
            session.counts.bytes_down += reply_bytes
            answered = max(link.down.send(reply_bytes + FRAMING + CALL_DOWN, there), opened)
            if answered == NEVER and link.told_s < NEVER:  # this connection breaks too: ask again
                session.now = max(opened, link.told_s)
                return
    elif arrival < NEVER:
        session.deadlines.sample(answered - sent, int(1e6 * (began - arrival)), int(1e6 * (ended - began)))
    if answered == NEVER:
        session.cut_off = True
        return
    session.counts.rounds_s.append(answered - sent)
    session.commit(answered, 1)
