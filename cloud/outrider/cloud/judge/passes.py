"""Passes of the target for many texts at once: each text is a coroutine that says what to feed and gets what was seen.

So mining and comparing read like a loop over one text, and the engine still works on packed passes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.judge.features import States

Rows = list[NDArray[np.float32]]
"""State rows of a drafter, per plane [n, width]."""


@dataclass(frozen=True, slots=True)
class Feed:
    """``ids`` of one text from position ``start`` on, then a drafted chain."""

    key: int
    """Of the text."""
    start: int
    """Positions before it are held already, and what was held from it on is dropped."""
    ids: tuple[int, ...]
    draft: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What the target computed; row 0 stands at the last of `Feed.ids`, row k at drafted token k-1."""

    logits: NDArray[np.float32]
    """[1 + drafted, vocabulary]; row k chooses what follows its token."""
    prenorm: NDArray[np.float32]
    """[1 + drafted, hidden], the last layer's state before the final norm."""
    postnorm: NDArray[np.float32]
    """The same after it."""

    def states(self, row: int) -> States:
        """Copies of one row's states."""
        return States(self.prenorm[row].copy(), self.postnorm[row].copy())


class Passes(Protocol):
    """A target that can be fed, with the rows its drafter gets."""

    def look(self, feeds: Sequence[Feed]) -> list[Seen]:
        """One packed pass over distinct texts."""

    def logits(self, states: States) -> NDArray[np.float32]:
        """[vocabulary]: what the LM head says to a state seen before."""

    def rows(self, key: int, start: int, stop: int) -> Rows:
        """The drafter's state rows of positions start … stop-1, as a device decodes them; [] if it takes none."""

    def forget(self, key: int) -> None:
        """Drop a text."""


T = TypeVar("T")
Script = Generator[Feed, Seen, T]


def together(scripts: Iterable[Script[T]], passes: Passes, width: int) -> Iterator[T]:
    """Run scripts, ``width`` of them at once, one packed pass per step; results come as scripts end."""
    waiting = iter(scripts)
    running: list[tuple[Script[T], Feed]] = []
    while True:
        while len(running) < width and (script := next(waiting, None)) is not None:
            try:
                running.append((script, next(script)))
            except StopIteration as end:
                yield end.value
        if not running:
            return
        seen = passes.look([feed for _, feed in running])
        going: list[tuple[Script[T], Feed]] = []
        for (script, _), answer in zip(running, seen, strict=True):
            try:
                going.append((script, script.send(answer)))
            except StopIteration as end:
                yield end.value
        running = going


@dataclass(slots=True)
class Line:
    """One text and what the target holds of it, so that only the rest is fed."""

    key: int
    held: list[int] = field(default_factory=list)

    def feed(self, ids: Sequence[int], draft: Sequence[int] = ()) -> Feed:
        """The feed that makes the target read ``ids``, its last one at least, and then ``draft``."""
        start = 0
        for one, other in zip(self.held, ids[:-1], strict=False):
            if one != other:
                break
            start += 1
        self.held = [*ids, *draft]
        return Feed(self.key, start, tuple(ids[start:]), tuple(draft))


@dataclass(frozen=True, slots=True)
class Grown:
    """A greedy continuation."""

    tokens: list[int]
    states: list[States]
    """Entry k chose token k: the first one is at the last id of what was continued."""


class Ended(Protocol):
    """Whether a continuation is long enough."""

    def __call__(self, tokens: Sequence[int]) -> bool:
        """``tokens``: those written so far."""


def grow(line: Line, ids: Sequence[int], limit: int, ended: Ended) -> Script[Grown]:
    """The target's greedy tokens after ``ids``, until ``ended`` or ``limit``; with limit 0 it only reads ``ids``."""
    tokens: list[int] = []
    states: list[States] = []
    while True:
        seen = yield line.feed([*ids, *tokens])
        states.append(seen.states(0))
        if len(tokens) >= limit:
            return Grown(tokens, states)
        tokens.append(int(np.argmax(seen.logits[0])))
        if len(tokens) >= limit or ended(tokens):
            return Grown(tokens, states)
