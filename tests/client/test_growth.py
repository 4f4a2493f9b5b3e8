"""How drafts grow: the kept tree is the best of everything that was seen, whole, and within its budget."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.drafter import Budget, Prices
from outrider.client.drafters.growth import ROOT, Pool, Shape, best_path, worth_keeping

Law = list[tuple[int, float]]


def law(seed: int, prefix: tuple[int, ...], coarse: bool) -> Law:
    """A ranked law over eight ids, a function of the prefix; coarse ones have many ties."""
    noise = np.random.default_rng((seed, *prefix, len(prefix)))
    weights = noise.integers(1, 3, 8).astype(float) if coarse else noise.exponential(1.0, 8)
    log_probs = np.log(weights / weights.sum())
    order = sorted(range(8), key=lambda token: (-log_probs[token], token))
    return [(token, float(log_probs[token])) for token in order]


def grow(seed: int, budget: Budget, coarse: bool, *, stop_early: bool = True) -> Pool:
    """A pool grown over `law` the way a drafter does it."""
    pool = Pool(budget)
    prefixes: dict[int, tuple[int, ...]] = {ROOT: ()}
    fresh = pool.add_level([ROOT], [law(seed, (), coarse)[: pool.shape.children]])
    while True:
        for index in fresh:
            node = pool.nodes[index]
            prefixes[index] = (*prefixes[node.parent], node.token_id)
        frontier = pool.frontier(fresh) if stop_early else widest(pool, fresh)
        if not frontier:
            return pool
        laws = [law(seed, prefixes[index], coarse)[: pool.shape.children] for index in frontier]
        fresh = pool.add_level(frontier, laws)


def widest(pool: Pool, fresh: list[int]) -> list[int]:
    """The frontier of EAGLE-2 as published: the best of the level, however hopeless."""
    if not fresh or pool.nodes[fresh[0]].depth >= pool.budget.max_depth:
        return []
    best = sorted(fresh, key=lambda index: (-pool.nodes[index].total, index))
    return sorted(best[: pool.shape.width])


budgets = st.builds(
    Budget,
    max_nodes=st.integers(1, 30),
    max_depth=st.integers(1, 8),
    tree=st.booleans(),
    floor=st.sampled_from([-float("inf"), -6.0, -2.0, -0.1]),
)


@given(st.integers(0, 10_000), budgets, st.booleans())
def test_drafts_are_whole_trees_within_their_budget(seed: int, budget: Budget, coarse: bool) -> None:
    """Never empty, never too large or deep, parents first, no twin siblings, siblings in rank order."""
    proposal, kept = grow(seed, budget, coarse).proposal()
    draft = proposal.draft
    most = budget.max_nodes if budget.tree else min(budget.max_nodes, budget.max_depth)
    assert 1 <= len(draft) <= most
    assert len(kept) == len(draft) == len(proposal.log_probs)
    draft.validate(vocabulary=8, max_nodes=30, max_depth=budget.max_depth, max_chain=8)
    assert max(draft.depths) <= budget.max_depth
    for row in range(len(draft) + 1):
        scores = [proposal.log_probs[node] for node in draft.children(row)]
        assert scores == sorted(scores, reverse=True)
    assert budget.tree or draft.is_chain


@given(st.integers(0, 10_000), budgets, st.booleans())
def test_stopping_early_loses_nothing(seed: int, budget: Budget, coarse: bool) -> None:
    """Nodes that are not expanded because they cannot matter do not matter."""
    early, _ = grow(seed, budget, coarse).proposal()
    whole, _ = grow(seed, budget, coarse, stop_early=False).proposal()
    assert set(zip(*paths(early), strict=True)) == set(zip(*paths(whole), strict=True))
    assert early.best_ids == whole.best_ids


def paths(proposal: object) -> tuple[list[tuple[int, ...]]]:
    """The ids from the base to each node."""
    draft = proposal.draft  # type: ignore[attr-defined]
    return ([tuple(draft.ids[n] for n in draft.path_to(node)) for node in range(len(draft))],)


@given(st.integers(0, 10_000), st.integers(3, 12), st.integers(1, 3))
def test_the_tree_is_the_best_one(seed: int, nodes: int, depth: int) -> None:
    """Where every child and level fits the shape, the kept paths are the most probable ones by enumeration."""
    budget = Budget(nodes, depth, tree=True)
    shape = Shape.of(budget)
    proposal, _ = grow(seed, budget, coarse=False).proposal()
    found = set(paths(proposal)[0])
    scored: dict[tuple[int, ...], float] = {(): 0.0}
    level: list[tuple[int, ...]] = [()]
    for _ in range(depth):
        children = {
            (*prefix, token): scored[prefix] + log_prob
            for prefix in level
            for token, log_prob in law(seed, prefix, False)[: shape.children]
        }
        scored |= children
        level = sorted(children, key=lambda path: -children[path])[: shape.width]
    del scored[()]
    assert found == set(sorted(scored, key=lambda path: -scored[path])[:nodes])


@given(st.integers(0, 10_000), st.integers(1, 8), st.sampled_from([-0.5, -2.0, -4.0]))
def test_chains_are_greedy_and_stop_at_the_floor(seed: int, depth: int, floor: float) -> None:
    """A chain follows the best token; it ends before its cumulative log-probability falls below the floor."""
    proposal, _ = grow(seed, Budget(depth, depth, floor=floor), coarse=False).proposal()
    expected: list[int] = []
    total = 0.0
    while len(expected) < depth:
        token, log_prob = law(seed, tuple(expected), False)[0]
        total += log_prob
        if expected and total < floor:
            break
        expected.append(token)
    assert proposal.draft.ids == tuple(expected)
    assert proposal.best_ids == tuple(expected)


def test_values_that_are_not_numbers_end_growth() -> None:
    """A graph that returns NaN yields no node, and an impossible child (+0.5) counts as certain, not as more."""
    pool = Pool(Budget(8, 4, tree=True))
    assert pool.add_level([ROOT], [[(1, float("nan")), (2, -0.1)]]) == []
    assert pool.frontier([]) == []
    fresh = pool.add_level([ROOT], [[(1, 0.5)]])
    assert pool.nodes[fresh[0]].total == 0.0


def test_best_path_takes_first_children() -> None:
    """From the base, the first child of each node."""
    assert best_path(()) == ()
    assert best_path((0, 0, 1, 1, 3)) == (0, 2, 4)


def test_shapes_grow_with_the_budget() -> None:
    """Chains are one wide; trees never expand more nodes than they may keep."""
    assert Shape.of(Budget(24, 8)) == Shape(1, 1)
    for nodes, depth in itertools.product(range(3, 65), (1, 8)):
        shape = Shape.of(Budget(nodes, depth, tree=True))
        assert 2 <= shape.children <= shape.width <= min(nodes, 8)


# ---------------------------------------------------------------------------------------------------- what it costs

FREE = Prices((0.0,), 0.0, 0.0, ((0.5, 0.2, 0.1, 0.05),))
priced = st.builds(
    lambda steps, level, node: Prices(tuple(itertools.accumulate([0.0, *steps])), level, node, FREE.law),
    st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.05, 0.4]), min_size=30, max_size=30),
    st.floats(0.0, 0.6),
    st.floats(0.0, 0.2),
)


@given(st.integers(0, 10_000), budgets, priced, st.booleans())
def test_priced_drafts_are_whole_trees_within_their_budget(
    seed: int, budget: Budget, prices: Prices, coarse: bool
) -> None:
    """With prices, too, a node's parent is kept, ties or not; bounds and floor hold; no draft is empty."""
    pool = grow(seed, replace(budget, prices=prices), coarse)
    proposal, kept = pool.proposal()
    assert 1 <= len(proposal.draft) <= budget.max_nodes
    assert max(proposal.draft.depths) <= budget.max_depth
    assert all(pool.nodes[index].parent in (ROOT, *kept) for index in kept)
    assert all(pool.nodes[index].total >= budget.floor for index in kept[1:])


