"""Model and copy in one tree: merging is exact, never worse than either part, and takes nothing from the model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.client.drafter import Budget, Prices, Proposal, SequenceDrafter
from outrider.client.drafters.growth import best_path
from outrider.client.drafters.hybrid import LEFT, HybridDrafter, agreed, merge
from outrider.client.drafters.moa import GraphDrafter
from outrider.client.drafters.ngram import NgramDrafter
from outrider.shared.draft import Draft
from tests.client.test_moa import IDS, LENGTH, fresh, give, planes

TREE = Budget(14, 5, tree=True)
CHAIN = Budget(6, 6)
LOG_PROBS = st.integers(0, 40).map(lambda tenths: -tenths / 10)
Paths = dict[tuple[int, ...], float]


@st.composite
def proposals(draw: st.DrawFn, budget: Budget) -> Proposal:
    """Anything a drafter may answer within ``budget``."""
    count = draw(st.integers(0, budget.max_nodes if budget.tree else min(budget.max_nodes, budget.max_depth)))
    paths: list[tuple[int, ...]] = [()]
    parents: list[int] = []
    for _ in range(count):
        if budget.tree:
            parent = draw(st.integers(0, len(paths) - 1))
        else:
            parent = len(paths) - 1
        path = (*paths[parent], draw(st.integers(0, 3)))
        if len(path) > budget.max_depth or path in paths:
            break
        paths.append(path)
        parents.append(parent)
    log_probs = draw(st.lists(LOG_PROBS, min_size=len(parents), max_size=len(parents)).map(tuple))
    draft = Draft(tuple(path[-1] for path in paths[1:]), tuple(parents))
    return Proposal(draft, log_probs, best_path(draft.parents))


def paths_of(proposal: Proposal) -> Paths:
    """Path of ids → log-probability of its last token."""
    draft = proposal.draft
    return {
        tuple(draft.ids[n] for n in draft.path_to(node)): log_prob
        for node, log_prob in enumerate(proposal.log_probs)
    }


def totals(conditionals: Paths) -> Paths:
    """Path → log-probability of the whole path."""
    return {
        path: sum(conditionals[path[:count]] for count in range(1, len(path) + 1)) for path in conditionals
    }


def expected(conditionals: Paths) -> float:
    """Accepted tokens to be expected of a draft with these nodes."""
    return sum(math.exp(total) for total in totals(conditionals).values())


def together(one: Paths, other: Paths) -> Paths:
    """The union by the definition: at each place, every token's weight over that of all and of none."""
    found: Paths = {}
    for path in {**one, **other}:
        sides = []
        for side in (one, other):
            here = {p: math.exp(x) for p, x in side.items() if p[:-1] == path[:-1]}
            sides.append((here, max(1 - sum(here.values()), LEFT) if here else 1.0))
        if not all(here for here, _ in sides):
            found[path] = one.get(path, other.get(path, math.nan))
            continue
        (left, a), (right, b) = sides
        whole = a * b + sum(left.get(p, a) * right.get(p, b) for p in {**left, **right})
        found[path] = math.log(left.get(path, a) * right.get(path, b) / whole)
    return found


@given(st.data(), st.integers(1, 9), st.integers(1, 5), st.booleans())
@settings(max_examples=150, deadline=None)
def test_merging_is_exact(data: st.DataObject, nodes: int, depth: int, tree: bool) -> None:
    """By brute force: every path once with what both say of it, the likeliest nodes kept, parents first."""
    budget = Budget(nodes, depth, tree=tree)
    one, other = data.draw(proposals(budget)), data.draw(proposals(budget))
    merged = merge((one, other), budget)
    union = together(paths_of(one), paths_of(other))
    found = paths_of(merged)
    assert len(found) == len(merged.draft) <= nodes
    assert found == pytest.approx({path: union[path] for path in found})
    merged.draft.validate(vocabulary=4, max_nodes=nodes, max_depth=depth, max_chain=depth, trees=tree)
    assert merged.best_path == best_path(merged.draft.parents)
    if tree:
        best = sorted(totals(union).values(), reverse=True)[:nodes]
        assert sorted(totals(found).values(), reverse=True) == pytest.approx(best)
    else:
        chains = [{path[:count]: union[path[:count]] for count in range(1, len(path) + 1)} for path in union]
        assert merged.draft.is_chain
        assert expected(found) == pytest.approx(max(map(expected, chains), default=0.0))
    for part in (one, other):
        assert expected(found) >= expected({path: union[path] for path in paths_of(part)}) - 1e-9


