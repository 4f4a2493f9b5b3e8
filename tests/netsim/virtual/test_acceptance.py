"""What is accepted comes out as it was recorded."""

from __future__ import annotations

import pytest

from outrider.client.pacing import best_trees
from outrider.netsim.errors import BadConfig
from outrider.netsim.virtual.acceptance import (
    Acceptance,
    by_alpha,
    by_tau,
    from_rounds,
    luck,
    recorded,
    shape_of,
)


def emitted(accepts: Acceptance, depth: int, nodes: int, *, tree: bool, tokens: int = 60_000) -> float:
    """Tokens a round of simulated rounds along one long text."""
    fortune, place, rounds = luck(1, tokens), 0, 0
    shape = shape_of(accepts.law if tree else tuple(r[:1] for r in accepts.law), depth, nodes, tree)
    while place < tokens:
        place += 1 + len(shape.accepted(fortune, place, accepts.cumulated))
        rounds += 1
    return place / rounds


@pytest.mark.parametrize("tree", [False, True])
def test_rounds_bring_what_the_law_says(tree: bool) -> None:
    """Over 60,000 tokens within 2 %: some five standard errors."""
    accepts = Acceptance(((0.6, 0.15, 0.05), (0.7, 0.1), (0.5, 0.2)))
    nodes = 16 if tree else 6
    assert emitted(accepts, 6, nodes, tree=tree) == pytest.approx(accepts.tau(6, nodes, tree=tree), rel=0.02)


def test_shapes_are_those_that_pacing_counts() -> None:
    """As many nodes, levels and inner nodes as `pacing.best_trees` says, for every size."""
    law = by_alpha(0.65).law
    for number, size in enumerate(best_trees(law, 7, 32), start=1):
        shape = shape_of(law, 7, number, tree=True)
        assert (len(shape.parents), shape.depth, len(set(shape.parents))) == (
            size.nodes,
            size.depth,
            size.fed,
        )


def test_recorded_drafters_emit_what_was_recorded() -> None:
    """Chains of 6 and trees of 24 nodes, though shares by depth alone promise more."""
    easy_and_hard = [0.28, 0.74, 0.72, 0.71, None]
    accepts = recorded(easy_and_hard, 1.45, 1.6, "test")
    assert accepts.tau(6, 6, tree=False) == pytest.approx(1.45, abs=1e-3)
    assert accepts.tau(8, 24, tree=True) == pytest.approx(1.6, abs=1e-2)
    assert by_tau(3.0).tau(6, 6, tree=False) == pytest.approx(3.0, abs=1e-6)


def test_shares_by_depth_and_rank_from_rounds() -> None:
    """A node is judged where its parent was accepted; the path says which child it was."""
    tree, chain = (0, 0, 1), (0, 1)  # two children of the base, one below the first
    rounds = [(tree, (0, 2)), (tree, (1,)), (tree, ()), (chain, (0,))]
    accepts = from_rounds(rounds, "test")
    assert accepts.law[0][:2] == (0.5, 0.25)
    assert accepts.law[1][0] == 0.5


@pytest.mark.parametrize("law", [(), ((),), ((0.7, 0.6),), ((0.3, 0.4),), ((1.2,),)])
def test_impossible_laws_are_refused(law: tuple[tuple[float, ...], ...]) -> None:
    """Probabilities fall with the rank and sum to at most 1."""
    with pytest.raises(BadConfig):
        Acceptance(law)
