"""How much a device drafts: the decisions of its own pacing, each made once.

A decision depends on few numbers: the learned acceptance in percent, the round trip and the verifier's delays in
milliseconds, how much of the answer is left. Simulations ask for the same ones again and again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from outrider.client.cost import StepCost
from outrider.client.drafter import Law
from outrider.client.events import LinkState
from outrider.client.pacing import (
    ASSUMED_RTT_S,
    MAX_DEPTH,
    MEASURED_GUESSES,
    PRIOR_ALPHA,
    PRIOR_GUESSES,
    TRY_EVERY,
    TRY_FOR,
    DraftPacing,
    choose,
    draft_s,
    estimate_alpha,
    law_of,
    overhead_s,
    room,
    step_cost,
    trunk_mean,
)
from outrider.client.plan import PacingInputs, Plan
from outrider.netsim.virtual.acceptance import Acceptance, Shape, shape_of
from outrider.netsim.virtual.server import VerifierCost
from outrider.netsim.virtual.sizes import draft_bytes
from outrider.shared.frames import Feature, Limits

FEATURES = frozenset({Feature.TREES, Feature.RUN_AHEAD, Feature.STATE_ROWS})
"""What the verifier grants here. Pipelining is left out: a second round in flight is not simulated."""
LIMITS = Limits()
Key = tuple[int, int, int, bool]
"""Acceptance in percent, overhead of a round in ms (from 100 on in tens), tokens left, whether drafts are tried."""
PLENTY = MAX_DEPTH + 2
"""Tokens left, or more: no draft is shortened by the answer's end."""
CERTAIN = 10**6
"""Guesses after which the prior does not matter: decisions are made from the percentage alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device: its drafter, and what a run of it costs."""

    kind: str
    step: StepCost
    """Seconds of a run of the drafter, and of every node in it."""
    acceptance: Acceptance
    """What the target says to its drafts."""
    row_bytes: int = 0
    """State rows a token, bytes."""
    expected: Law | None = None
    """What the bundle says about its acceptance; None: the truth, (): nothing."""

    @property
    def told(self) -> Law:
        """The law that pacing starts from."""
        return self.acceptance.law if self.expected is None else self.expected


@dataclass(frozen=True, slots=True)
class Sized:
    """What one round drafts."""

    shape: Shape
    nodes: int
    depth: int
    trunk: int
    """Length of the path of first children."""
    chain: bool
    draft_s: float
    verify_s: float
    nbytes: int
    """Of the message."""
    ahead: int
    """Tokens drafted beyond what was sent, while the verdict is awaited."""
    streams: bool
    """The verifier is to decode alone instead."""
    plan: Plan
    _extends: dict[int, bool] = field(default_factory=dict, repr=False, compare=False)

    def extends(self, ready: int) -> bool:
        """Whether to draft on to `depth` before ``ready`` tokens that are drafted already are sent."""
        found = self._extends.get(ready)
        if found is None:
            prices = self.plan.prices
            found = self._extends[ready] = ready < self.depth and (
                prices is None or prices.behind(ready).pays
            )
        return found


class Planner:
    """Decisions for one kind of device on one verifier; shared by all sessions of that kind."""

    def __init__(self, device: Device, cost: VerifierCost, pacing: DraftPacing) -> None:
        self._device, self._cost, self._pacing = device, cost, pacing
        told = device.told  # as `pacing.estimate_alpha` weighs it
        self.weight = MEASURED_GUESSES if told else PRIOR_GUESSES
        self.prior = self.weight * (trunk_mean(told) if told else PRIOR_ALPHA / 100)
        self.steady: dict[tuple[float, ...], object] = {}
        """What `virtual.steady` has worked out for devices of this kind, by the constants of their link."""
        self._made: dict[Key, Sized] = {}

    def sized(
        self, judged: int, right: int, rtt_s: float | None, late_s: float, length: int, left: int
    ) -> Sized:
        """What the next round may be.

        ``judged`` first guesses came to be judged and ``right`` of them were right; ``late_s`` is what verdicts take
        beyond round trip and bare pass; the sequence has ``length`` tokens and the answer lacks ``left``.
        """
        alpha = round(100 * (right + self.prior) / (judged + self.weight))
        over_s = late_s + (ASSUMED_RTT_S if rtt_s is None else rtt_s)
        over_ms = round(over_s * 1e3) if over_s < 0.1 else 10 * round(over_s * 1e2)
        trying = length % TRY_EVERY < TRY_FOR
        found = self._made.get((alpha, over_ms, PLENTY, trying))
        if found is None:
            found = self._decide((alpha, over_ms, PLENTY, trying), length)
        if left > found.depth or found.streams:
            return found  # what is left of the answer does not matter
        key = (4 * round(alpha / 4), over_ms, left, trying)
        return self._made.get(key) or self._decide(key, length)

    def _decide(self, key: Key, length: int) -> Sized:
        alpha, over_ms, left, _ = key
        device, pacing = self._device, self._pacing
        inputs = PacingInputs(
            link=LinkState.ONLINE,
            length=length,
            remaining=left,
            drafter=True,
            granted=FEATURES,
            limits=LIMITS,
            cost=self._cost.curve,
            rtt_s=over_ms / 1e3,
            queue_s=0.0,
            draft_node_s=device.step.node_s,
            draft_pass_s=device.step.pass_s,
            judged=CERTAIN,
            accepted=alpha * CERTAIN // 100,
            law=device.told,
        )
        plan = pacing.plan(inputs)
        law = law_of(inputs.law, estimate_alpha(inputs))
        most = room(inputs.limits, inputs.remaining, pacing.tree)
        size = choose(law, pacing.tree, most, inputs.cost, step_cost(inputs), overhead_s(inputs)).size
        shape = shape_of(law, size.depth, size.nodes, pacing.tree)
        nodes = len(shape.parents)
        made = self._made[key] = Sized(
            shape=shape,
            nodes=nodes,
            depth=shape.depth,
            trunk=shape.trunk,
            chain=shape.depth == nodes,
            draft_s=draft_s(size, device.step),
            verify_s=self._cost.seconds(nodes + 1),
            nbytes=draft_bytes(nodes, chain=shape.depth == nodes),
            ahead=plan.max_depth if plan.ahead is None else min(plan.ahead, plan.max_depth),
            streams=plan.max_depth == 0 and plan.run_ahead > 0,
            plan=plan,
        )
        return made


@lru_cache(maxsize=1024)
def planner(device: Device, cost: VerifierCost, pacing: DraftPacing) -> Planner:
    """The one planner of these three."""
    return Planner(device, cost, pacing)