def test_two_readings_of_one_truth_make_its_posterior() -> None:
    """Two that name the truth with probabilities .9 and .5, and another at random among many otherwise: by counting."""
    assert agreed([{1: 0.9}, {2: 0.5}]) == pytest.approx({1: 0.9 * 0.5 / 0.55, 2: 0.1 * 0.5 / 0.55})
    assert agreed([{1: 0.9}, {1: 0.5}]) == pytest.approx({1: 0.45 / 0.5})
    assert agreed([{1: 0.6, 2: 0.3}, {2: 0.8}]) == pytest.approx({1: 0.12 / 0.38, 2: 0.24 / 0.38})
    assert agreed([{1: 0.7, 3: 0.1}]) == pytest.approx({1: 0.7, 3: 0.1})


@given(
    st.lists(st.dictionaries(st.integers(0, 4), st.floats(0.001, 0.3), max_size=3), min_size=1, max_size=3)
)
def test_what_is_agreed_on_is_a_law(opinions: list[dict[int, float]]) -> None:
    """Shares of all tokens named, of which something is left; more for a token where one gives it more."""
    found = agreed(opinions)
    assert set(found) == {token for opinion in opinions for token in opinion}
    assert all(share > 0 for share in found.values()) and sum(found.values()) < 1.0
    for token in opinions[0]:
        surer = [{**opinions[0], token: opinions[0][token] + 0.05}, *opinions[1:]]
        assert agreed(surer)[token] > found[token]


@given(st.data())
def test_siblings_stand_in_rank_order(data: st.DataObject) -> None:
    """The first child of every node is its likeliest, so the best path is the one to write on alone."""
    merged = merge((data.draw(proposals(TREE)), data.draw(proposals(TREE))), TREE)
    for row in range(len(merged.draft) + 1):
        scores = [merged.log_probs[node] for node in merged.draft.children(row)]
        assert scores == sorted(scores, reverse=True)


@given(st.data(), st.lists(st.floats(0, 0.5), min_size=1, max_size=12), st.booleans())
@settings(deadline=None)
def test_with_prices_only_what_is_worth_it_is_sent(
    data: st.DataObject, steps: list[float], tree: bool
) -> None:
    """No other number of the best nodes, and no other end of a chain, brings more beyond its price."""
    verify = (0.0, *itertools.accumulate(steps))
    free = Budget(9, 5, tree=tree)
    parts = data.draw(proposals(free)), data.draw(proposals(free))
    priced = replace(free, prices=Prices(verify, level=0.1, node=0.1, law=((0.5,),)))

    def worth(conditionals: Paths) -> float:
        return expected(conditionals) - verify[min(len(conditionals), len(verify) - 1)]

    whole, kept = paths_of(merge(parts, free)), paths_of(merge(parts, priced))
    assert bool(kept) == bool(whole)
    if not kept:
        return
    if tree:
        ranked = list(whole)
        others = [dict(itertools.islice(whole.items(), count)) for count in range(1, len(ranked) + 1)]
    else:
        union = together(*map(paths_of, parts))
        others = [{path[:n]: union[path[:n]] for n in range(1, len(path) + 1)} for path in union]
    assert worth(kept) == pytest.approx(max(map(worth, others)))


class Fixed(SequenceDrafter):
    """Says what it was told to say."""

    kind = "fixed"

    def __init__(self, proposal: Proposal) -> None:
        super().__init__()
        self.proposal = proposal

    def propose(self, budget: Budget) -> Proposal:
        """The given proposal."""
        return self.count(self.proposal)


def chain(ids: Sequence[int], probability: float) -> Proposal:
    """A chain every token of which has this probability."""
    return Proposal.chain(ids, [math.log(probability)] * len(ids))


@pytest.mark.parametrize(("model", "copy"), [(0.9, 0.5), (0.5, 0.9)])
def test_a_chain_is_the_likelier_of_the_two(model: float, copy: float) -> None:
    """Without room for branches, the surer drafter's chain is sent, whole."""
    drafter = HybridDrafter(Fixed(chain((1, 2, 3, 4), model)), Fixed(chain((1, 7, 8, 9), copy)))
    assert drafter.propose(Budget(4, 4)).draft.ids == ((1, 2, 3, 4) if model > copy else (1, 7, 8, 9))


