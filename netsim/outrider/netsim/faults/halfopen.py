"""Half-open: the connections are dead, their sockets do not know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from outrider.netsim.faults.base import Controls, End, both
from outrider.netsim.settings import Direction


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """Present connections stay up and forward nothing, as when a middlebox forgot them; new connections work.

    Bytes and closes are held, for ever or until the end, which resets these connections.
    """

    direction: Direction | None = None
    """Only this direction; `None` is both."""

    kind: ClassVar[str] = "halfopen"
    instant: ClassVar[bool] = False

    def begin(self, controls: Controls) -> End:
        """Hold; the end resets what was held."""
        held = controls.hold(both(self.direction))

        def end() -> None:
            controls.reset(held)

        return end
