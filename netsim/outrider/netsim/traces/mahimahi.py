"""mahimahi's packet deliveries: one whole number a line, milliseconds since the start, never falling.

Each line is one chance to deliver 1,500 bytes at that millisecond; equal lines are several chances. The trace begins
again at its last line's time. (mahimahi, R. Netravali et al., USENIX ATC 2015, `mm-link`.)

Here a chance at t ms is spread over the millisecond that ends at t, so that a packet that has the link for itself
leaves at exactly t, and the bytes by t are 1,500 times the lines up to t. A chance at 0 is the last line's moment of
the round before.
"""

from __future__ import annotations

import re
from collections import Counter

from outrider.netsim.traces.capacity import Capacity
from outrider.netsim.traces.source import Source
from outrider.netsim.traces.trace import Trace

PACKET_BYTES = 1500
MAX_MS = 10**10
_WHOLE = re.compile(r"\d{1,11}", re.ASCII)
_EXPECTED = (
    "milliseconds since the start, a whole number not below the line before (one Mbit/s a line is csv:PATH)"
)


def load(source: Source) -> Trace:
    """The trace of one direction. Raises `BadTrace`."""
    chances: Counter[int] = Counter()
    line, last = 1, 0
    for line, text in source.filled():
        text = text.strip()
        now = int(text) if _WHOLE.fullmatch(text) else -1
        if not last <= now <= MAX_MS:
            raise source.bad(line, 1, _EXPECTED, text)
        chances[now] += 1
        last = now
    if last == 0:
        raise source.bad(line, 1, "a last line above 0: it is the time after which the trace repeats", "0")
    chances[last] += chances.pop(0, 0)
    capacity = _curve(chances)
    return Trace(source=source.path, format="mahimahi", down=capacity, up=capacity)


def _curve(chances: Counter[int]) -> Capacity:
    """The cumulative curve, with a corner only where the count per millisecond changes."""
    times, sums = [0], [0]
    before = None
    for now in sorted(chances):
        if times[-1] < now - 1:  # nothing at all in between
            times.append(now - 1)
            sums.append(sums[-1])
            before = 0
        total = sums[-1] + PACKET_BYTES * chances[now]
        if chances[now] == before:
            times[-1], sums[-1] = now, total
        else:
            times.append(now)
            sums.append(total)
        before = chances[now]
    return Capacity(tuple(t / 1000 for t in times), tuple(map(float, sums)))
