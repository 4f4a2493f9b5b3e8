"""The tail: what the device drafted beyond the committed text. Pure.

A late verdict, a run-ahead commit, catch-up and reconcile are one operation: commit tokens, drop the tail's head while
it is equal, cut the tail at the first difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit did to the tail."""

    kept: int
    """Leading committed ids that the tail had foreseen."""
    shown: int
    """Of these, ids that were on display."""
    revised: int
    """Displayed ids, from the first difference on, that must be taken back."""
    cut: bool
    """Whether the tail was cut: the drafter holds ids that are wrong now."""


@dataclass(slots=True)
class Tail:
    """Drafted ids at positions start, start+1 …; the first ``shown`` of them are on display as provisional."""

    start: int = 0
    ids: list[int] = field(default_factory=list)
    shown: int = 0

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.start + len(self.ids)

    def commit(self, start: int, ids: Sequence[int]) -> Committed:
        """The target has decided ``ids`` at positions start …, where the tail begins.

        Raises ValueError when ``start`` is not the tail's start: the caller strips what it has committed already.
        """
        if start != self.start:
            raise ValueError(f"commit at {start}, but the tail starts at {self.start}")
        kept = 0
        while kept < min(len(ids), len(self.ids)) and ids[kept] == self.ids[kept]:
            kept += 1
        shown = min(kept, self.shown)
        cut = kept < len(ids) and kept < len(self.ids)
        revised = self.shown - shown if cut else 0
        self.ids = [] if cut else self.ids[kept:]
        self.shown = 0 if cut else self.shown - shown
        self.start += len(ids)
        return Committed(kept, shown, revised, cut)

    def extend(self, ids: Sequence[int]) -> None:
        """Append drafted ids."""
        self.ids.extend(ids)

    def show(self) -> tuple[int, tuple[int, ...]]:
        """Everything is on display now: position and ids of what was not yet."""
        start, ids = self.start + self.shown, tuple(self.ids[self.shown :])
        self.shown = len(self.ids)
        return start, ids

    def cut(self, length: int) -> int:
        """Keep positions below ``length``; the number of displayed ids that must be taken back."""
        kept = max(length - self.start, 0)
        revised = max(self.shown - kept, 0)
        del self.ids[kept:]
        self.shown = min(self.shown, kept)
        return revised
