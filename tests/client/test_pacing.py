"""Pacing: draft sizes against brute force, and when streaming is the better choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.cost import StepCost, pass_s
from outrider.client.drafter import Law
from outrider.client.events import LinkState
from outrider.client.pacing import (
    MARGIN,
    TRY_FOR,
    DraftPacing,
    Size,
    SpokenPacing,
    best_trees,
    choose,
    draft_s,
    law_of,
    make_pacing,
    prices_of,
    sizes,
)
from outrider.client.plan import STREAMING, PacingInputs
from outrider.shared.errors import ConfigError
from outrider.shared.frames import UNLIMITED, CostCurve, Feature, Limits

COST = CostCurve((1, 4, 8, 16, 32), (40_000, 62_000, 70_000, 100_000, 170_000), 256, 3_000)
ALL = frozenset(Feature)
LOCAL = PacingInputs(
    link=LinkState.ONLINE,
    length=100,
    remaining=100,
    drafter=True,
    granted=ALL,
    limits=Limits(),
    cost=COST,
    rtt_s=0.001,
    queue_s=0.0,
    draft_node_s=0.0005,
)
curves = st.builds(
    lambda base, steps: CostCurve((1, 4, 8, 16), tuple(int(base + sum(steps[:n])) for n in range(4)), 0, 0),
    st.integers(1_000, 200_000),
    st.tuples(*[st.integers(0, 60_000)] * 4),
)
steps = st.builds(StepCost, st.floats(1e-5, 0.01), st.floats(1e-5, 0.003))


def _ranks(first: float, rest: tuple[float, ...]) -> tuple[float, ...]:
    left, out = 1.0 - first, [first]
    for share in rest:
        out.append(min(out[-1], left * share))
        left -= out[-1]
    return tuple(out)


laws = st.lists(
    st.builds(_ranks, st.floats(0.02, 0.98), st.tuples(*[st.floats(0.01, 0.9)] * 3)), min_size=1, max_size=6
).map(tuple)


def enumerated(law: Law, depth: int) -> list[float]:
    """The probability of every path of at most ``depth`` tokens, likeliest first."""
    levels = [[1.0]]
    for level in range(depth):
        ranks = law[min(level, len(law) - 1)]
        levels.append([above * chance for above in levels[-1] for chance in ranks])
    return sorted((chance for level in levels[1:] for chance in level), reverse=True)


@given(laws, st.integers(1, 4))
def test_the_most_probable_trees(law: Law, depth: int) -> None:
    """The greedy construction holds the most probable of all paths, and counts levels and inner nodes."""
    every = enumerated(law, depth)
    trees = best_trees(law, depth)
    assert len(trees) == min(32, len(every))
    for size in trees:
        assert size.expected == pytest.approx(sum(every[: size.nodes]))
        assert 1 <= size.depth <= min(depth, size.nodes)
        assert size.depth <= size.fed <= size.nodes
    assert (trees[0].nodes, trees[0].depth, trees[0].fed) == (1, 1, 1)


@given(laws, st.integers(1, 12))
def test_expected_tokens_of_a_chain(law: Law, depth: int) -> None:
    """A chain brings the sum of the probabilities that its first 1, 2, … tokens are all right."""
    firsts = [law[min(level, len(law) - 1)][0] for level in range(depth)]
    for size in sizes(law, False, (depth, depth)):
        assert size.depth == size.fed == size.nodes
        assert size.expected == pytest.approx(sum(np.cumprod(firsts)[: size.nodes]))


@given(curves, st.integers(1, 40))
def test_costs_of_widths_between_and_beyond(cost: CostCurve, width: int) -> None:
    """A measured width costs what was measured, others lie between their neighbours or beyond the last."""
    seconds = [micro / 1e6 for micro in cost.costs_us]
    found = pass_s(cost, width)
    if width in cost.widths:
        assert found == pytest.approx(seconds[cost.widths.index(width)])
    elif width > 16:
        assert found >= seconds[-1]
    else:
        right = next(n for n, w in enumerate(cost.widths) if w > width)
        assert seconds[right - 1] - 1e-9 <= found <= seconds[right] + 1e-9


@given(laws, st.booleans(), st.integers(2, 6), st.integers(1, 20), curves, steps, st.floats(1e-4, 1.0))
def test_the_shape_chosen_is_the_best(
    law: Law, tree: bool, depth: int, nodes: int, cost: CostCurve, step: StepCost, fixed_s: float
) -> None:
    """No number of levels and nodes brings more expected tokens per second, by trying them all."""
    most = (nodes if tree else min(nodes, depth), depth)
    choice = choose(law, tree, most, cost, step, fixed_s)
    best = 0.0
    for levels in range(1, depth + 1):
        trees = best_trees(law, levels, most[0])
        for count in range(1, most[0] + 1):
            if tree:
                size = trees[count - 1] if count <= len(trees) else None
            elif count == levels:
                firsts = [law[min(level, len(law) - 1)][0] for level in range(levels)]
                size = Size(levels, levels, levels, float(sum(np.cumprod(firsts))))
            else:
                size = None
            if size is not None:
                seconds = (
                    size.depth * step.pass_s + size.fed * step.node_s + fixed_s + pass_s(cost, count + 1)
                )
                best = max(best, (1 + size.expected) / seconds)
    assert choice.tokens_per_s == pytest.approx(best)
    assert 1 <= choice.size.nodes <= most[0] and choice.size.depth <= depth


@given(laws, st.booleans(), curves, steps, st.floats(1e-4, 0.5), st.floats(1.0, 50.0))
def test_a_longer_way_never_makes_drafts_smaller(
    law: Law, tree: bool, cost: CostCurve, step: StepCost, fixed_s: float, factor: float
) -> None:
    """What every round costs anyway is shared by more tokens: expected tokens never fall as it grows."""
    most = (24 if tree else 8, 8)
    near, far = (choose(law, tree, most, cost, step, fixed_s * times) for times in (1.0, factor))
    assert far.size.expected >= near.size.expected - 1e-9
    assert far.tokens_per_s <= near.tokens_per_s


@given(laws, st.booleans(), curves, steps, st.floats(1e-4, 0.5), st.floats(1.0, 50.0))
def test_a_slower_device_never_drafts_longer(
    law: Law, tree: bool, cost: CostCurve, step: StepCost, fixed_s: float, factor: float
) -> None:
    """On a device whose runs take longer, the draft chosen would have taken no longer on the faster one."""
    most = (24 if tree else 8, 8)
    slow = StepCost(step.pass_s * factor, step.node_s * factor)
    quick_choice, slow_choice = (choose(law, tree, most, cost, each, fixed_s) for each in (step, slow))
    assert draft_s(slow_choice.size, step) <= draft_s(quick_choice.size, step) * (1 + 1e-9)


@given(laws, st.booleans())
def test_what_is_free_is_taken(law: Law, tree: bool) -> None:
    """Where wider passes cost nothing and neither does drafting, the whole room is used while it can bring anything."""
    most = (32, 12) if tree else (12, 12)
    choice = choose(law, tree, most, CostCurve((1, 64), (50_000, 50_000)), StepCost(1e-12, 1e-12), 0.01)
    whole = max(size.expected for size in sizes(law, tree, most))
    assert choice.size.expected == pytest.approx(whole, abs=1e-6)


@given(laws, st.integers(10_000, 80_000), st.integers(1_000, 60_000), steps)
def test_padded_rows_are_filled(law: Law, base: int, more: int, step: StepCost) -> None:
    """Where passes are padded to eight rows, a tree ends at a border or where more has to be drafted."""
    cost = CostCurve((1, 8, 16, 24, 32), (base, base, base + more, base + 2 * more, base + 3 * more))
    choice = choose(law, True, (31, 8), cost, step, 0.001)
    rest = [size for size in sizes(law, True, (31, 8)) if size.nodes == choice.size.nodes + 1]
    if (choice.size.nodes + 1) % 8:
        spent = (choice.size.depth, choice.size.fed)
        assert all((size.depth, size.fed) != spent for size in rest)


def test_confident_text_gets_depth_and_doubtful_text_width() -> None:
    """With passes of 3 and 30 ms, flat up to eight rows: deep where sure, shallow and bushy where not."""
    cost = CostCurve((1, 8, 16, 32), (30_000, 31_000, 36_000, 45_000))
    step = StepCost(0.0023, 0.0007)
    sure, unsure = (choose(law_of((), alpha), True, (31, 12), cost, step, 0.001) for alpha in (90, 35))
    assert sure.size.depth >= 2 * unsure.size.depth
    assert unsure.size.nodes / unsure.size.depth > sure.size.nodes / sure.size.depth
    assert max(sure.size.nodes, unsure.size.nodes) < 24


@given(laws, curves, steps, st.floats(1e-4, 0.1))
def test_at_the_best_rate_no_other_shape_pays(
    law: Law, cost: CostCurve, step: StepCost, fixed_s: float
) -> None:
    """Priced at the best rate, the shape chosen is worth its time to the token, and no other one more (Dinkelbach)."""
    most = (16, 6)
    choice = choose(law, True, most, cost, step, fixed_s)
    prices = prices_of(choice.tokens_per_s, most[0], cost, step, law)
    paid = choice.tokens_per_s * (fixed_s + pass_s(cost, 1)) - 1.0

    def gain(size: Size) -> float:
        drafting = size.depth * prices.level + size.fed * prices.node
        return size.expected - drafting - prices.verify[size.nodes]

    increasing = all(pass_s(cost, n + 1) >= pass_s(cost, 1) for n in range(most[0] + 1))
    assert increasing
    assert gain(choice.size) == pytest.approx(paid, abs=1e-6)
    assert all(gain(size) <= paid + 1e-6 for size in sizes(law, True, most))


# ----------------------------------------------------------------------------------------------------------- the plans


@given(
    st.booleans(),
    st.integers(0, 200),
    st.one_of(st.none(), st.floats(0, 30)),
    st.one_of(st.none(), st.floats(0, 5)),
    st.sets(st.sampled_from(list(Feature))),
    st.integers(0, 50),
)
def test_edge_always_drafts_within_the_limits(
    tree: bool, remaining: int, rtt_s: float | None, node_s: float | None, granted: set[Feature], rounds: int
) -> None:
    """Whatever is known, edge pacing drafts, except for the turn's last token, and never asks for run-ahead."""
    limits = Limits(max_tree_nodes=12, max_tree_depth=5, max_chain_tokens=7, max_rounds_in_flight=1)
    inputs = replace(
        LOCAL,
        remaining=remaining,
        rtt_s=rtt_s,
        draft_node_s=node_s,
        granted=frozenset(granted),
        limits=limits,
        rounds=rounds,
        judged=2 * rounds,
        accepted=rounds,
    )
    plan = make_pacing("tree" if tree else "chain", "edge").plan(inputs)
    assert plan.run_ahead == 0 and plan.rounds == 1
    assert (plan.max_depth >= 1) == (remaining > 1)
    assert plan.max_depth <= min(max(remaining - 1, 0), 5 if plan.tree else 7)
    assert plan.max_nodes <= (12 if plan.tree else 7)
    assert plan.tree == (tree and (Feature.TREES in granted or not granted))
    assert plan.floor < 0 and plan.reason
    assert plan.ahead is not None and plan.ahead <= plan.max_depth
    assert plan.prices is not None and len(plan.prices.verify) == plan.max_nodes + 1


