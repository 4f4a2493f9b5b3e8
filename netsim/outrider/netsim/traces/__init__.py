"""Measured links as data: trace files, passed by path, that a lane follows instead of a constant rate.

    trace = read("subway.csv")                       # the format guessed …
    trace = read("mahimahi:drive.down.gz?from=60s")  # … or said, read from its 60th second on
    link = profile("4g-medium").link.following(trace)

One loader a file, each the only place that knows its format: `mahimahi` (packet deliveries), `seconds` (time and
Mbit/s), `csv` (one value a second), `joint` (independent samples of down, up and round trip). No trace is shipped.
"""

from outrider.netsim.traces.capacity import Capacity
from outrider.netsim.traces.read import FORMATS, read
from outrider.netsim.traces.source import BadTrace
from outrider.netsim.traces.steps import Steps
from outrider.netsim.traces.trace import Trace

__all__ = ["FORMATS", "BadTrace", "Capacity", "Steps", "Trace", "read"]
