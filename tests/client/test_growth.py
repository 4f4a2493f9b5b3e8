"""How drafts grow: the kept tree is the best of everything that was seen, whole, and within its budget."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.drafter import Budget
from outrider.client.drafters.growth import ROOT, Pool, Shape, best_path

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