def test_auto_streams_on_slow_links_and_says_so() -> None:
    """Beside the verifier it drafts; with growing distance it turns to streaming, once, and names the figures."""
    pacing = DraftPacing(tree=True, may_stream=True)
    rtts = (0.0005, 0.01, 0.05, 0.1, 0.2, 0.5, 2.0)
    plans = [pacing.plan(replace(LOCAL, rtt_s=rtt)) for rtt in rtts]
    streams = [plan.max_depth == 0 for plan in plans]
    assert not streams[0] and streams[-1] and streams == sorted(streams)
    for plan, rtt in zip(plans, rtts, strict=True):
        assert plan.run_ahead == (UNLIMITED if plan.max_depth == 0 else 0)
        assert plan.max_depth or ("streaming" in plan.reason and f"{rtt * 1000:.0f} ms" in plan.reason)


def test_auto_streams_when_drafts_are_refused_but_tries_again() -> None:
    """A drafter that is always wrong is left alone, but for a few tokens now and then; so is a slow one."""
    wrong = replace(LOCAL, rounds=200, judged=200, accepted=0)
    pacing = DraftPacing(tree=False, may_stream=True)
    tries = [pacing.plan(replace(wrong, length=length)).max_depth > 0 for length in range(1024)]
    assert 0 < sum(tries) <= 8 * TRY_FOR
    assert pacing.plan(replace(LOCAL, draft_node_s=0.5)).max_depth == 0


