"""How much to draft: the size that brings the most expected tokens per second, or none at all.

A round with a draft of n nodes brings ``1 + E(n)`` tokens and takes ``n * t_node + rtt + queue + pass(n + 1)`` seconds;
streaming brings one token per ``pass(1)``, whatever the round trip. Acceptance is taken as independent per token, as in
Leviathan et al. 2023, eq. 1: a chain of k brings ``a + a² + … + a^k``. Of a tree, the n most probable paths count
(EAGLE-2; Sequoia's greedy construction). Everything here is a pure function of `PacingInputs`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from outrider.client.cost import pass_s
from outrider.client.plan import STREAMING, Pacing, PacingInputs, Plan
from outrider.shared.errors import ConfigError
from outrider.shared.frames import UNLIMITED, CostCurve, Feature, Limits

MAX_DEPTH = 12
MAX_NODES = 32
PRIOR_ALPHA = 60
"""Percent: how often the drafter's first guess is right, before anything is known."""
PRIOR_ROUNDS = 4
RANKS = (0.55, 0.21, 0.12)
"""Of the tokens that the best child misses, the share that the second, third and fourth child hold (measured)."""
ASSUMED_NODE_S = 0.001
ASSUMED_RTT_S = 0.030
MARGIN = 1.05
"""Streaming must be this much faster than drafting to be chosen."""
TRY_EVERY, TRY_FOR = 128, 4
"""While streaming, drafts are tried again for a few tokens now and then: the text, or the link, may have changed."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A draft size and what it is expected to bring."""

    nodes: int
    depth: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class DraftPacing:
    """Sizes drafts; with ``may_stream`` it stops drafting where streaming is expected to be faster."""

    tree: bool
    may_stream: bool

    def plan(self, inputs: PacingInputs) -> Plan:
        """What the next round may be."""
        can_stream = self.may_stream and Feature.RUN_AHEAD in inputs.granted
        if can_stream and not inputs.drafter:
            return Plan(0, 0, run_ahead=UNLIMITED, reason="streaming: there is no drafter yet")
        tree = self.tree and (Feature.TREES in inputs.granted or not inputs.granted)
        alpha = estimate_alpha(inputs.rounds, inputs.drafted, inputs.accepted, tree)
        choice = choose(
            alpha,
            tree,
            room(inputs.limits, inputs.remaining, tree),
            inputs.cost,
            node_s(inputs),
            overhead_s(inputs),
        )
        choice = with_dry(choice, inputs)
        stream = 1.0 / pass_s(inputs.cost, 1)
        if not can_stream or stream <= MARGIN * choice.tokens_per_s:
            return _drafting(inputs, choice, tree)
        if _trying(inputs, choice, stream):
            return replace(_drafting(inputs, choice, tree), reason="")
        return Plan(0, 0, run_ahead=UNLIMITED, reason=_why(inputs, choice, stream))


class SpokenPacing:
    """Another pacing that also says when it turns to streaming, and when back to drafting."""

    def __init__(self, pacing: Pacing, tell: Callable[[str], None]) -> None:
        self._pacing = pacing
        self._tell = tell
        self._streaming = pacing is STREAMING  # asked for: nothing to explain

    def plan(self, inputs: PacingInputs) -> Plan:
        """What the other says."""
        plan = self._pacing.plan(inputs)
        streaming = plan.max_depth == 0 and plan.run_ahead > 0
        if inputs.granted and plan.reason and streaming != self._streaming:
            self._streaming = streaming
            self._tell(plan.reason)
        return plan


def make_pacing(draft: str, pacing: str) -> Pacing:
    """The pacing of ``--draft`` and ``--pacing``; raises ConfigError on anything else."""
    if draft == "none":
        return STREAMING
    if draft not in ("chain", "tree"):
        raise ConfigError("--draft", f"is chain, tree or none, not {draft!r}")
    if pacing not in ("auto", "edge"):
        raise ConfigError("--pacing", f"is auto or edge, not {pacing!r}")
    return DraftPacing(tree=draft == "tree", may_stream=pacing == "auto")


