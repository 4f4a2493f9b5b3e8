"""The same arithmetic without the machinery, where nothing can happen: a constant link and a verifier for oneself.

Without jitter, loss, outages and traces a round's duration is fixed by its draft and by how much of it is accepted, so
it is worked out once; a stream is a row of equal gaps. A test holds what these give and what the general moves give
together, to a nanosecond. Sweeps are made of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import sub
from typing import NamedTuple

from outrider.client.pacing import MAX_DEPTH
from outrider.netsim.settings import LaneSettings
from outrider.netsim.virtual.acceptance import runs
from outrider.netsim.virtual.planner import LIMITS
from outrider.netsim.virtual.session import Session
from outrider.netsim.virtual.sizes import (
    CALL_DOWN,
    CALL_UP,
    FRAMING,
    commit_bytes,
    draft_bytes,
    rows_bytes,
    verdict_bytes,
)

SURELY_S, SMALL_S = 1.5, 0.03
"""A verdict that comes sooner after its draft is on time, if both messages together take no longer to send than the
second: a deadline below 2 s is never shorter than the shortest round trip measured, the pass and 40 ms."""
LONGEST_CHAIN = LIMITS.max_chain_tokens
STREAMED_S = 0.2
"""Gaps of a stream up to this are in time whatever the deadline: it is never below 0.25 s."""


class Judged(NamedTuple):
    """What a round with a certain message and a certain number of accepted tokens always is."""

    round_s: float
    """From sending to verdict."""
    rtt_s: float
    """Of it, what the device takes for the round trip: it is told of the pass in whole microseconds."""
    verify_s: float
    compute_us: int
    bytes_up: int
    bytes_down: int
    nodes: int


Judgements = list[Judged | None]
"""By the number of accepted tokens; None where a round needs the general moves."""


@dataclass(slots=True)
class Steady:
    """The constants of a link, and the rounds worked out so far."""

    up_s: float
    up_rate: float
    down_s: float
    down_rate: float
    chains: dict[int, Judgements] = field(default_factory=dict)
    trees: dict[int, Judgements] = field(default_factory=dict)
    """By nodes."""

    def up(self, nbytes: int) -> float:
        """Seconds of a message of the device."""
        return (nbytes + FRAMING) / self.up_rate + self.up_s

    def down(self, nbytes: int) -> float:
        """Seconds of a message of the verifier."""
        return (nbytes + FRAMING) / self.down_rate + self.down_s

    def rows_in_the_way(self, session: Session) -> bool:
        """Whether rows that were sent before may hold up the next verdict."""
        soonest = session.now + self.up_s + session.cost.seconds(1)
        return session.link.down.lane.backlog_bytes(soonest) > 0


def steady_of(session: Session) -> Steady | None:
    """The constants, where the session's link and verifier are such; None elsewhere."""
    link = session.link
    up, down = link.up.lane.settings, link.down.lane.settings
    calm = link.up.free and link.down.free and link.next_token is None and session.journal is None
    if not (session.solo and calm and _constant(up) and _constant(down)):
        return None
    made = session.planner.steady if session.planner is not None else {}
    constants = (up.delay_ms, up.bytes_per_s, down.delay_ms, down.bytes_per_s)
    found = made.get(constants)
    if not isinstance(found, Steady):
        found = made[constants] = Steady(
            up.delay_ms / 1e3, up.bytes_per_s, down.delay_ms / 1e3, down.bytes_per_s
        )
    return found


def _constant(lane: LaneSettings) -> bool:
    plain = lane.trace is None and lane.delays_ms is None and lane.spike is None
    return plain and lane.jitter_ms == 0 and lane.loss == 0


def run_rounds(session: Session, steady: Steady) -> None:
    """Rounds as long as each is of the usual kind; the session is then as the general moves leave it."""
    planner, deadlines = session.planner, session.deadlines
    if planner is None or session.shown or steady.rows_in_the_way(session):
        return
    level_s, excess_s, prompt = session.device.step.level_s(1), session.cost.excess_s, session.answer.prompt
    texts = runs(session.answer.seed, session.answer.tokens, session.device.acceptance.law)
    known, sized_of, queue_s = texts.known, planner.sized, deadlines.queue_s
    at, left, tail, offset = session.committed, session.left, session.tail, session.offset
    now, free, srtt, late = session.now, session.drafter_free, deadlines.srtt_s or 0.0, session.excess_s
    right, judged, moments, done = session.right, session.judged, [session.display.last_at], list[Judged]()
    while left:
        sized = sized_of(judged, right, srtt, queue_s + late, prompt + at, left)
        if sized.streams:
            break
        run = known[at - offset]
        run = (run if run >= 0 else texts.count(at - offset)) - offset  # right first guesses from here on
        nodes, chain = sized.nodes, sized.chain
        if not tail:  # a fresh draft
            sent = (free if free > now else now) + sized.draft_s
            trunk = sized.trunk if sized.trunk < left else left
        else:  # what was drafted ahead, and a little more where that pays
            sent, trunk, chain = now, tail, True
            if tail < sized.depth and sized.extends(tail):
                trunk = sized.depth if sized.depth < left else left
                sent = (free if free > now else now) + (trunk - tail) * level_s
            nodes = trunk if trunk < LONGEST_CHAIN else LONGEST_CHAIN
        if chain:
            by_path, path = steady.chains.get(nodes), run if run < nodes else nodes
        else:
            by_path = steady.trees.get(nodes)
            path = sized.shape.reached(session.fortune, at, session.cumulated, run)
        path = path if path < left else left - 1
        step = (by_path or _lay(session, steady, nodes, chain))[path]
        if step is None:
            break
        now = sent + step.round_s
        done.append(step)
        moments.append(now)
        srtt += (step.rtt_s - srtt) / 8
        late += 0.2 * (excess_s - late)
        hit = run if run < path else path
        right += hit if hit < trunk else trunk
        judged += hit + 1 if hit < trunk else trunk
        ahead = sized.ahead if sized.ahead < left - trunk else left - trunk
        free = sent + ahead * level_s
        tokens = path + 1
        tail = trunk + ahead - tokens
        if run < tokens or tail <= 0:  # it went elsewhere, or was used up
            tail = offset = 0
        else:
            offset += tokens
        at += tokens
        left -= tokens
    if done:
        _add_up(session, done, moments, at - session.committed)
        session.now = session.progress_at = session.display.last_at = now
        session.drafter_free, session.tail, session.offset, session.excess_s = free, tail, offset, late
        session.committed, session.left, session.right, session.judged = at, left, right, judged


