"""`seconds<TAB>Mbit/s`: a capacity at irregular times, each held until the next line.

Time starts at the first line. The last value is held for the mean step of the file, so that it counts like the others;
then the trace begins again. The form in which the HSDPA traces of Riiser et al. (MMSys 2013) are passed on.
"""

from __future__ import annotations

from outrider.netsim.traces.capacity import Capacity
from outrider.netsim.traces.source import Source
from outrider.netsim.traces.trace import Trace

ALONE_S = 1.0
"""How long the only value of a one-line file is held before it repeats."""
MAX_S = 1e9


def load(source: Source) -> Trace:
    """The trace of one direction. Raises `BadTrace`."""
    times: list[float] = []
    rates: list[float] = []
    line = 1
    for line, text in source.filled():
        fields = text.split()
        if len(fields) != 2:
            raise source.bad(line, min(len(fields), 2) + 1, "two fields, seconds<TAB>Mbit/s", text.strip())
        time = source.number(line, 1, fields[0], "seconds", MAX_S)
        if times and time <= times[-1]:
            raise source.bad(line, 1, f"seconds above the line before ({times[-1]:g})", fields[0])
        times.append(time)
        rates.append(source.number(line, 2, fields[1], "Mbit/s"))
    if not any(rates):
        raise source.bad(line, 2, "some Mbit/s above 0 in the file", "0 on every line")
    count = len(times) - 1
    held = [b - a for a, b in zip(times, times[1:], strict=False)]
    held.append((times[-1] - times[0]) / count if count else ALONE_S)
    capacity = Capacity.steps(zip(held, rates, strict=True))
    return Trace(source=source.path, format="seconds", down=capacity, up=capacity)