@given(st.integers(0, 10_000), budgets, priced)
def test_what_is_kept_is_worth_most(seed: int, budget: Budget, prices: Prices) -> None:
    """No other number of the pool's best nodes brings more beyond its price, by trying all."""
    pool = grow(seed, replace(budget, prices=prices), coarse=False)
    proposal, _ = pool.proposal()
    chances = sorted((math.exp(node.total) for node in pool.nodes), reverse=True)[: budget.max_nodes]
    worth = [sum(chances[:n]) - prices.verify[min(n, 30)] for n in range(1, len(chances) + 1)]
    assert worth[len(proposal.draft) - 1] == pytest.approx(max(worth))
    assert worth_keeping(chances, prices)[1] == pytest.approx(max(worth))


@given(st.integers(0, 10_000), st.integers(3, 20), st.integers(1, 6))
def test_nothing_is_left_out_where_nothing_costs(seed: int, nodes: int, depth: int) -> None:
    """At prices of nought the draft is the one without prices."""
    budget = Budget(nodes, depth, tree=True)
    free, plain = (grow(seed, each, False).proposal()[0] for each in (replace(budget, prices=FREE), budget))
    assert set(paths(free)[0]) == set(paths(plain)[0])


@given(st.integers(0, 10_000), budgets, priced, st.floats(1.0, 4.0))
def test_dearer_passes_never_mean_more_of_them(
    seed: int, budget: Budget, prices: Prices, factor: float
) -> None:
    """When a pass of the drafter costs more, no more are made for the same text."""
    dear = replace(prices, level=prices.level * factor)
    cheap_pool, dear_pool = (
        grow(seed, replace(budget, tree=False, prices=each), False) for each in (prices, dear)
    )
    assert len(dear_pool.nodes) <= len(cheap_pool.nodes)