def test_a_tree_holds_both_chains_with_their_beginning_once() -> None:
    """Where model and copy part, there are two branches, one dearer than the other; what they share is there once."""
    drafter = HybridDrafter(Fixed(chain((1, 2, 3), 0.6)), Fixed(chain((1, 7, 8), 0.9)))
    proposal = drafter.propose(Budget(8, 8, tree=True))
    shares = {(1,): 0.54 / 0.58, (1, 7): 0.36 / 0.46, (1, 7, 8): 0.9, (1, 2): 0.06 / 0.46, (1, 2, 3): 0.6}
    assert paths_of(proposal) == pytest.approx({path: math.log(share) for path, share in shares.items()})
    assert proposal.best_ids == (1, 7, 8)
    assert drafter.counters.nodes == 5
    assert drafter.counters.proposals == 1


def test_a_silent_part_leaves_the_other_as_it_is() -> None:
    """With nothing to copy, the proposal is the model's; with a model that has no room, it is the copy."""
    model = chain((1, 2), 0.7)
    for budget in (Budget(4, 4), Budget(4, 4, tree=True)):
        assert HybridDrafter(Fixed(model), Fixed(Proposal.empty())).propose(budget) == model
        assert HybridDrafter(Fixed(Proposal.empty()), Fixed(model)).propose(budget) == model
        assert HybridDrafter(Fixed(Proposal.empty())).propose(budget) == Proposal.empty()


LOOP = [IDS[0], *(IDS[1:6] * 3)]
"""Text that repeats itself: there is always something to copy."""


def hybrid(ids: Sequence[int], rows: int = 4) -> HybridDrafter:
    """A random MoA with lookup beside it."""
    drafter = HybridDrafter(GraphDrafter(fresh(0, [1, 2], 0).graph))
    give(drafter.model, planes(0), 0, rows)  # type: ignore[arg-type]
    drafter.begin(list(ids))
    return drafter


@pytest.mark.parametrize("budget", [CHAIN, TREE])
def test_whatever_is_accepted_the_model_is_as_if_it_had_come_by_itself(budget: Budget) -> None:
    """After accepting the path to any node, the model's or the copy's, the next draft is a fresh drafter's."""
    kinds = set()
    for node in range(len(hybrid(LOOP).propose(budget).draft)):
        drafter = hybrid(LOOP)
        base = drafter.length
        draft = drafter.propose(budget).draft
        path = [draft.ids[n] for n in draft.path_to(node)]
        drafter.accept(path)
        kinds.add(drafter.model.counters.reused)
        drafter.accept([IDS[40]])
        other = hybrid([*LOOP, *path, IDS[40]])
        mine, theirs = drafter.propose(budget), other.propose(budget)
        assert mine.draft == theirs.draft
        assert mine.log_probs == pytest.approx(theirs.log_probs, abs=1e-4)
        drafter.rollback(base)
        assert drafter.length == drafter.copy.length == base
    if budget.tree:
        assert max(kinds) > 0


def test_the_models_work_is_reused_where_it_drafted_the_same() -> None:
    """Accepting the model's own path costs the model nothing again; a copied token breaks off there."""
    drafter = hybrid(LOOP)
    plain = fresh(0, LOOP, 4)
    chain_ids = plain.propose(TREE).best_ids
    drafter.propose(TREE)
    drafter.accept(chain_ids[:3])
    assert drafter.counters.reused == 3
    again = hybrid(LOOP)
    again.propose(CHAIN)
    copied = next(i for i in itertools.count() if i != chain_ids[0])
    again.accept([copied])
    assert again.counters.reused == 0
    assert again.model.length == again.copy.length == len(LOOP) + 1


def test_rows_reach_the_model() -> None:
    """State rows are forwarded, counted once, and change the draft."""
    text = list(IDS[:10])
    with_rows, without = hybrid(text, 9), hybrid(text, 0)
    assert with_rows.counters.rows == 9
    assert with_rows.propose(CHAIN).log_probs != without.propose(CHAIN).log_probs


def test_begin_keeps_what_both_know() -> None:
    """A new turn on the same conversation costs the model its new tokens only."""
    drafter = hybrid(IDS[: LENGTH - 4])
    before = drafter.counters.ingested
    drafter.begin([*IDS[: LENGTH - 6], *IDS[50:53]])
    assert drafter.counters.ingested - before <= 3
    assert drafter.length == drafter.copy.length == LENGTH - 3


def test_lookup_is_the_default_copy() -> None:
    """Given a model alone, the copy is prompt lookup."""
    assert isinstance(HybridDrafter(Fixed(Proposal.empty())).copy, NgramDrafter)
