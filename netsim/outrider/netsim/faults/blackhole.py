"""Blackhole: bytes vanish, nobody is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from outrider.netsim.faults.base import Controls, End, both
from outrider.netsim.settings import Direction


@dataclass(frozen=True, slots=True)
class Blackhole:
    """Bytes and closes are swallowed, both sockets stay up; the end resets every connection it touched.

    So swallowed bytes are never followed by later ones. New connections made meanwhile are swallowed too.
    """

    direction: Direction | None = None
    """Only this direction; `None` is both."""

    kind: ClassVar[str] = "blackhole"
    instant: ClassVar[bool] = False

    def begin(self, controls: Controls) -> End:
        """Swallow; the end resets."""
        for direction in both(self.direction):
            controls.swallow(direction)

        def end() -> None:
            for direction in both(self.direction):
                controls.unswallow(direction)

        return end
