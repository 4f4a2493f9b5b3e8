"""What the user of a simulated device saw, and when."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(slots=True)
class Display:
    """Counts of one answer's display. A moment is a time at which at least one new token appeared."""

    first_at: float = math.inf
    last_at: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    """Between successive moments."""
    provisional: int = 0
    """Tokens shown before they were verified."""
    kept: int = 0
    """Of these, tokens that the target then said too."""
    revised: int = 0
    """Of these, tokens that were taken back."""
    alone_s: float = 0.0
    """Time for which a verdict was late."""

    def show(self, at: float) -> None:
        """At least one new token appears."""
        if self.first_at == math.inf:
            self.first_at = at
        else:
            self.gaps_s.append(at - self.last_at)
        self.last_at = at
