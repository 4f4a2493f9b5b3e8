"""The same arithmetic without the machinery, where nothing can happen: a constant link and a verifier for oneself.

Without jitter, loss, outages and traces a round's duration is fixed by its draft and by how much of it is accepted, so
it is worked out once; a stream is a row of equal gaps. A test holds what these give and what the general moves give
together, to a nanosecond. Sweeps are made of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.client.pacing import MAX_DEPTH
from outrider.netsim.settings import LaneSettings
from outrider.netsim.virtual.planner import Sized
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

SURELY_S = 1.5
"""A verdict that comes sooner after its draft is on time: the deadline is the round trip measured and 40 ms more."""
STREAMED_S = 0.2
"""Gaps of a stream up to this are in time whatever the deadline: it is never below 0.25 s."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """What a round with a certain draft and a certain number of accepted tokens always is. Seconds from its begin."""

    sent_s: float
    answered_s: float
    round_s: float
    rtt_s: float
    bytes_down: int


@dataclass(slots=True)
class Steady:
    """The constants of a link, and the rounds worked out so far."""

    up_s: float
    up_rate: float
    down_s: float
    down_rate: float
    rounds: dict[tuple[int, int], Fixed | None] = field(default_factory=dict)
    """By what is drafted (its `id`: planners never forget what they made) and how much of it is accepted."""

    def up(self, nbytes: int) -> float:
        """Seconds of a message of the device."""
        return (nbytes + FRAMING) / self.up_rate + self.up_s

    def down(self, nbytes: int) -> float:
        """Seconds of a message of the verifier."""
        return (nbytes + FRAMING) / self.down_rate + self.down_s


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
    """Rounds as long as each begins with nothing drafted ahead; the session is then as the general moves leave it."""
    if session.link.down.lane.backlog_bytes(session.now) > 0 or session.planner is None:
        return  # rows of the prompt are still on their way
    deadlines, sums, began = session.deadlines, Sums(), session.committed
    gaps, rounds_s, known, sized_of = sums.gaps_s, sums.rounds_s, steady.rounds, session.planner.sized
    level_s, excess_s = session.device.step.level_s(1), session.cost.excess_s
    prompt, most_ahead = session.answer.prompt, MAX_DEPTH if session.drafts_ahead else 0
    now, free, left, srtt = session.now, session.drafter_free, session.left, deadlines.srtt_s or 0.0
    at, right, judged, late = began, session.right, session.judged, session.excess_s
    tail, last = 0, session.display.last_at
    while left and not tail:
        sized = sized_of(judged, right, srtt, deadlines.queue_s + late, prompt + at, left)
        if sized.streams:
            break
        path = _taken(session, sized, at, left - 1)
        fixed = known.get((id(sized), path), _NEW)
        if fixed is _NEW:
            fixed = _work_out(session, steady, sized, path)
        if fixed is None:
            break
        begin = now if now > free else free
        trunk = sized.shape.trunk if sized.shape.trunk < left else left
        ahead = min(sized.ahead, left - trunk, most_ahead)
        now = begin + fixed.answered_s
        free = begin + fixed.sent_s + ahead * level_s
        gaps.append(now - last)
        rounds_s.append(fixed.round_s)
        last = now
        srtt += (fixed.rtt_s - srtt) / 8
        late += 0.2 * (excess_s - late)
        tokens = path + 1
        foreseen = (
            path if sized.chain and path < trunk else _foreseen(session, at, min(tokens, trunk + ahead))
        )
        if trunk:
            hit = min(foreseen, path, trunk)
            right += hit
            judged += hit + 1 if hit < trunk else trunk
            sums.drafted += sized.nodes
            sums.accepted += path
        if foreseen == tokens:
            tail = trunk + ahead - foreseen
            session.offset = foreseen if tail else 0
        at += tokens
        left -= tokens
        sums.forward_s += sized.verify_s
        sums.bytes_up += sized.nbytes
        sums.bytes_down += fixed.bytes_down
    if gaps:
        session.now, session.progress_at, session.display.last_at, deadlines.srtt_s = now, now, last, srtt
        session.drafter_free, session.tail, session.excess_s = free, tail, late
        session.committed, session.left, session.right, session.judged = at, left, right, judged
        sums.into(session, at - began)


@dataclass(slots=True)
class Sums:
    """What quick rounds added up to."""

    gaps_s: list[float] = field(default_factory=list)
    rounds_s: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    forward_s: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0

    def into(self, session: Session, tokens: int) -> None:
        """Add them to the session's counts."""
        counts, rounds = session.counts, len(self.gaps_s)
        session.display.gaps_s += self.gaps_s
        counts.rounds_s += self.rounds_s
        counts.calls += rounds
        counts.rounds += rounds
        counts.round_tokens += tokens
        counts.drafted += self.drafted
        counts.accepted += self.accepted
        counts.forward_s += self.forward_s
        counts.bytes_up += self.bytes_up
        counts.bytes_down += self.bytes_down


def _taken(session: Session, sized: Sized, at: int, most: int) -> int:
    """Drafted tokens that the target takes when the draft continues the text at ``at``; ``most`` at most."""
    depth = sized.shape.depth
    if sized.chain:
        return _foreseen(session, at, depth if depth < most else most)
    path = len(sized.shape.accepted(session.fortune, at, session.cumulated))
    return path if path < most else most


def _foreseen(session: Session, at: int, most: int) -> int:
    """Right first guesses in a row from ``at`` on; ``most`` at most."""
    fortune, first, count = session.fortune, session.first, 0
    while count < most and fortune[at + count] < first[count]:
        count += 1
    return count


_NEW = Fixed(0.0, 0.0, 0.0, 0.0, 0)


def _work_out(session: Session, steady: Steady, sized: Sized, path: int) -> Fixed | None:
    tokens = path + 1
    rows = rows_bytes(tokens, session.row_bytes)
    trip_s = steady.up(sized.nbytes) + steady.down(verdict_bytes(tokens))
    answered_s = sized.draft_s + trip_s + sized.verify_s
    # Rows must be through before the next verdict, or it would wait for them.
    through_s = session.cost.rows_s + (rows + FRAMING) / steady.down_rate if rows else 0.0
    soon = through_s < session.cost.seconds(1) + steady.up_s + steady.down_s
    fine = soon and answered_s - sized.draft_s < SURELY_S
    nbytes = verdict_bytes(tokens) + rows
    round_s = answered_s - sized.draft_s
    fixed = Fixed(sized.draft_s, answered_s, round_s, trip_s, nbytes) if fine else None
    steady.rounds[id(sized), path] = fixed
    return fixed


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
