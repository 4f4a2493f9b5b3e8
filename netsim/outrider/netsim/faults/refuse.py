"""Refuse: nobody listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from outrider.netsim.faults.base import Controls, End


@dataclass(frozen=True, slots=True)
class Refuse:
    """New connections are refused, as when the server's process is down; present ones go on.

    For a server that died, script a `Reset` at the same time.
    """

    kind: ClassVar[str] = "refuse"
    instant: ClassVar[bool] = False

    def begin(self, controls: Controls) -> End:
        """Stop listening; the end listens again, on the same port."""
        controls.refuse()
        return controls.accept
