"""A device's answer in virtual time: what it knows, what is under way, what was shown. The modes move it on.

Sizes of drafts, deadlines and back-off are decided by the device's own code (`client.pacing`, `client.timers`), from
what this session has measured so far.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from outrider.client.cost import StepCost
from outrider.client.drafter import Law
from outrider.client.events import LinkState
from outrider.client.pacing import (
    MEASURED_GUESSES,
    PRIOR_ALPHA,
    PRIOR_GUESSES,
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
from outrider.client.timers import Backoff, Deadlines
from outrider.netsim.virtual.acceptance import Acceptance, Shape, luck, shape_of
from outrider.netsim.virtual.display import Display
from outrider.netsim.virtual.server import VerifierCost
from outrider.netsim.virtual.wire import VirtualLink
from outrider.shared.frames import Feature, Limits

FEATURES = frozenset({Feature.TREES, Feature.RUN_AHEAD, Feature.STATE_ROWS})
"""What the verifier grants here. Pipelining is left out: a second round in flight is not simulated."""
LIMITS = Limits()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is asked for."""

    prompt: int = 64
    """Tokens of the prompt."""
    tokens: int = 128
    """Tokens of the answer."""
    seed: int = 0
    """Of the text's luck and of the device's back-off; the link has its own."""


@dataclass(frozen=True, slots=True)
class Sized:
    """What one round drafts."""

    shape: Shape
    draft_s: float
    ahead: int
    """Tokens drafted beyond what was sent, while the verdict is awaited."""
    plan: Plan

    @property
    def streams(self) -> bool:
        """Whether the verifier is to decode alone instead."""
        return self.plan.max_depth == 0 and self.plan.run_ahead > 0


@dataclass(slots=True)
class Counts:
    """What an answer cost."""

    calls: int = 0
    """Requests to the verifier: drafts, single steps, openings; a stream is one."""
    rounds: int = 0
    """Drafts judged."""
    round_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    superseded: int = 0
    forward_s: float = 0.0
    """Passes of the verifier that this answer took part in, by its share of their rows."""
    bytes_up: int = 0
    bytes_down: int = 0
    reconnects: int = 0


class Session:
    """One answer on one device. Times in seconds; positions count from the answer's first token."""

    def __init__(
        self,
        device: Device,
        answer: Answer,
        link: VirtualLink,
        cost: VerifierCost,
        pacing: DraftPacing | None,
    ) -> None:
        self.device, self.answer, self.link, self.cost, self.pacing = device, answer, link, cost, pacing
        self.fortune = luck(answer.seed, answer.tokens)
        self.first, self.cumulated = device.acceptance.first, device.acceptance.cumulated
        self.deadlines = Deadlines()
        self.backoff = Backoff(random.Random(f"outrider.netsim/{answer.seed}/backoff"))
        self.display, self.counts = Display(), Counts()
        self.drafts_ahead = True
        self.now = 0.0
        self.committed = 0
        """Tokens of the answer that the device holds as decided."""
        self.tail = self.shown = self.offset = 0
        """Drafted tokens beyond them, how many of these are on display, and the depth at which the tail begins."""
        self.drafter_free = 0.0
        self.progress_at = 0.0
        self.excess_s = 0.0
        self.judged = self.right = self.judged_rounds = 0
        self.cut_off = False
        """The link is gone for good: what is left was written alone, or not at all."""
        self.log: list[tuple[object, ...]] | None = None
        self._sized: dict[tuple[int, int, int, int, bool], Sized] = {}
        told = device.told  # as `pacing.estimate_alpha` weighs it
        self._weight = MEASURED_GUESSES if told else PRIOR_GUESSES
        self._prior = self._weight * (trunk_mean(told) if told else PRIOR_ALPHA / 100)

    # --------------------------------------------------------------------------------------------------------- sizes

    @property
    def left(self) -> int:
        """Tokens still to be decided."""
        return self.answer.tokens - self.committed

    def sized(self) -> Sized:
        """What the next round may be, as the device's pacing decides it. Raises nothing; needs a pacing."""
        known = self.deadlines
        share = (self.right + self._prior) / (self.judged + self._weight)
        alpha = min(max(round(100 * share), 1), 99)
        rtt_ms = -1 if known.srtt_s is None else round(known.srtt_s * 1e3)
        late_ms = round((known.queue_s + max(self.excess_s, 0.0)) * 1e3)
        at = (self.answer.prompt + self.committed) % 128
        key = (alpha, rtt_ms, late_ms, min(self.left, 16), at < 4)
        found = self._sized.get(key)
        if found is None:
            found = self._sized[key] = self._decide(rtt_ms, late_ms)
        return found

    def _decide(self, rtt_ms: int, late_ms: int) -> Sized:
        if self.pacing is None:
            raise RuntimeError("a mode that drafts needs a pacing")
        inputs = _inputs(self, None if rtt_ms < 0 else rtt_ms / 1e3, late_ms / 1e3)
        plan = self.pacing.plan(inputs)
        law = law_of(inputs.law, estimate_alpha(inputs))
        most = room(inputs.limits, inputs.remaining, self.pacing.tree)
        step = step_cost(inputs)
        size = choose(law, self.pacing.tree, most, inputs.cost, step, overhead_s(inputs)).size
        shape = shape_of(law, size.depth, size.nodes, self.pacing.tree)
        ahead = plan.max_depth if plan.ahead is None else min(plan.ahead, plan.max_depth)
        return Sized(shape, draft_s(size, self.device.step), ahead, plan)

    # ---------------------------------------------------------------------------------------------------------- tail

    def commit(self, at: float, tokens: int) -> None:
        """The target has decided the next ``tokens``, and the device has read so at ``at``."""
        tail, shown = self.tail, self.shown
        right = self.foreseen(min(tail, tokens))
        display = self.display
        kept = min(right, shown)
        display.kept += kept
        if right < tokens and right < tail:
            display.revised += max(shown - right, 0)
            self.tail = self.shown = self.offset = 0
        else:
            self.tail = tail - right
            self.shown = max(shown - right, 0)
            self.offset = self.offset + right if self.tail else 0
        self.committed += tokens
        self.now = self.progress_at = at
        if tokens > kept:
            display.show(at)
        if self.log is not None:
            self.log.append(
                ("commit", at, self.committed - tokens, tokens, kept, max(shown - kept, 0), self.shown)
            )

    def foreseen(self, most: int) -> int:
        """Leading tokens of the tail, at most so many, that the target says too."""
        fortune, first, at, depth = self.fortune, self.first, self.committed, self.offset
        count = 0
        while count < most and fortune[at + count] < first[depth + count]:
            count += 1
        return count


def _inputs(session: Session, rtt_s: float | None, late_s: float) -> PacingInputs:
    step = session.device.step
    return PacingInputs(
        link=LinkState.ONLINE,
        length=session.answer.prompt + session.committed,
        remaining=session.left,
        drafter=True,
        granted=FEATURES,
        limits=LIMITS,
        cost=session.cost.curve,
        rtt_s=rtt_s,
        queue_s=late_s,
        draft_node_s=step.node_s,
        draft_pass_s=step.pass_s,
        rounds=session.judged_rounds,
        judged=session.judged,
        accepted=session.right,
        law=session.device.told,
    )
