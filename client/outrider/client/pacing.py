"""How much to draft: the shape that brings the most expected tokens per second, or none at all.

A round whose draft has n nodes, d levels and m nodes with children (the base is one) brings ``1 + E`` tokens and takes
``d * t_pass + m * t_node + rtt + queue + pass(n + 1)`` seconds; streaming brings one token per ``pass(1)``, whatever
the round trip. E is the sum of the nodes' path probabilities: of all trees of n nodes and d levels the most probable
paths make the best (EAGLE-2; Sequoia's greedy construction), and a chain is the tree of first children. How often
children are right was measured when the drafter was made (its bundle says so), and is learned during the session. The
rate of the best shape is the price of time, at which each single draft grows as long as its own probabilities pay
(`drafters.growth`). Everything here is a pure function of `PacingInputs`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from outrider.client.cost import StepCost, pass_s
from outrider.client.drafter import Law, Prices
from outrider.client.plan import STREAMING, Pacing, PacingInputs, Plan
from outrider.shared.errors import ConfigError
from outrider.shared.frames import UNLIMITED, CostCurve, Feature, Limits

MAX_DEPTH = 12
MAX_NODES = 32
PRIOR_ALPHA = 60
"""Percent: how often the drafter's first guess is right, before anything is known."""
PRIOR_GUESSES, MEASURED_GUESSES = 8, 24
"""Judged guesses that the prior weighs as much as: the one above, and one that the bundle brings."""
PRIOR_ROUNDS = 4
RANKS = (0.55, 0.21, 0.12)
"""Of the tokens that the best child misses, the share that the second, third and fourth child hold (measured)."""
ASSUMED_STEP = StepCost(0.0007, 0.0003)
ASSUMED_RTT_S = 0.030
MARGIN = 1.05
"""Streaming must be this much faster than drafting to be chosen."""
TRY_EVERY, TRY_FOR = 128, 4
"""While streaming, drafts are tried again for a few tokens now and then: the text, or the link, may have changed."""


@dataclass(frozen=True, slots=True)
class Size:
    """A draft's size and what it is worth."""

    nodes: int
    depth: int
    """Tokens from the base to the deepest node; as many runs of the drafter."""
    fed: int
    """Nodes that go through the drafter: the base, and every node that has children."""
    expected: float
    """Accepted tokens."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A size and the rate it is expected to bring; of no nodes: a single step."""

    size: Size
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
        law = law_of(inputs.law, estimate_alpha(inputs))
        most = room(inputs.limits, inputs.remaining, tree)
        choice = choose(law, tree, most, inputs.cost, step_cost(inputs), overhead_s(inputs))
        choice = with_dry(choice, inputs)
        stream = 1.0 / pass_s(inputs.cost, 1)
        if not can_stream or stream <= MARGIN * choice.tokens_per_s:
            return _drafting(inputs, choice, law, tree)
        if _trying(inputs, choice, stream):
            return replace(_drafting(inputs, choice, law, tree), reason="")
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


@lru_cache(maxsize=512)
def law_of(measured: Law, alpha: int) -> Law:
    """How often children are right where ``alpha`` percent of the first guesses along a chain are.

    The measured law, shifted in log-odds as a whole; without one the same for every depth.
    """
    if not measured:
        first = alpha / 100
        # A lower rank is never the likelier one, however often all are wrong.
        return ((first, *(min(first, (1.0 - first) * share) for share in RANKS)),)
    shift = _log_odds(alpha / 100) - _log_odds(trunk_mean(measured))
    return tuple(_shifted(ranks, shift) for ranks in measured)


def _shifted(ranks: tuple[float, ...], shift: float) -> tuple[float, ...]:
    if ranks[0] <= 0.0:  # a depth that the drafter cannot predict
        return ranks
    first = 1.0 / (1.0 + math.exp(-_log_odds(ranks[0]) - shift))
    missed = (1.0 - first) / max(1.0 - ranks[0], 1e-3)
    out = [first]
    for share in ranks[1:]:
        out.append(min(out[-1], share * missed))
    return tuple(out)


def _log_odds(chance: float) -> float:
    chance = min(max(chance, 0.005), 0.995)
    return math.log(chance / (1.0 - chance))


def trunk_mean(law: Law, depth: int = 6) -> float:
    """Share of right guesses among those that come to be judged along a chain of ``depth``."""
    reached, judged, right = 1.0, 0.0, 0.0
    for level in range(depth):
        judged += reached
        reached *= law[min(level, len(law) - 1)][0]
        right += reached
    return right / judged


