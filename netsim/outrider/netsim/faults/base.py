"""What a fault is, and what it may ask of the network it strikes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from outrider.netsim.pipe import CutArm, CutThen
from outrider.netsim.settings import DIRECTIONS, Direction, LinkSettings

End = Callable[[], None]
"""Ends a fault. Called once, when its time is over; a fault without an end lasts as long as the network."""


class Controls(Protocol):
    """The handles of a running network: the proxy's switchboard, a simulator's, or a test's fake."""

    def stall(self, direction: Direction) -> None:
        """Stop the lane's time: bytes wait. Nests."""

    def unstall(self, direction: Direction) -> None:
        """End one stall: bytes go on with their old spacing."""

    def swallow(self, direction: Direction) -> None:
        """Drop this direction's bytes, of present connections and of those made until `unswallow`. Nests."""

    def unswallow(self, direction: Direction) -> None:
        """End one swallow: every connection that swallowed in this direction is reset."""

    def hold(self, directions: tuple[Direction, ...]) -> tuple[int, ...]:
        """Present connections forward nothing in these directions any more; returns their numbers."""

    def reset(self, connections: tuple[int, ...] | None = None) -> None:
        """Reset both sockets of these connections (of all: `None`) at once; what is in flight is lost."""

    def refuse(self) -> None:
        """Refuse new connections. Nests."""

    def accept(self) -> None:
        """End one refusal."""

    def arm_cut(self, direction: Direction, nbytes: int, then: CutThen) -> CutArm:
        """Cut after `nbytes` more bytes of this direction, counted over all connections."""

    def disarm_cut(self, arm: CutArm) -> None:
        """Take back a cut that has not fired; reset the connection it holds if it has."""

    def relink(self, link: LinkSettings, name: str) -> None:
        """Other settings for what enters both lanes from now on; `name` marks the change (see `Lane.switch`)."""


class Fault(Protocol):
    """One kind of fault: a frozen dataclass of numbers, and one method."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    kind: ClassVar[str]
    instant: ClassVar[bool]
    """True for a fault that is over at once and takes no duration."""

    def begin(self, controls: Controls) -> End:
        """Strike; the returned call ends it."""


def nothing() -> None:
    """The end of a fault that leaves nothing to undo."""


def both(direction: Direction | None) -> tuple[Direction, ...]:
    """The directions a fault strikes: the one named, or both."""
    return DIRECTIONS if direction is None else (direction,)
