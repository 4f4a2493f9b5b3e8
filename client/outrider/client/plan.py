"""The contract between the session machine and pacing: what is known, and what to do next with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outrider.client.events import LinkState
from outrider.shared.frames import UNLIMITED, CostCurve, Feature, Limits


@dataclass(frozen=True, slots=True)
class PacingInputs:
    """What the session knows when it decides about the next round. Times in seconds, None = not measured yet."""

    link: LinkState
    length: int
    """Committed tokens."""
    remaining: int
    """Tokens until the turn's limit."""
    drafter: bool
    """Whether a drafter is loaded."""
    granted: frozenset[Feature]
    limits: Limits
    cost: CostCurve
    rtt_s: float | None
    """Smoothed round-trip time of the link, without queueing and computing at the verifier."""
    queue_s: float
    """Smoothed time in the verifier's queue."""
    draft_node_s: float | None
    """Smoothed time per drafted token on this device."""
    rounds: int = 0
    """Verified rounds of this session whose draft was not trimmed and not empty."""
    drafted: int = 0
    """Best-path tokens drafted in these rounds."""
    accepted: int = 0
    """Of these, accepted."""
    dry: int = 0
    """Rounds sent without a draft because the drafter had nothing to say, since this drafter is in use."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next round may be."""

    max_depth: int
    """Tokens from base to leaf; 0 = empty drafts, that is, streaming or single steps."""
    max_nodes: int
    tree: bool = False
    floor: float = -float("inf")
    """Cumulative log-probability below which a draft stops growing."""
    run_ahead: int = 0
    """Tokens beyond the committed text that the verifier may decode alone; UNLIMITED = no limit."""
    rounds: int = 1
    """Rounds in flight, at most; more than one needs FEATURE_PIPELINE."""
    reason: str = ""
    """For people: why."""


class Pacing(Protocol):
    """Decides about each round."""

    def plan(self, inputs: PacingInputs) -> Plan:
        """What the next round may be."""
        ...


@dataclass(frozen=True, slots=True)
class FixedPacing:
    """Always the same plan."""

    fixed: Plan

    def plan(self, inputs: PacingInputs) -> Plan:
        """The fixed plan, whatever is known."""
        del inputs
        return self.fixed


STREAMING = FixedPacing(Plan(0, 0, run_ahead=UNLIMITED, reason="plain streaming"))
"""Empty drafts and unlimited run-ahead: what any remote decoding does."""
