"""A run over time: what the link could carry, what the device held of it, and what stood on display."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from outrider.client.events import Label, LinkState
from outrider.netsim.events.order import when
from outrider.netsim.events.reader import EventLog
from outrider.netsim.events.schema import CapacityLine, LinkLine, TokensLine, TurnLine
from outrider.netsim.report.tally import DOWN, decided


@dataclass(slots=True)
class Ride:
    """Step functions, each a list of (second, value): the value holds from then on."""

    length_s: float = 0.0
    up_mbit: list[tuple[float, float | None]] = field(default_factory=list)
    """None is unlimited."""
    down_mbit: list[tuple[float, float | None]] = field(default_factory=list)
    shown: list[tuple[float, int]] = field(default_factory=list)
    """Tokens on display, of all turns and devices together."""
    verified: list[tuple[float, int]] = field(default_factory=list)
    """Of these, those that the target has decided."""
    alone: list[tuple[float, float]] = field(default_factory=list)
    """Spans (from, to) in which at least one device drafted alone."""
    turns: list[float] = field(default_factory=list)
    """When questions were asked."""


class _Device:
    """What one device has on display, and what of it is settled for good by earlier turns."""

    def __init__(self) -> None:
        self.start = 0
        self.labels: list[Label] = []
        self.before = 0
        self.before_verified = 0
        self.state = LinkState.CONNECTING

    def begin(self, start: int) -> None:
        self.before += len(self.labels)
        self.before_verified += decided(self.labels)
        self.start, self.labels = start, []

    def show(self, line: TokensLine) -> None:
        first = line.start - self.start
        if line.taken_back:
            del self.labels[first:]
        self.labels[first : first + len(line.labels)] = line.labels


def ride(log: EventLog) -> Ride:
    """The course of a log; text that was taken back lowers what is on display."""
    made = Ride(length_s=when(log.lines[-1]) if log.lines else 0.0)
    devices: defaultdict[str, _Device] = defaultdict(_Device)
    since: float | None = None
    for line in log.lines:
        match line:
            case CapacityLine():
                made.up_mbit.append((line.at_s, line.up_mbit))
                made.down_mbit.append((line.at_s, line.down_mbit))
            case TurnLine():
                devices[line.session].begin(line.start)
                made.turns.append(line.at_s)
            case TokensLine():
                devices[line.session].show(line)
                of = devices.values()
                made.shown.append((line.at_s, sum(d.before + len(d.labels) for d in of)))
                made.verified.append((line.at_s, sum(d.before_verified + decided(d.labels) for d in of)))
            case LinkLine():
                devices[line.session].state = line.state
                down = any(device.state in DOWN for device in devices.values())
                if down and since is None:
                    since = line.at_s
                elif not down and since is not None:
                    made.alone.append((since, line.at_s))
                    since = None
            case _:
                pass
    if since is not None:
        made.alone.append((since, made.length_s))
    return made
