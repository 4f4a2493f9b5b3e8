"""The moves that modes are made of: open a stream, a round, writing alone, finding the link again.

Each is a part of a session's generator; what it needs of the verifier it yields (`server.Request`).
"""

from __future__ import annotations

import math
from collections.abc import Generator

from outrider.client.pacing import MAX_DEPTH
from outrider.netsim.virtual.server import Passes, Reply, Request
from outrider.netsim.virtual.session import LIMITS, Session, Sized
from outrider.netsim.virtual.sizes import (
    FIRST_UP,
    FRAMING,
    draft_bytes,
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
    return session.link.send("up", nbytes + FRAMING, now)


def down(session: Session, nbytes: int, now: float) -> float:
    """Send a message of the verifier; when the device has it."""
    session.counts.bytes_down += nbytes
    return session.link.send("down", nbytes + FRAMING, now)


def dial(session: Session, now: float, drafted: int) -> tuple[float, float, float]:
    """Handshake and Open: when Open is sent, when the verifier has it, and when the device has its answer."""
    ready = session.link.connect(now)
    if ready == NEVER:
        return NEVER, NEVER, NEVER
    session.counts.calls += 1
    size = open_bytes(session.answer.prompt, drafted)
    session.counts.bytes_up += size
    there = session.link.send("up", size + FRAMING + FIRST_UP, ready)
    if there == NEVER:
        return NEVER, NEVER, NEVER
    return ready, there, down(session, opened_bytes(), there)


def begin(session: Session) -> Generator[Request, Reply, float]:
    """The stream's beginning: dial, prefill. Returns when the first pass may begin; inf if there is no link."""
    ready, there, opened = dial(session, session.now, 0)
    if session.pacing is not None and opened > session.now + session.deadlines.first_s:
        session.tail = 0
        alone(session, session.now + session.deadlines.first_s, opened)
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
    answered = down(session, verdict_bytes(1), reply[-1])
    if answered == NEVER:
        session.cut_off = True
        return NEVER
    send_rows(session, session.answer.prompt, reply[-1])
    session.commit(max(answered, session.now), 1)
    note_tokens(session)
    return reply[-1]


def send_rows(session: Session, count: int, now: float) -> None:
    """State rows follow a verdict; nothing waits for them but the link."""
    nbytes = rows_bytes(count, session.device.row_bytes)
    if nbytes:
        session.counts.bytes_down += nbytes
        session.link.release("down", nbytes + FRAMING, now + session.cost.rows_s)


def note_tokens(session: Session) -> None:
    """Tell the link which token is on display, for outages that wait for one."""
    link = session.link
    token = link.next_token
    if token is not None and session.committed + session.shown >= token:
        link.on_token(session.committed + session.shown, session.now)


def draft(session: Session, sized: Sized) -> tuple[int, int, float]:
    """What goes out next: nodes (a chain of what was drafted ahead, or the shape: 0), depth, and when it is ready."""
    ready, shape = session.tail, sized.shape
    if ready == 0:
        begin_at = max(session.now, session.drafter_free)
        return 0, shape.depth, begin_at + sized.draft_s
    wanted = max(shape.depth, ready)
    prices = sized.plan.prices
    if ready < wanted and (prices is None or prices.behind(ready).pays):
        begin_at = max(session.now, session.drafter_free)
        more = wanted - ready
        session.tail = min(wanted, session.left)
        return session.tail, session.tail, begin_at + more * session.device.step.level_s(1)
    chain = min(ready, LIMITS.max_chain_tokens)
    return chain, chain, session.now


def one_round(session: Session, sized: Sized) -> Passes:
    """Draft, send, wait, commit; when the verdict is late, write alone; when the link is gone, find it again."""
    nodes, depth, sent = draft(session, sized)
    shape = sized.shape
    if nodes == 0:
        nodes = len(shape.parents)
        session.tail, session.offset = min(shape.trunk, session.left), 0
        chain = depth == nodes
        path = _judge(session, sized, chain)
    else:
        chain, path = True, session.foreseen(min(nodes, session.left - 1))
    sent_to = session.tail
    counts = session.counts
    counts.calls += 1
    arrival = up(session, draft_bytes(nodes, chain), sent)
    allowed = session.deadlines.soft(session.cost.seconds(nodes + 1))
    if session.drafts_ahead:
        ahead = min(sized.ahead, session.left - session.tail)
        session.tail += ahead
        session.drafter_free = sent + ahead * session.device.step.level_s(1)
    if arrival == NEVER:
        yield from lost(session, sent, sent + allowed, 0)
        return
    began, ended = yield (arrival, nodes + 1, 1)
    tokens = min(path + 1, session.left)
    answered = down(session, verdict_bytes(tokens), ended)
    send_rows(session, tokens, ended)
    counts.forward_s += session.cost.seconds(nodes + 1)
    if answered > sent + allowed:
        if answered - sent > session.deadlines.dead():
            yield from lost(session, sent, sent + allowed, tokens)
            return
        alone(session, sent + allowed, answered)
        session.deadlines.late()
    else:
        session.deadlines.on_time()
    compute = ended - began
    session.deadlines.sample(answered - sent, int((began - arrival) * 1e6), int(compute * 1e6))
    session.excess_s += 0.2 * (session.cost.excess_s - session.excess_s)
    if nodes:
        _learn(session, sent_to, path, nodes)
    counts.rounds += 1
    counts.round_tokens += tokens
    if session.log is not None:
        session.log.append(
            (
                "round",
                sent,
                answered,
                began - arrival,
                compute,
                session.committed,
                nodes,
                depth,
                chain,
                tokens,
                sized,
            )
        )
    session.commit(answered, tokens)
    note_tokens(session)


def _judge(session: Session, sized: Sized, chain: bool) -> int:
    """Tokens of the shape that the target takes, at most those that leave room for its own."""
    most = session.left - 1
    if chain:
        return session.foreseen(min(sized.shape.depth, most))
    path = sized.shape.accepted(session.fortune, session.committed, session.cumulated)
    return min(len(path), most)


def _learn(session: Session, sent_to: int, path: int, nodes: int) -> None:
    right = min(session.foreseen(sent_to), path)
    session.right += right
    session.judged += min(right + 1, sent_to)
    session.judged_rounds += 1
    session.counts.drafted += nodes
    session.counts.accepted += path


def alone(session: Session, since: float, until: float) -> None:
    """Nothing timely comes: show what is drafted as provisional, and draft on, until the verdict comes."""
    display = session.display
    display.alone_s += until - since if until < NEVER else 0.0
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
    if session.log is not None:
        session.log.append(("alone", at, session.committed + session.shown, fresh))
    session.shown = session.tail


def find(session: Session, silent_since: float, gone_at: float) -> tuple[float, float]:
    """Dial until Open is answered: when the verifier has it, and when the device has its answer; inf: never."""
    at = min(silent_since + session.deadlines.probe(), gone_at)
    while True:
        _, there, opened = dial(session, at, min(session.tail, MAX_DEPTH))
        if opened == NEVER:
            return NEVER, NEVER
        if opened - at <= CONNECT_S:
            session.counts.reconnects += 1
            session.backoff.reset()
            return there, max(opened, gone_at)
        at += CONNECT_S + session.backoff.next()


def lost(session: Session, sent: float, soft_at: float, decided: int) -> Passes:
    """The stream is given up: write alone until another one has checked the tail.

    ``decided`` tokens were committed by the verdict that did not come through; the verifier's log has them.
    """
    there, opened = find(session, sent, sent + session.deadlines.dead())
    alone(session, soft_at, there)  # what the Open carries was written until then
    if there == NEVER:
        session.cut_off = True
        return
    right = session.foreseen(min(session.tail, session.left - 1, LIMITS.max_chain_tokens))
    if decided > right + 1:  # the tail has left the text before the log's end: catch-up alone
        tokens, answered = decided, down(session, verdict_bytes(decided), there)
    else:
        width = min(session.tail, LIMITS.max_tree_nodes) + 1
        reply = yield (there, width, 1)
        session.counts.forward_s += session.cost.seconds(width)
        tokens = min(right + 1, session.left)
        answered = down(session, verdict_bytes(tokens), reply[-1])
        send_rows(session, tokens, reply[-1])
    answered = max(answered, opened)
    alone(session, there, answered)
    if answered == NEVER:
        session.cut_off = True
        return
    session.deadlines.late()
    session.commit(answered, tokens)
    note_tokens(session)
