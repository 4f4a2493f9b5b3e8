"""A verifier that lies never crashes or hangs a device, and never gets text labelled that a check could refuse."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import IntEnum
from typing import Any

import pytest

from outrider.cloud.events import Priority
from outrider.cloud.table import SessionTable
from outrider.cloud.table_state import Stream
from outrider.netsim.world.schedule import make_schedule
from outrider.netsim.world.world import Build, run
from outrider.shared.errors import InvalidField
from outrider.shared.frames import (
    Commit,
    DownFrame,
    Drain,
    Failure,
    FailureReason,
    Opened,
    Pong,
    Rows,
    TurnEnd,
    Verdict,
)
from outrider.shared.wire import DownChecks, down_from_wire, down_to_wire

KINDS: tuple[type[Any], ...] = (Opened, Verdict, Commit, Rows, TurnEnd)
UNCHECKABLE = frozenset({"ids", "kinds", "commit.ids", "commit.kinds", "reason", "data"})
"""Lies about what the target said, or that somebody cancelled: only a second verifier could tell."""
SEEDS = range(40, 44)


def lies_about(value: Any) -> Iterator[Any]:
    """Other values of the same kind."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, IntEnum):
        yield from (member for member in type(value) if member is not value)
    elif isinstance(value, int):
        yield from {0, value + 1, max(value - 1, 0), 2**31} - {value}
    elif isinstance(value, bytes):
        yield from (b"", value + b"\0", value[:-1], b"\xff" * len(value))
    elif isinstance(value, tuple) and value:
        yield from ((), value[:-1], value[1:], value + value[:1])


def lie(frame: Any, number: int) -> tuple[str, Any] | None:
    """The ``number``-th lie about a frame: the path of what is changed, and the frame."""
    for path, changed in _all_lies(frame):
        if number == 0:
            return path, changed
        number -= 1
    return None


def _all_lies(frame: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(frame):
        value = getattr(frame, field.name)
        if is_dataclass(value):
            for path, changed in _all_lies(value):
                yield f"{field.name}.{path}", replace(frame, **{field.name: changed})
        else:
            for changed in lies_about(value):
                yield field.name, replace(frame, **{field.name: changed})


def liar(kind: type[Any], number: int, told: set[str]) -> type[SessionTable]:
    """A table that tells the ``number``-th lie in every third frame of a kind that passes the edge."""

    class Liar(SessionTable):
        def send(self, stream: Stream, frame: DownFrame, priority: Priority = Priority.COMMIT) -> None:
            rng = random.Random(f"{stream.number}-{stream.sent_at}")
            wrong = lie(frame, number) if isinstance(frame, kind) and rng.random() < 0.5 else None
            if wrong is not None and passes_the_edge(wrong[1]):
                told.add(wrong[0])
                frame = wrong[1]
            super().send(stream, frame, priority)

    return Liar


def passes_the_edge(frame: DownFrame) -> bool:
    """Whether the schema checks let a frame through to the machine."""
    try:
        down_from_wire(down_to_wire(frame), DownChecks(97, 4096))
    except (InvalidField, ValueError, OverflowError):
        return False
    return True


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_lie_about_every_field(kind: type[Any]) -> None:
    """No exception and no endless waiting; wrong text only where the lie is about the target's own word."""
    told_in_all = 0
    number = 0
    while True:
        told: set[str] = set()
        for seed in SEEDS:
            result = run(make_schedule(seed), Build(table=liar(kind, number, told)))
            laws = {(v.law, v.detail.split(":")[0]) for v in result.violations}
            assert not any("exception" in detail for _, detail in laws), (told, laws)
            # A verifier that is of no use is an outage, which may last; one that was given up must not be waited for.
            hangs = any("not finished" in detail for _, detail in laws)
            assert not hangs or not any("given up" in detail for _, detail in laws), (seed, told, laws)
            if told and not told & UNCHECKABLE:
                wrong = {
                    detail for law, detail in laws if law == "I3" or (law == "I4" and "verified" in detail)
                }
                assert not wrong, (seed, told, wrong)
        told_in_all += len(told)
        number += 1
        if number > 24:
            break
    assert told_in_all >= 3


class Babbler(SessionTable):
    """Says things nobody asked for."""

    def send(self, stream: Stream, frame: DownFrame, priority: Priority = Priority.COMMIT) -> None:
        rng = random.Random(f"{stream.number}-{self.now}-{type(frame).__name__}")
        before: list[DownFrame] = [
            Pong(77),
            Drain(1000, 1000),
            Verdict(99, rng.choice(list(_outcomes()))),
            Failure(rng.choice(list(FailureReason)), "no", last_epoch=2**32 - 1, retry_after_ms=60_000),
        ]
        if rng.random() < 0.2:
            super().send(stream, rng.choice(before), priority)
        if rng.random() < 0.9:
            super().send(stream, frame, priority)
        if rng.random() < 0.1:
            super().send(stream, frame, priority)


def _outcomes() -> Iterator[Any]:
    from outrider.shared.frames import RoundOutcome

    return (outcome for outcome in RoundOutcome if outcome is not RoundOutcome.VERIFIED)


def test_babble_loss_and_repetition() -> None:
    """Frames out of nowhere, frames missing, frames twice: no exception, and no wrong word."""
    for seed in range(40):
        result = run(make_schedule(seed), Build(table=Babbler))
        for violation in result.violations:
            assert "exception" not in violation.detail, (seed, violation)
            assert violation.law != "I3" or "ended" in violation.detail, (seed, violation)
