"""The same arithmetic without the machinery, where nothing can happen: a constant link and a verifier for oneself.

Without jitter, loss, outages and traces a round's duration is fixed by its draft and by how much of it is accepted, so
it is worked out once; a stream is a row of equal gaps. A test holds what these give and what the general moves give
together, to a nanosecond. Sweeps are made of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
    rtt_s: float
    tokens: int
    bytes_down: int


@dataclass(slots=True)
class Steady:
    """The constants of a link, and the rounds worked out so far."""

    up_s: float
    up_rate: float
    down_s: float
    down_rate: float
    rounds: dict[tuple[int, int], Fixed | None] = field(default_factory=dict)
    kept: list[Sized] = field(default_factory=list)
    """Whose numbers (`id`) are keys above."""

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
    return Steady(up.delay_ms / 1e3, up.bytes_per_s, down.delay_ms / 1e3, down.bytes_per_s)


def _constant(lane: LaneSettings) -> bool:
    plain = lane.trace is None and lane.delays_ms is None and lane.spike is None
    return plain and lane.jitter_ms == 0 and lane.loss == 0


def run_rounds(session: Session, steady: Steady) -> None:
    """Rounds as long as each begins with nothing drafted ahead; the session is then as the general moves leave it."""
    sized_of, deadlines, counts, display = session.sized, session.deadlines, session.counts, session.display
    fortune, first, cumulated, gaps = (
        session.fortune,
        session.first,
        session.cumulated,
        session.display.gaps_s,
    )
    level_s, excess_s = session.device.step.level_s(1), session.cost.excess_s
    if session.link.down.lane.backlog_bytes(session.now) > 0:  # rows of the prompt are still on their way
        return
    while session.left and not session.tail:
        sized = sized_of()
        if sized.streams:
            return
        shape, at, most = sized.shape, session.committed, session.left - 1
        if sized.chain:
            path, stop = 0, shape.depth if shape.depth < most else most
            while path < stop and fortune[at + path] < first[path]:
                path += 1
        else:
            path = min(len(shape.accepted(fortune, at, cumulated)), most)
        fixed = steady.rounds.get((id(sized), path), _NEW)
        if fixed is _NEW:
            fixed = _work_out(session, steady, sized, path)
        if fixed is None or deadlines.srtt_s is None:
            return
        begin = session.now if session.now > session.drafter_free else session.drafter_free
        trunk = shape.trunk if shape.trunk < session.left else session.left
        ahead = min(sized.ahead, session.left - trunk) if session.drafts_ahead else 0
        session.now = now = begin + fixed.answered_s
        session.drafter_free = begin + fixed.sent_s + ahead * level_s
        gaps.append(now - display.last_at)
        display.last_at = now
        deadlines.srtt_s += (fixed.rtt_s - deadlines.srtt_s) / 8
        session.excess_s += 0.2 * (excess_s - session.excess_s)
        foreseen, tail = path, trunk + ahead
        if not sized.chain or path == trunk:
            foreseen, stop = 0, tail if tail < fixed.tokens else fixed.tokens
            while foreseen < stop and fortune[at + foreseen] < first[foreseen]:
                foreseen += 1
        if trunk:
            right = min(foreseen, path, trunk)
            session.right += right
            session.judged += right + 1 if right < trunk else trunk
            counts.drafted += sized.nodes
            counts.accepted += path
        if foreseen == fixed.tokens:
            session.tail = tail - foreseen
            session.offset = foreseen if session.tail else 0
        session.committed += fixed.tokens
        session.left -= fixed.tokens
        counts.calls += 1
        counts.rounds += 1
        counts.round_tokens += fixed.tokens
        counts.rounds_s.append(fixed.answered_s - fixed.sent_s)
        counts.forward_s += sized.verify_s
        counts.bytes_up += sized.nbytes
        counts.bytes_down += fixed.bytes_down
    session.progress_at = session.now


_NEW = Fixed(0.0, 0.0, 0.0, 0, 0)


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
    fixed = Fixed(sized.draft_s, answered_s, trip_s, tokens, nbytes) if fine else None
    steady.rounds[id(sized), path] = fixed
    steady.kept.append(sized)
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
