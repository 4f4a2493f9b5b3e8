"""Pacing: draft sizes against brute force, and when streaming is the better choice."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.cost import pass_s
from outrider.client.events import LinkState
from outrider.client.pacing import (
    MARGIN,
    RANKS,
    TRY_FOR,
    DraftPacing,
    SpokenPacing,
    best_paths,
    choose,
    estimate_alpha,
    expected_chain,
    make_pacing,
    room,
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


@pytest.mark.parametrize(("alpha", "depth"), [*itertools.product((0.0, 0.3, 0.8, 1.0), (1, 4, 9))])
def test_expected_tokens_of_a_chain(alpha: float, depth: int) -> None:
    """The closed form is the sum of the probabilities that the first 1, 2, … tokens are all right."""
    assert expected_chain(alpha, depth) == pytest.approx(sum(alpha**n for n in range(1, depth + 1)))


@pytest.mark.parametrize(("alpha", "depth"), [*itertools.product((20, 60, 95), (1, 2, 4))])
def test_the_most_probable_tree(alpha: int, depth: int) -> None:
    """The greedy construction picks the most probable of all paths, as enumeration does."""
    first = alpha / 100
    shares = [first, *(min(first, (1 - first) * share) for share in RANKS)]
    every = sorted(
        (float(np.prod(path)) for n in range(1, depth + 1) for path in itertools.product(shares, repeat=n)),
        reverse=True,
    )
    for nodes, (accepted, deepest) in enumerate(best_paths(alpha, depth), start=1):
        assert accepted == pytest.approx(sum(every[:nodes]))
        assert 1 <= deepest <= min(depth, nodes)


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


@given(
    st.integers(1, 99), st.booleans(), st.integers(1, 16), curves, st.floats(1e-5, 0.01), st.floats(1e-4, 1.0)
)
def test_the_size_chosen_is_the_best(
    alpha: int, tree: bool, remaining: int, cost: CostCurve, per_node_s: float, fixed_s: float
) -> None:
    """No other size of chain or tree brings more expected tokens per second."""
    most = room(Limits(), remaining, tree)
    choice = choose(alpha, tree, most, cost, per_node_s, fixed_s)
    paths = best_paths(alpha, most[1])
    for nodes in range(1, min(most[0], len(paths)) + 1 if most[1] else 0):
        found = paths[nodes - 1][0] if tree else expected_chain(alpha / 100, nodes)
        rate = (1 + found) / (nodes * per_node_s + fixed_s + pass_s(cost, nodes + 1))
        assert rate <= choice.tokens_per_s * (1 + 1e-9)
    assert choice.nodes <= most[0] and choice.depth <= most[1]


@pytest.mark.parametrize(("alpha", "depth"), [*itertools.product((0.2, 0.5, 0.8, 0.95), (3, 6))])
def test_acceptance_is_learnt(alpha: float, depth: int) -> None:
    """From a thousand simulated rounds of chains, the rate that made them comes back within three points."""
    right = np.random.default_rng(1).random((1000, depth)) < alpha
    accepted = int(np.cumprod(right, axis=1).sum())
    assert estimate_alpha(1000, 1000 * depth, accepted, tree=False) == pytest.approx(100 * alpha, abs=3)


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
        drafted=4 * rounds,
        accepted=rounds,
    )
    plan = make_pacing("tree" if tree else "chain", "edge").plan(inputs)
    assert plan.run_ahead == 0 and plan.rounds == 1
    assert (plan.max_depth >= 1) == (remaining > 1)
    assert plan.max_depth <= min(max(remaining - 1, 0), 5 if plan.tree else 7)
    assert plan.max_nodes <= (12 if plan.tree else 7)
    assert plan.tree == (tree and (Feature.TREES in granted or not granted))
    assert plan.floor < 0 and plan.reason


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
    wrong = replace(LOCAL, rounds=200, drafted=1000, accepted=0)
    pacing = DraftPacing(tree=False, may_stream=True)
    tries = [pacing.plan(replace(wrong, length=length)).max_depth > 0 for length in range(1024)]
    assert 0 < sum(tries) <= 8 * TRY_FOR
    assert pacing.plan(replace(LOCAL, draft_node_s=0.5)).max_depth == 0


@given(st.floats(1e-4, 1.0), st.integers(0, 100), st.floats(1e-4, 0.1), curves)
def test_auto_never_expects_less_than_streaming(
    rtt_s: float, percent: int, node_s: float, cost: CostCurve
) -> None:
    """Where auto drafts, and is not just trying, streaming is not expected to be more than five percent faster."""
    inputs = replace(
        LOCAL, rtt_s=rtt_s, draft_node_s=node_s, cost=cost, rounds=100, drafted=500, accepted=5 * percent
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
    far = replace(LOCAL, rtt_s=0.3, rounds=100, drafted=500, accepted=250)
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
    assert pacing.plan(replace(link, rounds=1, drafted=4, accepted=3, dry=20)).run_ahead == UNLIMITED
    busy = replace(link, rounds=200, drafted=800, accepted=640, dry=20)
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
