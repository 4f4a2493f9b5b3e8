"""What a scenario says, as frozen numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from outrider.netsim.faults import OutageProcess, Scheduled
from outrider.netsim.settings import LinkSettings

Mode = Literal["stream", "unary", "chain", "tree", "auto"]
"""Plain remote streaming; one call a token; drafts on the device as chains or trees; drafts or streaming, whichever is
expected to be faster."""
MODES: tuple[Mode, ...] = get_args(Mode)

After = Literal["repeat", "end", "stay"]
"""What comes after the last phase: the first one again, the end of the run, or the last phase goes on."""
AFTERS: tuple[After, ...] = get_args(After)

QUESTION = "Write a Python function that returns the sum of a list of numbers, then explain it step by step."


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """How the device decodes."""

    mode: Mode = "auto"
    drafter: str = "auto"
    """"auto", "ngram", "hybrid", or a kind of drafter the verifier serves."""
    depth: int | None = None
    """Drafts of always this many levels; None: sized by what they bring."""
    nodes: int | None = None
    """Trees of always this many nodes; only with `depth`."""
    rule: str = "auto"
    """How verdicts are reached, as the device's ``--rule``."""
    max_tokens: int = 128
    temperature: float = 0.0
    patience_s: float = 30.0
    """How long without the link until an answer ends with what was drafted alone."""


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt: a user's message."""

    name: str
    text: str
    category: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of the ride with one link."""

    name: str
    link: LinkSettings
    link_name: str
    """For people: the preset, "own figures", the trace."""
    duration_s: float | None = None
    """None: to the end, whenever that is."""
    outages: OutageProcess | None = None
    faults: tuple[Scheduled, ...] = ()
    """Their seconds count from the phase's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A whole ride: who asks what, over which links, and what goes wrong on the way."""

    name: str
    phases: tuple[Phase, ...]
    summary: str = ""
    seed: int = 0
    after: After = "repeat"
    device: DeviceSpec = DeviceSpec()
    questions: tuple[Question, ...] = (Question("default", QUESTION),)
    faults: tuple[Scheduled, ...] = ()
    """Of the ride as a whole: seconds from its start, or tokens shown since then, over all answers."""
    path: Path | None = None