def estimate_alpha(inputs: PacingInputs) -> int:
    """Percent of first guesses that are right: those judged in this session, and a few more as the prior has it."""
    prior, weight = PRIOR_ALPHA / 100, PRIOR_GUESSES
    if inputs.law:
        prior, weight = trunk_mean(inputs.law), MEASURED_GUESSES
    share = (inputs.accepted + weight * prior) / (inputs.judged + weight)
    return min(max(round(100 * share), 1), 99)


@lru_cache(maxsize=4096)
def best_trees(law: Law, max_depth: int, nodes: int = MAX_NODES) -> tuple[Size, ...]:
    """The most probable trees of 1, 2, … ``nodes`` nodes, none deeper than ``max_depth``; each extends the last."""
    first = law[0][0]
    # Probability of the path, depth, rank among siblings, the parent's number (0 = the base) and probability.
    heap = [(-first, 1, 0, 0, 1.0)] if max_depth > 0 else []
    out: list[Size] = []
    total, deepest = 0.0, 0
    parents: set[int] = set()
    while heap and len(out) < nodes:
        negative, depth, rank, parent, above = heapq.heappop(heap)
        total, deepest = total - negative, max(deepest, depth)
        parents.add(parent)
        out.append(Size(len(out) + 1, deepest, len(parents), total))
        ranks = law[min(depth, len(law)) - 1]
        if rank + 1 < len(ranks) and ranks[rank + 1] > 0:
            heapq.heappush(heap, (-above * ranks[rank + 1], depth, rank + 1, parent, above))
        below = law[min(depth + 1, len(law)) - 1][0]
        if depth < max_depth and below > 0:
            heapq.heappush(heap, (negative * below, depth + 1, 0, len(out), -negative))
    return tuple(out)


@lru_cache(maxsize=1024)
def sizes(law: Law, tree: bool, most: tuple[int, int]) -> tuple[Size, ...]:
    """Every size within ``most`` (nodes, depth): for each depth and number of nodes the most probable paths."""
    max_nodes, max_depth = most
    if not tree:
        return best_trees(tuple(ranks[:1] for ranks in law), max_depth, max_nodes)
    every = (size for depth in range(1, max_depth + 1) for size in best_trees(law, depth, max_nodes))
    return tuple(dict.fromkeys(every))


# ------------------------------------------------------------------------------------------------------ what it costs


def step_cost(inputs: PacingInputs) -> StepCost:
    """What a run of the drafter costs on this device."""
    if inputs.draft_node_s is None:
        return ASSUMED_STEP
    return StepCost(_rounded(inputs.draft_pass_s), _rounded(inputs.draft_node_s))


def overhead_s(inputs: PacingInputs) -> float:
    """Seconds of a round that no draft changes: there and back, the queue, what verdicts take beside the pass."""
    rtt = ASSUMED_RTT_S if inputs.rtt_s is None else inputs.rtt_s
    return _rounded(rtt + inputs.queue_s + max(inputs.excess_s, 0.0))


def draft_s(size: Size, step: StepCost) -> float:
    """Seconds the device drafts for."""
    return size.depth * step.pass_s + size.fed * step.node_s


def room(limits: Limits, remaining: int, tree: bool) -> tuple[int, int]:
    """The most nodes and the greatest depth worth drafting: a turn's last token is the verifier's anyway."""
    depth = min(MAX_DEPTH, max(remaining - 1, 0), limits.max_tree_depth if tree else limits.max_chain_tokens)
    return (min(MAX_NODES, limits.max_tree_nodes) if tree else depth), depth


# ------------------------------------------------------------------------------------------------------- the decision


@lru_cache(maxsize=1024)
def choose(
    law: Law, tree: bool, most: tuple[int, int], cost: CostCurve, step: StepCost, fixed_s: float
) -> Choice:
    """The size within ``most`` (nodes, depth) with the most expected tokens per second; at least one node if it may."""
    max_nodes, max_depth = most
    if max_depth < 1 or max_nodes < 1:
        return Choice(Size(0, 0, 0, 0.0), 1.0 / (fixed_s + pass_s(cost, 1)))
    every, (nodes, depth, fed, expected) = _columns(law, tree, most)
    fixed = fixed_s + np.array(_passes(cost, max_nodes + 1))
    rates = (1.0 + expected) / (depth * step.pass_s + fed * step.node_s + fixed[nodes])
    best = np.flatnonzero(rates == rates.max())
    size = min((every[index] for index in best), key=lambda size: (size.nodes, size.depth))
    return Choice(size, float(rates.max()))


