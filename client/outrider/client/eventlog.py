"""What a run leaves behind, line by line: schema ``outrider.events/1.0``, JSON lines.

The first line is a `Run`; then every turn has a `TurnLine`, what happened in it, and an `EndLine`. A log without the
last `EndLine` is of a run that was killed. Virtual and real runs write the same lines.

All times are seconds since the run's start on the device's monotonic clock; all positions are absolute (the first
token of the prompt is 0). Nothing here can hold a prompt; text of the answer is there only where it was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from outrider.client.events import Label, LinkState

NAME = "outrider.events"
MAJOR, MINOR = 1, 0
SCHEMA = f"{NAME}/{MAJOR}.{MINOR}"
"""A newer minor version adds fields or kinds of line, which may be ignored; another major version is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """First line: how the run was made."""

    KIND: ClassVar[str] = "run"
    schema: str = SCHEMA
    mode: str = ""
    """How tokens come: "stream", "unary", "chain", "tree", "auto" (paced, with run-ahead) …; reports group by it."""
    link: str = ""
    """Name of the link or scenario; empty where nobody knows."""
    rtt_ms: float | None = None
    """Median round trip of that link without load, where it is known beforehand."""
    drafter: str = ""
    """Kind of drafter: "moa", "hybrid", "ngram", "none" …"""
    target: str = ""
    seed: int | None = None
    virtual: bool = False
    """Simulated time: no clock was read."""
    started: str | None = None
    """Wall clock, ISO 8601 in UTC; None in virtual runs, whose logs are equal byte for byte."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of programs and models, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLine:
    """A turn begins: a prompt was given."""

    KIND: ClassVar[str] = "turn"
    at_s: float
    turn: int
    """Number of the question in this log, from 1."""
    start: int
    """Position of the answer's first token = tokens of the prompt and what stands before it."""
    category: str = ""
    """Of the prompt: "code", "math", "chat" …; what tau is reported by."""
    prompt: str = ""
    """Name of the prompt (never its text)."""
    session: str = ""
    """Which device, where a log has several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLine:
    """A draft and its verdict."""

    KIND: ClassVar[str] = "round"
    turn: int
    round: int
    """Number on its stream; a stream opened anew counts from its start again."""
    sent_s: float
    """The draft was handed to the transport."""
    got_s: float
    """The verdict was read."""
    server_queue_s: float = 0.0
    """How long the draft waited at the verifier, by its clock."""
    server_compute_s: float = 0.0
    """What the verifier spent on it, by its clock."""
    server_at_s: float | None = None
    """When the verdict left, by the verifier's own clock of unknown origin, where it tells."""
    bytes_up: int = 0
    """Message bytes sent since the turn's previous round line (the first: since the turn's begin)."""
    bytes_down: int = 0
    """Message bytes received in the same time."""
    start: int | None = None
    """Position of the first committed token; None where nothing was committed."""
    nodes: int = 0
    """Drafted tokens; 0 is a plain step of the target."""
    depth: int = 0
    """Levels of the draft; equals `nodes` for a chain."""
    parents: tuple[int, ...] = ()
    """Per node its parent as on the wire: 0 = the base, k = node k-1."""
    path: tuple[int, ...] = ()
    """The nodes, counted from 0, whose tokens this verdict committed: each is the child of the one before."""
    kinds: tuple[Label, ...] = ()
    """Of the committed tokens: accepted ones, then recovered or bonus."""
    outcome: str = "verified"
    """What came of it: "verified", "superseded", "busy" or "ended"."""
    replayed: bool = False
    """The verdict came again, after an attachment: its tokens are counted elsewhere."""
    run_ahead: int | None = 0
    """Tokens that the verifier may decode by itself beyond those seen; None = no limit."""
    link: LinkState = LinkState.ONLINE
    """What the device held of its link when the verdict came."""
    session: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLine:
    """The link's state as the device knows it, or a note to the user."""

    KIND: ClassVar[str] = "link"
    at_s: float
    state: LinkState
    note: str = ""
    session: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensLine:
    """The display changed: first `taken_back` tokens left its end, then tokens stand at `start` …

    A position that is on display already gets the new label (and text); the others are appended.
    """

    KIND: ClassVar[str] = "tokens"
    at_s: float
    start: int
    labels: tuple[Label, ...] = ()
    taken_back: int = 0
    """Where above 0, the display ends at `start` afterwards."""
    pieces: tuple[str, ...] | None = None
    """Text per label, only where the user asked for it; a token may have none of its own."""
    session: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLine:
    """The link can carry this from now on, as the emulator knows it."""

    KIND: ClassVar[str] = "capacity"
    at_s: float
    up_mbit: float | None = None
    """Mbit/s (1e6); None is unlimited, 0 an outage."""
    down_mbit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLine:
    """A turn is over."""

    KIND: ClassVar[str] = "end"
    at_s: float
    turn: int
    reason: str
    """"stop", "length", "context", "cancelled", "offline", "error"."""
    verified: bool
    stats: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the turn: `TurnStats.as_dict()`, and what an experiment adds."""
    session: str = ""


Line = Run | TurnLine | RoundLine | LinkLine | TokensLine | CapacityLine | EndLine
KINDS: dict[str, type[Line]] = {
    line.KIND: line for line in (Run, TurnLine, RoundLine, LinkLine, TokensLine, CapacityLine, EndLine)
}


def dumps(line: Line) -> str:
    """One line of JSON without its newline; the same line always gives the same bytes.

    Times keep microseconds. Raises `ValueError` for numbers that JSON does not have.
    """
    told: dict[str, Any] = {"kind": line.KIND}
    for each in fields(line):
        value = getattr(line, each.name)
        told[each.name] = dict(value) if isinstance(value, Mapping) else value
        if each.name.endswith("_s") and value is not None:
            told[each.name] = round(value, 6)
    return json.dumps(told, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
