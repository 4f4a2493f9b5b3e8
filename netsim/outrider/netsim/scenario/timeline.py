"""What a ride will do, without riding: for `--dry-run`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from outrider.netsim.faults import Relink, Scheduled
from outrider.netsim.faults.injector import describe
from outrider.netsim.scenario.ride import Ride
from outrider.netsim.settings import LinkSettings

DRY_RUN_S = 600.0
"""At most so much of an endless ride is told."""


def entries(ride: Ride) -> list[dict[str, Any]]:
    """Phases and faults of the first pass (or ten minutes of it), in order, then what waits for tokens."""
    reach = min(ride.lap_s, DRY_RUN_S)
    told: list[tuple[float, dict[str, Any]]] = [*_phases(ride, reach), *_faults(ride, reach)]
    by_token = [
        _fault(entry) | {"token": entry.token} for entry in ride.scenario.faults if entry.token is not None
    ]
    return [entry for _, entry in sorted(told, key=lambda each: each[0])] + by_token


def _phases(ride: Ride, reach: float) -> Iterator[tuple[float, dict[str, Any]]]:
    for span in itertools.takewhile(lambda span: span.start_s < reach, ride.spans()):
        yield (
            span.start_s,
            {
                "at_s": span.start_s,
                "for_s": None if math.isinf(span.end_s) else round(span.end_s - span.start_s, 6),
                "phase": span.phase.name,
                "link": span.phase.link_name,
            },
        )


def _faults(ride: Ride, reach: float) -> Iterator[tuple[float, dict[str, Any]]]:
    timed = (entry for entry in ride.scenario.faults if entry.at_s is not None)
    own = itertools.takewhile(lambda entry: (entry.at_s or 0.0) < reach, ride.outages(ride.scenario.seed))
    for entry in itertools.chain(timed, own):
        if not isinstance(entry.fault, Relink):
            at = entry.at_s or 0.0
            yield at, {"at_s": round(at, 3)} | _fault(entry)


def _fault(entry: Scheduled) -> dict[str, Any]:
    return describe(entry.fault) | {"for_s": None if entry.for_s is None else round(entry.for_s, 3)}


def timeline(ride: Ride, title: str) -> Table:
    """The same for people."""
    table = Table(title=title)
    for column, justify in (("at", "right"), ("for", "right"), ("what", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    links = {phase.name: phase.link for phase in ride.scenario.phases}
    for entry in entries(ride):
        at = f"token {entry['token']}" if "token" in entry else f"{entry['at_s']:.1f} s"
        if "phase" in entry:
            what = f"{entry['phase']}: {entry['link']} ({figures_of(links[entry['phase']])})"
        else:
            extra = [
                f"{name} {entry[name]}" for name in ("direction", "nbytes") if entry.get(name) is not None
            ]
            what = "  " + " ".join([entry["fault"], *extra])
        length = entry["for_s"]
        table.add_row(at, "–" if length is None else f"{length:.1f} s", what)
    return table


def figures_of(link: LinkSettings) -> str:
    """A link's figures in a line."""
    rates = "/".join(
        f"trace, mean {lane.bytes_per_s * 8e-6:.3g}"
        if lane.trace is not None
        else ("free" if lane.rate_mbit is None else f"{lane.rate_mbit:g}")
        for lane in (link.down, link.up)
    )
    return f"{link.rtt_s * 1e3:g} ms, {rates} Mbit/s down/up, loss {link.up.loss:.1%}"
