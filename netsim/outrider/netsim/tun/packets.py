"""`PacketLink`: when a packet arrives, or that it is lost. Pure; the clock is passed in.

Rate, trace, queue, delay and outages are the lanes' and the virtual link's, so all drivers share them. Two things
differ, because packets are real here: a lost one is dropped instead of delayed, and so is one that meets a full queue.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import Outage, Schedule
from outrider.netsim.link import Bursts, Link
from outrider.netsim.settings import DIRECTIONS, Direction, LaneSettings, LinkSettings
from outrider.netsim.virtual.wire import VirtualLink


@dataclass(slots=True)
class Counts:
    """Packets of one direction."""

    passed: int = 0
    lost: int = 0
    """By the loss process."""
    refused: int = 0
    """By a full queue."""


class PacketLink:
    """A link for packets; times in seconds from 0. Raises `BadConfig` for faults other than outages."""

    def __init__(self, settings: LinkSettings, schedule: Schedule | None = None, seed: int = 0) -> None:
        for entry in (schedule or Schedule()).entries:
            if not isinstance(entry.fault, Outage):
                raise BadConfig(
                    entry.fault.kind,
                    "packets know outages only, they belong to no connection; drive other faults through the proxy",
                )
        lossless = replace(settings, up=_lossless(settings.up), down=_lossless(settings.down))
        self._wire = VirtualLink(Link(lossless, seed), schedule, seed)
        self._bursts: dict[Direction, Bursts] = {
            d: Bursts(settings.lane(d), random.Random(f"outrider.netsim/{seed}/{d}/packets"))
            for d in DIRECTIONS
        }
        self.counts: dict[Direction, Counts] = {d: Counts() for d in DIRECTIONS}

    def arrival(self, direction: Direction, nbytes: int, now: float) -> float | None:
        """When a packet that enters at `now` arrives (inf: it is held for good); `None`: it is dropped."""
        counts, bursts, way = self.counts[direction], self._bursts[direction], self._wire.ways[direction]
        bursts.at(now)
        if bursts.lost():
            counts.lost += 1
            return None
        if way.lane.room_bytes(way.stalls.lane_time(now)) < nbytes:
            counts.refused += 1
            return None
        counts.passed += 1
        return way.send(nbytes, now)


def _lossless(lane: LaneSettings) -> LaneSettings:
    return replace(lane, loss=0.0, burst=1.0)
