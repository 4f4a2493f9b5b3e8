"""Reset: every connection is torn down at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from outrider.netsim.faults.base import Controls, End, nothing


@dataclass(frozen=True, slots=True)
class Reset:
    """Both sockets of every connection get a reset (RST); what was in flight is lost. New connections work."""

    kind: ClassVar[str] = "reset"
    instant: ClassVar[bool] = True

    def begin(self, controls: Controls) -> End:
        """Reset all; there is nothing to end."""
        controls.reset()
        return nothing