# ----------------------------------------------------------------------------------------------------- what it brings


def expected_chain(alpha: float, depth: float) -> float:
    """Accepted tokens of a chain of ``depth`` (may be fractional: a mean) when each is right with ``alpha``."""
    if alpha >= 1.0:
        return depth
    return alpha * (1.0 - alpha**depth) / (1.0 - alpha)


@lru_cache(maxsize=4096)
def best_paths(alpha: int, max_depth: int, nodes: int = MAX_NODES) -> tuple[tuple[float, int], ...]:
    """The most probable tree, node by node: (accepted tokens, depth) with 1, 2, … ``nodes`` nodes; alpha in percent."""
    first = alpha / 100
    # A lower rank is never the likelier one, however often all are wrong.
    shares = (first, *(min(first, (1.0 - first) * share) for share in RANKS))
    heap = [
        (-shares[0], 1, 0, 1.0)
    ]  # probability of the path, depth, rank among siblings, probability of the parent
    out: list[tuple[float, int]] = []
    total, deepest = 0.0, 0
    while heap and len(out) < nodes:
        probability, depth, rank, above = heapq.heappop(heap)
        total, deepest = total - probability, max(deepest, depth)
        out.append((total, deepest))
        if rank + 1 < len(shares):
            heapq.heappush(heap, (-above * shares[rank + 1], depth, rank + 1, above))
        if depth < max_depth:
            heapq.heappush(heap, (probability * shares[0], depth + 1, 0, -probability))
    return tuple(out)


@lru_cache(maxsize=1024)
def _alpha_of(mean_accepted: float, mean_depth: float, tree: bool) -> int:
    low, high = 1, 99
    while low < high:
        middle = (low + high) // 2
        if tree:
            depth = max(round(mean_depth), 1)
            paths = best_paths(middle, depth)
            found = paths[min(3 * depth, len(paths)) - 1][0]
        else:
            found = expected_chain(middle / 100, mean_depth)
        low, high = (middle + 1, high) if found < mean_accepted else (low, middle)
    return low


def estimate_alpha(rounds: int, drafted: int, accepted: int, tree: bool) -> int:
    """Percent of first guesses that are right, from a session's rounds and a few rounds of prior."""
    depth = 6.0
    if tree:
        prior = best_paths(PRIOR_ALPHA, 6)[17][0]
    else:
        prior = expected_chain(PRIOR_ALPHA / 100, depth)
    weight = rounds + PRIOR_ROUNDS
    mean_depth = (drafted + PRIOR_ROUNDS * depth) / weight
    mean_accepted = (accepted + PRIOR_ROUNDS * prior) / weight
    return _alpha_of(round(mean_accepted, 2), round(mean_depth, 1), tree)


# ------------------------------------------------------------------------------------------------------ what it costs


@lru_cache(maxsize=1024)
def node_s(inputs: PacingInputs) -> float:
    """Seconds a drafted token costs on this device."""
    return _rounded(ASSUMED_NODE_S if inputs.draft_node_s is None else inputs.draft_node_s)


def overhead_s(inputs: PacingInputs) -> float:
    """Seconds of a round that no draft size changes: the way there and back, and the queue."""
    rtt = ASSUMED_RTT_S if inputs.rtt_s is None else inputs.rtt_s
    return _rounded(rtt + inputs.queue_s)


def room(limits: Limits, remaining: int, tree: bool) -> tuple[int, int]:
    """The most nodes and the greatest depth worth drafting: a turn's last token is the verifier's anyway."""
    depth = min(MAX_DEPTH, max(remaining - 1, 0), limits.max_tree_depth if tree else limits.max_chain_tokens)
    return (min(MAX_NODES, limits.max_tree_nodes) if tree else depth), depth


# ------------------------------------------------------------------------------------------------------- the decision


