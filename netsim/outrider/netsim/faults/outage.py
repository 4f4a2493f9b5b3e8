"""Outage: the link stands still, then goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from outrider.netsim.faults.base import Controls, End, both
from outrider.netsim.settings import Direction


@dataclass(frozen=True, slots=True)
class Outage:
    """Bytes are held and go on afterwards, intact and in order, as behind a radio without coverage.

    New connections hang in their handshake meanwhile. Without a duration it lasts for ever.
    """

    direction: Direction | None = None
    """Only this direction; `None` is both."""

    kind: ClassVar[str] = "outage"
    instant: ClassVar[bool] = False

    def begin(self, controls: Controls) -> End:
        """Stop the lanes; the end starts them again."""
        for direction in both(self.direction):
            controls.stall(direction)

        def end() -> None:
            for direction in both(self.direction):
                controls.unstall(direction)

        return end
