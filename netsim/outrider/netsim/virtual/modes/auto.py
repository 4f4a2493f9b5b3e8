"""Run-ahead auto: trees where drafting is expected to be faster, streaming where it is not, as the device decides it.

While streaming, drafts are tried again now and then. A draft reaches a verifier that has decoded on meanwhile: what it
foresaw is trimmed and the rest is verified, else it is superseded, and the next one starts from the new end.
"""

from __future__ import annotations

from collections.abc import Generator

from outrider.client.pacing import TRY_EVERY, TRY_FOR, DraftPacing
from outrider.netsim.virtual.opening import NEVER, begin, deliver, first_token, send_rows, up
from outrider.netsim.virtual.rounds import lost, rounds
from outrider.netsim.virtual.server import Passes, Reply, Request
from outrider.netsim.virtual.session import Session
from outrider.netsim.virtual.sizes import draft_bytes, verdict_bytes
from outrider.netsim.virtual.stream import steer, stream

NAME = "auto"
DRAFTS = DraftPacing(tree=True, may_stream=True)


def run(session: Session) -> Passes:
    """Decide at every round, and while streaming whenever drafts are due to be tried."""
    ready = yield from begin(session)
    if ready == NEVER:
        return
    told = steer(session, session.now) if session.sized().streams else NEVER
    ended = yield from first_token(session, ready)
    while ended < NEVER and session.left and not session.cut_off:
        if told < NEVER:
            ended = yield from _streamed(session, max(told, ended))
            told = NEVER
        elif session.sized().streams:
            told = steer(session, session.now)
            if told == NEVER:  # the window is lost with its stream; another one begins with a single step
                yield from lost(session, session.now, session.now + session.deadlines.soft(), 0)
        else:
            yield from rounds(session)


def _streamed(session: Session, start: float) -> Generator[Request, Reply, float]:
    """Stream until drafts are due and the device wants them; returns when the verifier was last busy."""
    ended = start
    while session.left and not session.cut_off:
        place = (session.answer.prompt + session.committed) % TRY_EVERY
        if place < TRY_FOR and not session.sized().streams:
            return (yield from _switch(session, ended))
        until = TRY_EVERY - place if place >= TRY_FOR else 1
        ended = yield from stream(session, ended, min(until, session.left))
    return ended


def _switch(session: Session, ended: float) -> Generator[Request, Reply, float]:
    """The first draft after streaming; it meets a verifier that has gone on."""
    sized = session.sized()
    shape = sized.shape
    base, sent = session.committed, max(session.now, session.drafter_free) + sized.draft_s
    nodes = len(shape.parents)
    arrival = up(session, draft_bytes(nodes, chain=shape.depth == nodes), sent)
    session.counts.calls += 1
    session.drafter_free = sent
    if arrival == NEVER:  # the verifier decodes on
        return (yield from stream(session, ended, 1))
    while ended < arrival and session.left:  # decoded before the draft came
        ended = yield from stream(session, ended, 1)
    if session.cut_off or not session.left:
        return ended
    run_on = session.committed - base
    path = shape.accepted(session.fortune, base, session.cumulated)
    if len(path) >= run_on:
        nodes = max(nodes - run_on, 0)
        reply = yield (max(arrival, ended), nodes + 1, 1)
        session.counts.forward_s += session.cost.seconds(nodes + 1)
        tokens = min(len(path) - run_on + 1, session.left)
        session.counts.rounds += 1
        session.counts.round_tokens += tokens
        answered = deliver(session, verdict_bytes(tokens), reply[-1])
        send_rows(session, tokens, reply[-1])
        if answered == NEVER:
            session.cut_off = True
            return NEVER
        session.commit(max(answered, session.now), tokens)
        return reply[-1]
    session.counts.superseded += 1
    answered = deliver(session, verdict_bytes(1), max(arrival, ended))
    if answered == NEVER:
        session.cut_off = True
        return NEVER
    session.now = max(session.now, answered)
    return ended