def test_drafts_that_would_come_too_late_are_not_tried() -> None:
    """Where the verifier decodes past the whole attempt before a draft reaches it, trying would only cost time."""
    pacing, stream_s = DraftPacing(tree=True, may_stream=True), pass_s(LOCAL.cost, 1)
    fair = replace(LOCAL, rounds=200, judged=400, accepted=290)
    near, far = (replace(fair, rtt_s=passes * stream_s) for passes in (TRY_FOR - 1, TRY_FOR + 1))
    assert any(pacing.plan(replace(near, length=length)).max_depth for length in range(256))
    assert not any(pacing.plan(replace(far, length=length)).max_depth for length in range(256))


@given(st.floats(1e-4, 1.0), st.integers(0, 100), st.floats(1e-4, 0.1), curves)
def test_auto_never_expects_less_than_streaming(
    rtt_s: float, percent: int, node_s: float, cost: CostCurve
) -> None:
    """Where auto drafts, and is not just trying, streaming is not expected to be more than five percent faster."""
    inputs = replace(
        LOCAL, rtt_s=rtt_s, draft_node_s=node_s, cost=cost, rounds=100, judged=500, accepted=5 * percent
    )
    plan = DraftPacing(tree=False, may_stream=True).plan(inputs)
    if plan.max_depth and plan.reason:
        expected = float(plan.reason.split("about ")[1].split()[0])
        assert 1 / pass_s(cost, 1) <= MARGIN * (expected + 0.5)