@pytest.mark.parametrize("price", [0.1, 0.2, 0.35, 0.6, 0.9])
def test_a_chain_ends_where_the_next_node_is_worth_less_than_its_pass(price: float) -> None:
    """First children of 0.8 and a law that knows it: the last node expanded is the last that pays."""
    prices = Prices((0.0,), price, 0.0, ((0.8,),))
    pool = Pool(Budget(40, 40, prices=prices))
    fresh = pool.add_level([ROOT], [[(1, math.log(0.8))]])
    while frontier := pool.frontier(fresh):
        fresh = pool.add_level(frontier, [[(1, math.log(0.8))]])
    # A node at depth d has 0.8 ** d; it is drafted while that is more than the pass costs.
    expected = max(1, max((d for d in range(1, 40) if 0.8**d > price), default=1))
    assert len(pool.nodes) == expected


def test_a_sibling_costs_no_pass_and_a_border_is_not_crossed_for_nothing() -> None:
    """Free rows are filled with whatever is there; the first row beyond the border has to pay for all of its pad."""
    staircase = Prices((0.0,) * 4 + (0.5,) * 8, 10.0, 0.0, ((0.5, 0.2),))
    children = [(token, math.log(chance)) for token, chance in enumerate((0.4, 0.3, 0.2, 0.05))]
    pool = Pool(Budget(12, 6, tree=True, prices=staircase))
    assert pool.frontier(pool.add_level([ROOT], [children])) == []
    assert pool.proposal()[0].draft.ids == (0, 1, 2)
    cheap = Pool(Budget(12, 6, tree=True, prices=replace(staircase, verify=(0.0,) * 4 + (0.04,) * 8)))
    cheap.add_level([ROOT], [children])
    assert cheap.proposal()[0].draft.ids == (0, 1, 2, 3)


def test_a_step_in_the_stairs_is_climbed_when_the_levels_behind_it_pay() -> None:
    """The next node alone does not pay for a wider pass; six sure ones together do."""
    prices = Prices((0.0, 0.0, *(1.5,) * 8), 0.05, 0.0, ((0.98,),))
    pool = Pool(Budget(9, 9, prices=prices))
    fresh = pool.add_level([ROOT], [[(1, math.log(0.98))]])
    assert pool.frontier(fresh) == [0]
    short = Pool(Budget(2, 2, prices=prices))
    assert short.frontier(short.add_level([ROOT], [[(1, math.log(0.98))]])) == []


def test_width_follows_the_price_of_a_node() -> None:
    """Free nodes are expanded together, dear ones only where the path is likely."""
    law = ((0.6, 0.3), (0.6, 0.3))
    children = [[(0, math.log(0.5)), (1, math.log(0.3)), (2, math.log(0.1))]]
    widths = []
    for node in (0.0, 0.15, 0.35, 0.6):
        pool = Pool(Budget(24, 6, tree=True, prices=Prices((0.0,), 0.01, node, law)))
        widths.append(len(pool.frontier(pool.add_level([ROOT], children))))
    assert widths == [3, 2, 1, 0]


def test_what_hangs_behind_unsent_tokens_is_dearer() -> None:
    """Behind two tokens that are right with 0.5 each, everything costs four times as much, rows from the third on."""
    prices = Prices((0.0, 0.1, 0.2, 0.4, 0.8), 0.05, 0.01, ((0.5,), (0.5,), (0.9,)))
    behind = prices.behind(2)
    assert behind.verify == pytest.approx((0.0, 0.8, 2.4))
    assert (behind.level, behind.node) == pytest.approx((0.2, 0.04))
    assert behind.child(1) == 0.9 and prices.behind(0) == prices
    assert prices.pays and not behind.pays
    assert prices.behind(50).verify == (0.0,)
