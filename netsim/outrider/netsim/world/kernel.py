"""Virtual time: a heap of things to do, in order of time and then of arrival."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Kernel:
    """Runs actions in order of virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Action]] = []
        self._number = 0

    def at(self, time: float, action: Action) -> None:
        """Do something at ``time`` (now, if that has passed)."""
        self._number += 1
        heapq.heappush(self._heap, (max(time, self.now), self._number, action))

    def after(self, delay: float, action: Action) -> None:
        """Do something ``delay`` seconds from now."""
        self.at(self.now + delay, action)

    def run(self, until: float, done: Callable[[], bool], most_steps: int) -> bool:
        """Run until ``done``; False when time or steps ran out first."""
        while self._heap and not done():
            time, _, action = heapq.heappop(self._heap)
            if time > until or self.steps >= most_steps:
                return False
            self.now = time
            self.steps += 1
            action()
        return done()
