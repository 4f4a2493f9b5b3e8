"""Edge drafting: propose, send, wait, commit; write alone when the verdict is late.

Parts of a session's generator; what it needs of the verifier it yields (`server.Request`). The loop is written for
speed: sweeps run millions of rounds.
"""

from __future__ import annotations

from outrider.client.pacing import MAX_DEPTH
from outrider.netsim.virtual.acceptance import shape_of
from outrider.netsim.virtual.opening import NEVER, alone, deliver, find, send_rows
from outrider.netsim.virtual.planner import LIMITS, Sized
from outrider.netsim.virtual.server import Passes
from outrider.netsim.virtual.session import Session
from outrider.netsim.virtual.sizes import FRAMING, draft_bytes, verdict_bytes
from outrider.netsim.virtual.steady import run_rounds, steady_of


def rounds(session: Session) -> Passes:
    """Rounds until the answer is complete, the link is gone, or the device would rather stream."""
    counts, deadlines = session.counts, session.deadlines
    send_up, send_down = session.link.up.send, session.link.down.send
    level_s, excess_s = session.device.step.level_s(1), session.cost.excess_s
    steady = steady_of(session)
    while session.left and not session.cut_off:
        if steady is not None:
            run_rounds(session, steady)
            if not session.left:
                return
        sized = session.sized()
        if sized.streams:
            return
        nodes, nbytes, verify_s, path, sent = (_drafted_ahead if session.tail else _drafted)(session, sized)
        trunk = session.tail
        counts.calls += 1
        counts.bytes_up += nbytes
        arrival = send_up(nbytes + FRAMING, sent)
        allowed = deadlines.soft(verify_s)
        ahead = min(sized.ahead, session.left - trunk)
        session.tail += ahead
        session.drafter_free = sent + ahead * level_s
        if arrival == NEVER:
            yield from lost(session, sent, sent + allowed, 0)
            continue
        began, ended = yield (arrival, nodes + 1, 1)
        tokens = path + 1
        nbytes = verdict_bytes(tokens)
        counts.bytes_down += nbytes
        answered = send_down(nbytes + FRAMING, ended)
        send_rows(session, tokens, ended)
        counts.forward_s += verify_s
        late = answered > sent + allowed
        if not late:
            deadlines.on_time()
        elif answered - sent > deadlines.dead():
            yield from lost(session, sent, sent + allowed, tokens)
            continue
        else:
            alone(session, sent + allowed, answered)
            deadlines.late()
        deadlines.sample(answered - sent, int((began - arrival) * 1e6), int((ended - began) * 1e6))
        session.excess_s += 0.2 * (excess_s - session.excess_s)
        if trunk:
            right = session.foreseen(trunk if trunk < path else path)
            session.right += right
            session.judged += right + 1 if right < trunk else trunk
            counts.drafted += nodes
            counts.accepted += path
        counts.rounds += 1
        counts.rounds_s.append(answered - sent)
        counts.round_tokens += tokens
        if session.journal is not None:
            _note(session, sized, (sent, answered, began - arrival, ended - began), nodes, path, late)
        session.commit(answered, tokens)


def _drafted(session: Session, sized: Sized) -> tuple[int, int, float, int, float]:
    """A fresh draft: nodes, bytes, seconds of the pass, tokens that the target takes, and when it is sent."""
    sent = max(session.now, session.drafter_free) + sized.draft_s
    session.tail, session.offset = min(sized.trunk, session.left), 0
    return sized.nodes, sized.nbytes, sized.verify_s, _judge(session, sized), sent


def _judge(session: Session, sized: Sized) -> int:
    """Drafted tokens that the target takes, at most those that leave room for its own."""
    most = session.left - 1
    if sized.chain:
        return session.foreseen(min(sized.depth, most))
    path = sized.shape.accepted(session.fortune, session.committed, session.cumulated)
    return min(len(path), most)


def _drafted_ahead(session: Session, sized: Sized) -> tuple[int, int, float, int, float]:
    """A round of what was drafted while the last verdict was awaited, and of a little more where that pays."""
    ready, sent = session.tail, session.now
    if sized.extends(ready):
        wanted = min(sized.depth, session.left)
        sent = max(sent, session.drafter_free) + (wanted - ready) * session.device.step.level_s(1)
        session.tail = ready = wanted
    nodes = min(ready, LIMITS.max_chain_tokens)
    path = session.foreseen(min(nodes, session.left - 1))
    return nodes, draft_bytes(nodes, chain=True), session.cost.seconds(nodes + 1), path, sent


def _note(
    session: Session,
    sized: Sized,
    times: tuple[float, float, float, float],
    nodes: int,
    path: int,
    late: bool,
) -> None:
    if session.journal is None:
        return
    counts = session.counts
    ahead = nodes != sized.nodes or (sized.chain and nodes > 0)
    shape = shape_of((), nodes, nodes, tree=False) if ahead else sized.shape
    rows = tuple(range(1, path + 1))
    if not ahead:
        rows = shape.accepted(session.fortune, session.committed, session.cumulated)[:path]
    place, nbytes = (session.committed, path + 1), (counts.bytes_up, counts.bytes_down)
    session.journal.round(times, shape, rows, place, nbytes, late)


def lost(session: Session, sent: float, soft_at: float, decided: int) -> Passes:
    """The stream is given up: write alone until another one has checked the tail.

    ``decided`` tokens were committed by the verdict that did not come through; the verifier's log has them.
    """
    there, opened = find(session, sent, sent + session.deadlines.dead(), min(session.tail, MAX_DEPTH))
    alone(session, soft_at, there)  # what the Open carries was written until then
    if there == NEVER:
        session.cut_off = True
        return
    right = session.foreseen(min(session.tail, session.left - 1, LIMITS.max_chain_tokens))
    if decided > right + 1:  # the tail has left the text before the log's end: catch-up alone
        tokens, answered = decided, deliver(session, verdict_bytes(decided), there, opened)
    else:
        width = min(session.tail, LIMITS.max_tree_nodes) + 1
        reply = yield (there, width, 1)
        session.counts.forward_s += session.cost.seconds(width)
        tokens = right + 1
        answered = deliver(session, verdict_bytes(tokens), reply[-1], opened)
        send_rows(session, tokens, reply[-1])
    alone(session, there, answered)
    if answered == NEVER:
        session.cut_off = True
        return
    session.deadlines.late()
    session.commit(answered, tokens)
