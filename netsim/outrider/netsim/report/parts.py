"""Where the time of a round goes: on the device, on the link, at the verifier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from outrider.client.events import Label
from outrider.netsim.events.schema import Line, RoundLine, TokensLine, TurnLine
from outrider.netsim.report.tables import Table
from outrider.netsim.report.tally import Counted


@dataclass(frozen=True, slots=True)
class Parts:
    """Means over the rounds with a draft, seconds. They add up to the time from one verdict to the next."""

    rounds: int
    device_s: float
    """From the verdict before to the sending of the draft; below 0 where a draft left before that verdict came."""
    link_s: float
    """On the wire in both directions, with everything that neither of the two clocks sees: transport, scheduling."""
    queue_s: float
    """Waiting at the verifier, by its clock."""
    compute_s: float
    """The verifier's work, by its clock."""

    @property
    def round_s(self) -> float:
        """All together."""
        return self.device_s + self.link_s + self.queue_s + self.compute_s


def parts(lines: Iterable[Line]) -> Parts | None:
    """The parts of the rounds of a log; None where there is no draft that follows a verdict of the same answer.

    Rounds in which the verifier may decode by itself beyond its verdict count too; plain steps, verdicts that came
    again, and drafts that nobody judged do not. Where the verifier decoded by itself after the verdict before, the
    device's time begins when the last of those tokens was shown.
    """
    since: dict[str, float] = {}
    found: list[tuple[float, float, float, float]] = []
    for line in lines:
        match line:
            case TurnLine():
                since.pop(line.session, None)
            case TokensLine() if line.session in since and Label.RUN_AHEAD in line.labels:
                since[line.session] = line.at_s
            case RoundLine():
                spent = line.server_queue_s + line.server_compute_s
                begun = since.get(line.session)
                judged = line.outcome == "verified" and line.kinds and line.nodes and not line.replayed
                if judged and begun is not None:
                    link_s = line.got_s - line.sent_s - spent
                    found.append((line.sent_s - begun, link_s, line.server_queue_s, line.server_compute_s))
                since[line.session] = line.got_s
            case _:
                pass
    return Parts(len(found), *map(fmean, zip(*found, strict=True))) if found else None


COLUMNS = ("rounds", "round ms", "device ms", "link ms", "queue ms", "verifier ms")


def table(logs: Iterable[Counted]) -> Table:
    """One row a log that has rounds."""
    told = ((each, parts(each.log.lines)) for each in logs)
    rows = tuple((each.name, each.run.mode, *cells(one)) for each, one in told if one is not None)
    return Table("Where a round goes", ("log", "mode", *COLUMNS), rows)


def cells(one: Parts) -> tuple[int | float, ...]:
    """The cells under `COLUMNS`."""
    times = (one.round_s, one.device_s, one.link_s, one.queue_s, one.compute_s)
    return (one.rounds, *(1e3 * seconds for seconds in times))
