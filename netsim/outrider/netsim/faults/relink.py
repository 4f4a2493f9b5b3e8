"""Relink: the link itself changes, as when a train leaves the station."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from outrider.netsim.faults.base import Controls, End, nothing
from outrider.netsim.settings import LinkSettings


@dataclass(frozen=True, slots=True)
class Relink:
    """Other figures for everything that enters the link from now on; no connection notices but by its speed.

    What is queued or in flight keeps its time; order within a connection is kept. A script's own kind: there is no
    text form on the command line, see scenarios.
    """

    name: str
    """Of what begins: a phase of a ride."""
    link: LinkSettings = field(repr=False)
    mark: str = ""
    """Tells apart the passes of a ride that repeats, so that each has delays and losses of its own."""

    kind: ClassVar[str] = "relink"
    instant: ClassVar[bool] = True

    def begin(self, controls: Controls) -> End:
        """Change both lanes; there is nothing to end."""
        controls.relink(self.link, f"{self.name}/{self.mark}")
        return nothing
