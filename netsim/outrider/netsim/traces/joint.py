"""CSV of joint samples: download, upload and round trip measured together, each row independent of the others.

A link follows one row for `every` seconds (10 unless said), then another: down, up and round trip change together, so
that their correlation is kept. The order is a shuffle by the seed, every row once a round, so that the round has
exactly the file's distribution. Rows may be chosen by the value of a column, e.g. `access_technology=4G`. Half of the
round trip is each way's. (The idea of ERRANT: D. Giordano et al., Computer Networks 176, 2020.)
"""

from __future__ import annotations

import random
from itertools import accumulate

from outrider.netsim.traces.capacity import Capacity
from outrider.netsim.traces.per_second import Row, columns_of, field_of, table
from outrider.netsim.traces.source import Source
from outrider.netsim.traces.steps import Steps
from outrider.netsim.traces.trace import Trace

DOWN = ("download_mbps", "down_mbps", "down_mbit")
UP = ("upload_mbps", "up_mbps", "up_mbit")
RTT = ("rtt_ms", "rtt")
EVERY_S = 10.0
MAX_RTT_MS = 1e6
Sample = tuple[float, float, float]
"""Mbit/s down, Mbit/s up, round trip in ms."""


def is_joint(names: list[str]) -> bool:
    """Whether a header has all three columns."""
    have = {name.strip().lower() for name in names}
    return all(have.intersection(known) for known in (DOWN, UP, RTT))


def load(source: Source, filters: dict[str, str], *, every_s: float = EVERY_S, seed: int = 0) -> Trace:
    """The link of the chosen rows, shuffled by the seed. Raises `BadTrace`, also if no row is chosen."""
    found = samples(source, filters)
    random.Random(f"outrider.netsim/{seed}/joint").shuffle(found)
    starts = tuple(accumulate([every_s] * (len(found) - 1), initial=0.0))
    return Trace(
        source=source.path,
        format="joint",
        down=Capacity.steps((every_s, down) for down, _, _ in found),
        up=Capacity.steps((every_s, up) for _, up, _ in found),
        rtt_ms=Steps(starts, tuple(rtt for _, _, rtt in found), every_s * len(found)),
        joint=True,
    )


def samples(source: Source, filters: dict[str, str]) -> list[Sample]:
    """The chosen rows in the file's order. Raises `BadTrace`."""
    rows = table(source)
    header = rows[0]
    if not is_joint(header.fields):
        expected = f"a header with one each of {'/'.join(DOWN)}, {'/'.join(UP)} and {'/'.join(RTT)}"
        raise source.bad(header.line, 1, expected, ",".join(header.fields))
    places = columns_of(source, header)
    for name in filters:
        if name.lower() not in places:
            raise source.bad(
                header.line, 1, f"a column {name}, since rows are chosen by it", ",".join(header.fields)
            )
    out = [_sample(source, row, places) for row in rows[1:] if _chosen(source, row, places, filters)]
    if not out:
        wanted = ", ".join(f"{name}={value}" for name, value in filters.items())
        raise source.bad(header.line + 1, 1, f"at least one row{' with ' if wanted else ''}{wanted}")
    return out


def _chosen(source: Source, row: Row, places: dict[str, int], filters: dict[str, str]) -> bool:
    pairs = ((field_of(source, row, places[name.lower()], name), value) for name, value in filters.items())
    return all(have.strip().lower() == value.strip().lower() for have, value in pairs)


def _sample(source: Source, row: Row, places: dict[str, int]) -> Sample:
    values = []
    for names, what, most in ((DOWN, "Mbit/s", 1e6), (UP, "Mbit/s", 1e6), (RTT, "milliseconds", MAX_RTT_MS)):
        name = next(name for name in names if name in places)
        text = field_of(source, row, places[name], name)
        value = source.number(row.line, places[name] + 1, text, f"{name} in {what}", most)
        if value == 0:
            raise source.bad(row.line, places[name] + 1, f"{name} above 0", text)
        values.append(value)
    down, up, rtt = values
    return down, up, rtt