@lru_cache(maxsize=1024)
def choose(
    alpha: int, tree: bool, most: tuple[int, int], cost: CostCurve, per_node_s: float, fixed_s: float
) -> Choice:
    """The size within ``most`` (nodes, depth) with the most expected tokens per second; at least one node if it may."""
    max_nodes, max_depth = most
    if max_depth < 1 or max_nodes < 1:
        return Choice(0, 0, 1.0 / (fixed_s + pass_s(cost, 1)))
    if tree:
        sizes = [
            (n + 1, depth, found) for n, (found, depth) in enumerate(best_paths(alpha, max_depth, max_nodes))
        ]
    else:
        sizes = [(n, n, expected_chain(alpha / 100, n)) for n in range(1, max_nodes + 1)]
    choices = [
        Choice(nodes, depth, (1.0 + found) / (nodes * per_node_s + fixed_s + pass_s(cost, nodes + 1)))
        for nodes, depth, found in sizes
    ]
    return max(choices, key=lambda choice: (choice.tokens_per_s, -choice.nodes))


def with_dry(choice: Choice, inputs: PacingInputs) -> Choice:
    """The choice with what it really brings when the drafter is sometimes silent: such a round is a single step."""
    share = inputs.dry / (inputs.rounds + inputs.dry + PRIOR_ROUNDS)
    step_s = overhead_s(inputs) + pass_s(inputs.cost, 1)
    round_s = choice.nodes * node_s(inputs) + overhead_s(inputs) + pass_s(inputs.cost, choice.nodes + 1)
    tokens = (1.0 - share) * choice.tokens_per_s * round_s + share
    return replace(choice, tokens_per_s=tokens / ((1.0 - share) * round_s + share * step_s))


def floor_of(choice: Choice, cost: CostCurve, per_node_s: float) -> float:
    """Log-probability below which one more node costs more time than it brings.

    At the best size a node must bring as many tokens per second of its own cost as the round does on average.
    """
    widest = max(cost.widths, default=1)
    slope = (pass_s(cost, widest) - pass_s(cost, 1)) / (widest - 1) if widest > 1 else 0.0
    share = choice.tokens_per_s * (per_node_s + max(slope, 0.0))
    return math.log(min(max(share, 0.01), 0.5))


def _drafting(inputs: PacingInputs, choice: Choice, tree: bool) -> Plan:
    """Draft: the size chosen, two tokens deeper where the drafter is sure of itself."""
    most_nodes, most_depth = room(inputs.limits, inputs.remaining, tree)
    depth = min(choice.depth + 2, most_depth) if choice.depth else 0
    nodes = min(choice.nodes + 2, most_nodes) if choice.nodes else 0
    draft_s = choice.nodes * node_s(inputs) + pass_s(inputs.cost, choice.nodes + 1)
    far = inputs.rtt_s is not None and inputs.rtt_s > 2 * draft_s and Feature.PIPELINE in inputs.granted
    return Plan(
        depth,
        max(nodes, depth),
        tree=tree,
        floor=floor_of(choice, inputs.cost, node_s(inputs)),
        rounds=min(2, inputs.limits.max_rounds_in_flight) if far else 1,
        reason=f"drafting: about {choice.tokens_per_s:.0f} tokens/s expected",
    )


def _trying(inputs: PacingInputs, choice: Choice, stream: float) -> bool:
    """Whether this is a moment to try drafts although streaming looks faster."""
    hopeless = stream > 2 * choice.tokens_per_s
    return not hopeless and inputs.length % TRY_EVERY < TRY_FOR


def _why(inputs: PacingInputs, choice: Choice, stream: float) -> str:
    rtt = "" if inputs.rtt_s is None else f" at {inputs.rtt_s * 1000:.0f} ms of round trip"
    return f"streaming: about {stream:.0f} tokens/s, drafting would bring {choice.tokens_per_s:.0f}{rtt}"


def _rounded(seconds: float) -> float:
    """Two significant digits, so that equal situations are decided once."""
    if not math.isfinite(seconds) or seconds <= 0:
        return 1e-6
    digits = 1 - math.floor(math.log10(seconds))
    return round(seconds, digits)