def _add_up(session: Session, done: list[Judged], moments: list[float], tokens: int) -> None:
    rounds_s, _, verify_s, _, bytes_up, bytes_down, nodes = zip(*done, strict=True)
    counts, rounds = session.counts, len(done)
    session.display.gaps_s += map(sub, moments[1:], moments)
    counts.rounds_s += rounds_s
    counts.calls += rounds
    counts.rounds += rounds
    counts.round_tokens += tokens
    counts.drafted += sum(nodes)
    counts.accepted += tokens - rounds
    counts.forward_s += sum(verify_s)
    counts.bytes_up += sum(bytes_up)
    counts.bytes_down += sum(bytes_down)
    if tokens < session.left:  # a deadline may matter yet
        for step in done:
            session.deadlines.on_time()
            session.deadlines.sample(step.round_s, 0, step.compute_us)


def _lay(session: Session, steady: Steady, nodes: int, chain: bool) -> Judgements:
    """All rounds of a message of so many nodes."""
    cost, nbytes, verify_s = session.cost, draft_bytes(nodes, chain), session.cost.seconds(nodes + 1)
    soonest_s = cost.seconds(1) + steady.up_s + steady.down_s
    made: Judgements = []
    for tokens in range(1, (nodes if chain else min(nodes, MAX_DEPTH)) + 2):
        told, rows = verdict_bytes(tokens), rows_bytes(tokens, session.row_bytes)
        trip_s = steady.up(nbytes) + steady.down(told)
        # Rows must be through before the next verdict, or it would wait for them.
        through_s = cost.rows_s + (rows + FRAMING) / steady.down_rate if rows else 0.0
        round_s, compute_us = trip_s + verify_s, int(verify_s * 1e6)
        on_time = round_s < SURELY_S and trip_s - steady.up_s - steady.down_s < SMALL_S
        judged = Judged(round_s, round_s - compute_us / 1e6, verify_s, compute_us, nbytes, told + rows, nodes)
        made.append(judged if on_time and through_s < soonest_s else None)
    (steady.chains if chain else steady.trees)[nodes] = made
    return made


def run_stream(session: Session, steady: Steady, start: float, count: int) -> float | None:
    """``count`` tokens decoded from ``start`` on; when the verifier had the last one. None: the link is too slow."""
    pass_s, size = session.cost.seconds(1), commit_bytes(1)
    rows = rows_bytes(1, session.row_bytes)
    sent_s = (size + FRAMING) / steady.down_rate
    rows_s = session.cost.rows_s + (rows + FRAMING) / steady.down_rate if rows else 0.0
    begun = start + pass_s + steady.down(size)
    slow = sent_s + rows_s > pass_s or pass_s > STREAMED_S
    slow = slow or session.link.down.lane.backlog_bytes(start + pass_s) > 0
    if slow or session.tail or count < 1 or begun - max(session.progress_at, start + pass_s) > STREAMED_S:
        return None
    display, counts = session.display, session.counts
    display.show(begun)
    display.gaps_s.extend([pass_s] * (count - 1))
    display.last_at = session.now = session.progress_at = begun + (count - 1) * pass_s
    ended = start + count * pass_s
    session.link.down.send(size + FRAMING, ended)  # what comes next finds the link as the last token left it
    if rows:
        session.link.down.release(rows + FRAMING, ended + session.cost.rows_s)
    session.committed += count
    session.left -= count
    counts.forward_s += count * pass_s
    counts.bytes_down += count * (size + rows)
    return ended


def run_calls(session: Session, steady: Steady) -> None:
    """Unary calls to the end of the answer."""
    asked, told, count = draft_bytes(0, chain=True), verdict_bytes(1), session.left
    one_s = steady.up(asked + CALL_UP) + session.cost.seconds(1) + steady.down(told + CALL_DOWN)
    if one_s > SURELY_S or count < 1:
        return
    display, counts = session.display, session.counts
    display.gaps_s.extend([one_s] * count)
    counts.rounds_s.extend([one_s] * count)
    display.last_at = session.now = session.progress_at = session.now + count * one_s
    session.committed += count
    session.left = 0
    counts.calls += count
    counts.forward_s += count * session.cost.seconds(1)
    counts.bytes_up += count * asked
    counts.bytes_down += count * told
