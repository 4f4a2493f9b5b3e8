"""The contract between the session machine and pacing: what is known, and what to do next with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outrider.client.drafter import Law, Prices
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
    """Time per node that goes through the drafter on this device, fitted to the drafts of the session."""
    draft_pass_s: float = 0.0
    """Time of every run of the drafter beside that, however many nodes go through together."""
    excess_s: float = 0.0
    """Smoothed time that the verifier takes for a verdict beyond the bare pass of that width."""
    rounds: int = 0
    """Verified rounds of this session whose draft was not trimmed and not empty."""
    judged: int = 0
    """First guesses that the target came to judge in these rounds: those along the best path up to the first miss."""
    accepted: int = 0
    """Of these, accepted."""
    dry: int = 0
    """Rounds sent without a draft because the drafter had nothing to say, since this drafter is in use."""
    law: Law = ()
    """How often the drafter's children are right, as measured when it was made; () = not known."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next round may be."""

    max_depth: int
    """Tokens from base to leaf; 0 = empty drafts, that is, streaming or single steps."""
    max_nodes: int
    tree: bool = False
    floor: float = -float("inf")
    """Cumulative log-probability below which a draft stops growing."""
    prices: Prices | None = None
    """What drafts have to be worth; ``max_depth`` and ``max_nodes`` only bound what is worth drafting."""
    ahead: int | None = None
    """Tokens to draft ahead while a verdict is awaited; None = ``max_depth``."""
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