@lru_cache(maxsize=256)
def _columns(law: Law, tree: bool, most: tuple[int, int]) -> tuple[tuple[Size, ...], tuple[Any, ...]]:
    """`sizes`, and nodes, depth, fed and expected tokens of them all as arrays: choosing is one expression."""
    every = sizes(law, tree, most)
    nodes, depth, fed = (
        np.array([getattr(size, name) for size in every]) for name in ("nodes", "depth", "fed")
    )
    return every, (nodes, depth, fed, np.array([size.expected for size in every]))


@lru_cache(maxsize=64)
def _passes(cost: CostCurve, widest: int) -> tuple[float, ...]:
    """Seconds of passes of 1, 2, … ``widest`` rows."""
    return tuple(pass_s(cost, width) for width in range(1, widest + 1))


def with_dry(choice: Choice, inputs: PacingInputs) -> Choice:
    """The choice with what it really brings when the drafter is sometimes silent: such a round is a single step."""
    share = inputs.dry / (inputs.rounds + inputs.dry + PRIOR_ROUNDS)
    tokens = 1.0 + choice.size.expected
    step_s, round_s = overhead_s(inputs) + pass_s(inputs.cost, 1), tokens / choice.tokens_per_s
    mean_s = (1.0 - share) * round_s + share * step_s
    return replace(choice, tokens_per_s=((1.0 - share) * tokens + share) / mean_s)


@lru_cache(maxsize=1024)
def prices_of(rate: float, nodes: int, cost: CostCurve, step: StepCost, law: Law) -> Prices:
    """What drafting up to ``nodes`` nodes costs where time brings ``rate`` tokens per second."""
    passes = _passes(cost, nodes + 1)
    verify = tuple(rate * max(seconds - passes[0], 0.0) for seconds in passes)
    return Prices(verify, rate * step.pass_s, rate * step.node_s, law)


def floor_of(prices: Prices, tree: bool) -> float:
    """Log-probability below which no node is worth its cost: verifying it, and in a chain a pass of the drafter."""
    pairs = zip(prices.verify, prices.verify[1:], strict=False)
    share = min((after - before for before, after in pairs), default=0.0)
    if not tree:
        share += prices.level + prices.node
    return math.log(min(max(share, 0.001), 0.5))


def _drafting(inputs: PacingInputs, choice: Choice, law: Law, tree: bool) -> Plan:
    """Draft: bounds wide enough for text that the drafter is sure of, and prices that keep other drafts small."""
    most_nodes, most_depth = room(inputs.limits, inputs.remaining, tree)
    size, step = choice.size, step_cost(inputs)
    depth = min(2 * size.depth + 2, most_depth) if size.depth else 0
    nodes = max(min(2 * size.nodes + 2, most_nodes), depth) if size.nodes else 0
    prices = prices_of(_rounded(choice.tokens_per_s), nodes, inputs.cost, step, law)
    busy_s = draft_s(size, step) + pass_s(inputs.cost, size.nodes + 1)
    far = inputs.rtt_s is not None and inputs.rtt_s > 2 * busy_s and Feature.PIPELINE in inputs.granted
    return Plan(
        depth,
        nodes,
        tree=tree,
        floor=floor_of(prices, tree),
        prices=prices,
        ahead=min(size.depth + 2, depth),
        rounds=min(2, inputs.limits.max_rounds_in_flight) if far else 1,
        reason=f"drafting: about {choice.tokens_per_s:.0f} tokens/s expected",
    )


def _trying(inputs: PacingInputs, choice: Choice, stream: float) -> bool:
    """Whether this is a moment to try drafts although streaming looks faster.

    The verifier decodes on until a draft reaches it, and stands still until it hears what comes after: a draft that
    comes too late to be judged would teach nothing and cost a round trip.
    """
    hopeless = stream > 2 * choice.tokens_per_s
    late = inputs.rtt_s is not None and inputs.rtt_s * stream >= TRY_FOR
    return not hopeless and not late and inputs.length % TRY_EVERY < TRY_FOR


def _why(inputs: PacingInputs, choice: Choice, stream: float) -> str:
    rtt = "" if inputs.rtt_s is None else f" at {inputs.rtt_s * 1000:.0f} ms of round trip"
    return f"streaming: about {stream:.0f} tokens/s, drafting would bring {choice.tokens_per_s:.0f}{rtt}"


def _rounded(seconds: float) -> float:
    """Two significant digits, so that equal situations are decided once."""
    if not math.isfinite(seconds) or seconds <= 0:
        return 1e-6
    digits = 1 - math.floor(math.log10(seconds))
    return round(seconds, digits)