def test_without_run_ahead_or_drafter() -> None:
    """A verifier that grants no run-ahead gets drafts at any distance; without a drafter auto streams."""
    pacing = DraftPacing(tree=False, may_stream=True)
    assert pacing.plan(replace(LOCAL, rtt_s=3.0, granted=frozenset({Feature.TREES}))).max_depth > 0
    plan = pacing.plan(replace(LOCAL, drafter=False))
    assert plan.max_depth == 0 and plan.run_ahead == UNLIMITED and "no drafter" in plan.reason


def test_far_verifiers_get_two_rounds_in_flight() -> None:
    """Edge drafting over a long way sends the next draft before the verdict, where that was agreed on."""
    pacing = make_pacing("chain", "edge")
    assert pacing.plan(LOCAL).rounds == 1
    assert pacing.plan(replace(LOCAL, rtt_s=1.0)).rounds == 2
    assert pacing.plan(replace(LOCAL, rtt_s=1.0, granted=frozenset({Feature.TREES}))).rounds == 1


def test_a_change_of_mind_is_told_once() -> None:
    """Turning to streaming and back is said with its figures; trying drafts, or streaming on request, is not."""
    told: list[str] = []
    pacing = SpokenPacing(DraftPacing(tree=False, may_stream=True), told.append)
    far = replace(LOCAL, rtt_s=0.3, rounds=100, judged=500, accepted=250)
    for inputs in (LOCAL, *(replace(far, length=length) for length in range(300)), LOCAL, LOCAL):
        pacing.plan(inputs)
    assert len(told) == 2
    assert told[0].startswith("streaming") and told[1].startswith("drafting")
    plain = SpokenPacing(STREAMING, told.append)
    plain.plan(LOCAL)
    assert len(told) == 2


def test_options() -> None:
    """none is plain streaming; what is not an option is refused by name."""
    assert make_pacing("none", "auto") is STREAMING
    for draft, pacing, name in (("bush", "auto", "--draft"), ("tree", "often", "--pacing")):
        with pytest.raises(ConfigError, match=name):
            make_pacing(draft, pacing)


def test_a_silent_drafter_is_left_for_streaming() -> None:
    """Rounds without a draft are single steps: after a few of them auto streams where the way is long, and says so."""
    pacing = DraftPacing(tree=False, may_stream=True)
    link = replace(LOCAL, rtt_s=0.02, cost=CostCurve((1, 8), (30_000, 31_000)))
    assert pacing.plan(link).max_depth > 0
    assert pacing.plan(replace(link, rounds=1, judged=4, accepted=3, dry=20)).run_ahead == UNLIMITED
    busy = replace(link, rounds=200, judged=800, accepted=640, dry=20)
    assert pacing.plan(busy).max_depth > 0


def test_padded_passes_are_filled() -> None:
    """Where one token costs what eight do, nine cost what sixteen do; elsewhere costs lie between the measurements."""
    padded = CostCurve((1, 8, 16), (50_000, 50_000, 80_000))
    assert [pass_s(padded, width) for width in (1, 5, 8, 9, 16)] == [0.05, 0.05, 0.05, 0.08, 0.08]
    assert pass_s(CostCurve((1, 8, 16), (10_000, 50_000, 80_000)), 12) == pytest.approx(0.065)


def test_a_curve_that_repeats_a_width_is_no_trap() -> None:
    """Widths told twice, or only one of them, give a finite time for every width."""
    for curve in (CostCurve((5, 5), (10, 20)), CostCurve((1, 1, 8), (10, 30, 90)), CostCurve((3,), (7,))):
        assert all(0 < pass_s(curve, width) < 1 for width in range(1, 64))
    assert pass_s(CostCurve(), 4, unknown_s=0.0) == 0.0
