"""Cut: the connection breaks after exactly so many bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults.base import Controls, End
from outrider.netsim.pipe import CutThen
from outrider.netsim.settings import Direction


@dataclass(frozen=True, slots=True)
class Cut:
    """After exactly `nbytes` more bytes of one direction its connection is held or reset; once.

    Counted from the fault's beginning over all connections. 0 strikes in front of the first byte, a number equal
    to a message's length right behind its last byte. Raises `BadConfig` for a negative count.
    """

    direction: Direction
    nbytes: int
    then: CutThen = "reset"
    """`reset` both sockets, or `hold` this direction's rest (until the end, which resets)."""

    kind: ClassVar[str] = "cut"
    instant: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            raise BadConfig("bytes", f"expected a number of bytes >= 0, got {self.nbytes}")

    def begin(self, controls: Controls) -> End:
        """Arm the cut; the end takes it back, or resets what it holds."""
        arm = controls.arm_cut(self.direction, self.nbytes, self.then)

        def end() -> None:
            controls.disarm_cut(arm)

        return end
