"""The verifier in virtual time: one engine, one packed pass after the other, first come first served.

A session is a generator. It yields a `Request` and gets back when its passes began and ended: ``(begin, end of the
first, end of the second, …)``. Alone on a verifier a session is served at once; many share packed passes, in which
every session that waits takes part with its rows (`serve_many`).
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from outrider.client.cost import pass_s
from outrider.netsim.errors import BadConfig
from outrider.shared.frames import CostCurve

Request = tuple[float, int, int]
"""Arrival at the verifier; rows of a pass (negative: tokens of prefill); passes one after the other."""
Reply = Sequence[float]
Passes = Generator[Request, Reply, None]
"""A session as the verifier sees it."""

WIDEST = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierCost:
    """What the verifier's time is spent on, seconds."""

    curve: CostCurve
    """Bare target passes by width, and prefill a token."""
    excess_s: float = 0.0
    """A verdict beyond the bare pass: rule, packing, framing."""
    rows_s: float = 0.0
    """From a verdict to the state rows of its tokens."""
    max_step_tokens: int = 256
    """Rows of one packed pass, at most."""
    _table: list[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.curve.widths:
            raise BadConfig("cost", "expected a cost curve with at least one width")
        table = [pass_s(self.curve, width) + self.excess_s for width in range(1, WIDEST + 1)]
        object.__setattr__(self, "_table", [0.0, *table])

    @classmethod
    def constant(cls, verify_s: float, widest_s: float | None = None) -> VerifierCost:
        """``verify_s`` for one row; with ``widest_s`` a straight line up to 64 rows."""
        last = verify_s if widest_s is None else widest_s
        curve = CostCurve((1, 64), (round(verify_s * 1e6), round(last * 1e6)), 0, round(verify_s * 1e5))
        return cls(curve=curve)

    def seconds(self, rows: int) -> float:
        """One pass of so many rows; negative: prefill of so many tokens."""
        if rows < 0:
            return -rows * self.curve.prefill_us_per_token / 1e6
        return self._table[rows] if rows <= WIDEST else self._table[WIDEST] * rows / WIDEST


@dataclass(slots=True)
class Load:
    """What a verifier did."""

    passes: int = 0
    rows: int = 0
    busy_s: float = 0.0


def serve_alone(session: Passes, cost: VerifierCost, load: Load | None = None) -> None:
    """Run a session to its end on a verifier of its own."""
    load = load if load is not None else Load()
    seconds = cost.seconds
    free = 0.0
    try:
        arrival, rows, count = next(session)
        while True:
            begin = arrival if arrival > free else free
            one = seconds(rows)
            load.passes += count
            load.rows += abs(rows) * count
            load.busy_s += one * count
            if count == 1:
                free = begin + one
                arrival, rows, count = session.send((begin, free))
            else:
                ends = [begin + one * number for number in range(count + 1)]
                free = ends[-1]
                arrival, rows, count = session.send(ends)
    except StopIteration:
        return


@dataclass(slots=True)
class _Waiting:
    """A session's request and how far it has been served."""

    number: int
    rows: int
    left: int
    reply: list[float]


def serve_many(sessions: Sequence[Passes], cost: VerifierCost) -> Load:
    """Run all sessions to their ends on one verifier with packed passes."""
    load = Load()
    heap: list[tuple[float, int]] = []  # by arrival; ties go to the lower number
    waiting: dict[int, _Waiting] = {}
    for number, session in enumerate(sessions):
        _resume(session, None, number, heap, waiting)
    free = 0.0
    while heap:
        begin = max(free, heap[0][0])
        chosen: list[_Waiting] = []
        total, prefill = 0, 0.0
        while heap and heap[0][0] <= begin:
            one = waiting[heap[0][1]]
            if one.rows < 0:
                prefill += cost.seconds(one.rows)
            elif chosen and total + one.rows > cost.max_step_tokens:
                break
            else:
                total += one.rows
            chosen.append(one)
            heapq.heappop(heap)
        free = begin + prefill + (cost.seconds(total) if total else 0.0)
        load.passes += 1
        load.rows += total
        load.busy_s += free - begin
        for one in chosen:
            _served(one, begin, free, sessions, heap, waiting)
    return load


def _served(
    one: _Waiting,
    begin: float,
    end: float,
    sessions: Sequence[Passes],
    heap: list[tuple[float, int]],
    waiting: dict[int, _Waiting],
) -> None:
    if not one.reply:
        one.reply.append(begin)
    one.reply.append(end)
    one.left -= 1
    if one.left:
        heapq.heappush(heap, (end, one.number))
        return
    del waiting[one.number]
    _resume(sessions[one.number], one.reply, one.number, heap, waiting)


def _resume(
    session: Passes,
    reply: Reply | None,
    number: int,
    heap: list[tuple[float, int]],
    waiting: dict[int, _Waiting],
) -> None:
    try:
        arrival, rows, count = next(session) if reply is None else session.send(reply)
    except StopIteration:
        return
    waiting[number] = _Waiting(number, rows, count, [])
    heapq.heappush(heap, (arrival, number))
