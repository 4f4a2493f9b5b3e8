"""The device's Medusa drafter: the right heads on the newest row, fixed trees of any size, and silence beyond."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.client.cost import StepTimes
from outrider.client.drafter import Budget, Confidence, Drawing, Law, Prices, Proposal
from outrider.client.drafters.graph import Array, Layout
from outrider.client.drafters.medusa import MAX_HEADS, MedusaDrafter, MedusaGraph, make_medusa
from outrider.client.drafters.shapes import DEFAULT_LAW, Node, sparse_tree
from outrider.client.pacing import Size, draft_s
from outrider.cloud.medusa.kind import KIND
from outrider.shared.draft import DraftKind
from outrider.shared.laws import quantise
from outrider.shared.noise import gumbel
from outrider.shared.sampling import Sampling
from tests.tiny_features import HIDDEN, VOCABULARY, medusa_settings, random_features, random_medusa

HEADS, MAX_POSITION = 4, 64
CHAIN = Budget(8, 8)
TREE = Budget(14, 5, tree=True)
IDS = np.random.default_rng(3).integers(0, VOCABULARY, 128).tolist()
LAWS = st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=5), min_size=1, max_size=5)


@cache
def model() -> bytes:
    """The float32 graph of the random drafter."""
    drafter, frozen = random_medusa(medusa_settings(HEADS))
    content: bytes = KIND.build_graph(drafter, frozen, MAX_POSITION, {}, int8=False).SerializeToString()
    return content


def layout() -> Layout:
    """Its metadata as a bundle has it."""
    return Layout(
        kind="medusa",
        own_layers=0,
        own_width=0,
        tli_layers=0,
        row_mask=False,
        row_widths=(HIDDEN,),
        vocabulary=np.array(medusa_settings().draft_vocabulary, np.int64),
        kappa=1.3,
        max_position=MAX_POSITION,
    )


@cache
def graph() -> MedusaGraph:
    """One session for all tests."""
    return MedusaGraph(model(), layout())


@cache
def rows(length: int = 24) -> Array:
    """Final states of positions 0 … length-1."""
    return random_features(length).numpy()


def fresh(ids: list[int], known: int, law: Law = ()) -> MedusaDrafter:
    """A drafter that has ``ids`` and the rows of the first ``known`` positions."""
    drafter = MedusaDrafter(graph())
    drafter.confidence = Confidence(law)
    drafter.add_rows(0, 0, rows()[:known])
    drafter.begin(ids)
    return drafter


@cache
def best(position: int, head: int) -> tuple[int, ...]:
    """Draft tokens of a head for the state of a position, best first, from torch."""
    drafter, frozen = random_medusa(medusa_settings(HEADS))
    with torch.no_grad():
        logits = frozen.head(drafter.heads[head](torch.from_numpy(rows()[position : position + 1])))[0]
    vocabulary = torch.tensor(drafter.settings.draft_vocabulary)
    return tuple(vocabulary[logits.argsort(descending=True)].tolist())


@pytest.mark.parametrize("behind", range(HEADS + 2))
def test_heads_count_from_the_newest_row(behind: int) -> None:
    """With the newest row k tokens late the first k heads are past; with all past, nothing is proposed."""
    drafter = fresh(IDS[:12], 11 - behind)
    proposal = drafter.propose(CHAIN)
    assert proposal.draft.ids == tuple(best(10 - behind, head)[0] for head in range(behind, HEADS))
    assert (proposal == Proposal.empty()) == (behind >= HEADS)


def test_alone_it_drafts_as_many_tokens_as_it_has_heads() -> None:
    """Accepting its own drafts without new rows, a device gets a token a head and then nothing, until a row comes."""
    drafter, seen = fresh(IDS[:10], 9), []
    for _ in range(HEADS):
        (token,) = drafter.propose(Budget(1, 1)).draft.ids
        drafter.accept([token])
        seen.append(token)
    assert seen == [best(8, head)[0] for head in range(HEADS)]
    assert drafter.propose(TREE) == Proposal.empty()
    drafter.add_rows(0, 12, rows()[12:13])
    assert drafter.propose(Budget(1, 1)).draft.ids == (best(12, 0)[0],)


def test_only_the_newest_row_below_the_last_token_matters() -> None:
    """Older rows, rows of the last token and beyond, and rows cut by a rollback change nothing."""
    wanted = fresh(IDS[:12], 11).propose(TREE)
    drafter = MedusaDrafter(graph())
    drafter.begin(IDS[:12])
    assert drafter.propose(TREE) == Proposal.empty()
    drafter.add_rows(0, 10, rows()[10:13])
    assert drafter.propose(TREE) == wanted
    drafter.accept(IDS[20:26])
    drafter.add_rows(0, 13, rows()[13:17])
    drafter.rollback(12)
    assert drafter.propose(TREE) == wanted
    drafter.begin([*IDS[:9], *IDS[40:43]])
    assert drafter.propose(TREE) == Proposal.empty()


@pytest.mark.parametrize("behind", [0, 2])
@pytest.mark.parametrize("nodes", [1, 2, 3, 8, 16, 40])
def test_a_tree_is_a_valid_draft_with_its_best_chain(nodes: int, behind: int) -> None:
    """Any node budget gives a valid tree of exactly that size, whose best path is the chain as deep as it goes."""
    drafter = fresh(IDS[:12], 11 - behind)
    tree = drafter.propose(Budget(nodes, 5, tree=True))
    draft, one = tree.draft, drafter.propose(CHAIN)
    draft.validate(vocabulary=VOCABULARY, max_nodes=nodes, max_depth=5, max_chain=nodes)
    assert len(draft) == (nodes if nodes >= 3 else min(nodes, HEADS - behind))
    assert tree.best_ids == one.best_ids[: len(tree.best_ids)] and tree.best_ids
    for node, (token, depth) in enumerate(zip(draft.ids, draft.depths, strict=True)):
        siblings = [draft.ids[n] for n in draft.children(draft.parents[node])]
        assert token in best(10 - behind, behind + depth - 1)[: len(siblings)]


def test_measured_confidence_shapes_the_tree() -> None:
    """Heads that are sure make a deep tree, heads that are not a wide one."""
    sure, unsure = ((0.9, 0.05, 0.02),) * HEADS, ((0.3, 0.25, 0.2),) * HEADS
    deep, wide = (fresh(IDS[:12], 11, law).propose(Budget(6, 6, tree=True)).draft for law in (sure, unsure))
    assert max(deep.depths) == HEADS
    assert len(wide.children(0)) == 3


@given(law=LAWS, nodes=st.integers(1, 30))
@settings(max_examples=100, deadline=None)
def test_no_tree_of_that_size_is_likelier(law: list[list[float]], nodes: int) -> None:
    """Best-first construction takes the most valuable places there are, closed under parents and better siblings."""
    rows = tuple(tuple(sorted(row, reverse=True)) for row in law)
    everything = _all_paths(rows)
    tree = sparse_tree(rows, nodes)
    paths: list[tuple[int, ...]] = [()]
    for node in tree:
        paths.append((*paths[node.parent], node.rank))
        assert len(paths[-1]) == node.depth
    assert len(tree) == min(nodes, len(everything)) and len(set(paths)) == len(paths)
    for path in paths[1:]:
        assert path[:-1] in paths and (path[-1] == 0 or (*path[:-1], path[-1] - 1) in paths)
    values = sorted((math.prod(rows[d][r] for d, r in enumerate(path)) for path in everything), reverse=True)
    mine = sum(math.prod(rows[d][r] for d, r in enumerate(path)) for path in paths[1:])
    assert mine == pytest.approx(sum(values[: len(tree)]))


def test_the_default_tree_grows_node_by_node() -> None:
    """Trees of growing budgets are beginnings of each other, and the first node is the first head's best."""
    whole = sparse_tree(DEFAULT_LAW, 63)
    assert whole[0] == Node(0, 1, 0)
    for nodes in range(1, 63):
        assert sparse_tree(DEFAULT_LAW, nodes) == whole[:nodes]


def test_floor_and_prices_shorten_a_draft() -> None:
    """What lies below the floor is left out, but never the first token; dear verification leaves one node."""
    drafter = fresh(IDS[:12], 11)
    whole = drafter.propose(TREE)
    floor = whole.log_probs[0] + whole.log_probs[whole.best_path[1]] + 1e-9
    some = drafter.propose(replace(TREE, floor=floor))
    assert 1 <= len(some.draft) < len(whole.draft)
    assert len(drafter.propose(replace(TREE, floor=0.0)).draft) == 1
    dear = Prices(tuple(float(n) for n in range(20)), 0.0, 0.0, ((0.5,),))
    assert len(drafter.propose(replace(TREE, prices=dear)).draft) == 1
    free = Prices((0.0,) * 20, 0.0, 0.0, ((0.5,),))
    assert drafter.propose(replace(TREE, prices=free)) == whole


@pytest.mark.parametrize("behind", [0, 1])
def test_each_head_guesses_the_coins_of_its_own_position(behind: int) -> None:
    """At temperature > 0 a token is the best of logits / T + noise of the position it would stand at."""
    sampling = Sampling(temperature=0.7, seed=77)
    vocabulary = np.array(medusa_settings().draft_vocabulary)
    drafter, frozen = random_medusa(medusa_settings(HEADS))
    proposal = fresh(IDS[:12], 11 - behind).propose(replace(CHAIN, sampling=sampling))
    drafted = proposal.draft.ids
    for level, token in enumerate(drafted):
        state = torch.from_numpy(rows()[10 - behind : 11 - behind])
        with torch.no_grad():
            logits = frozen.head(drafter.heads[behind + level](state))[0].double().numpy()
        scores = logits / 0.7 + gumbel(77, 12 + level, vocabulary, VOCABULARY)
        assert token == vocabulary[scores.argmax()]
        calibrated = scores * 0.7 / 1.3
        expected = -np.log(np.exp(calibrated - calibrated.max()).sum())
        assert proposal.log_probs[level] == pytest.approx(expected, abs=1e-3)
    assert len(drafted) == HEADS - behind


@pytest.mark.parametrize("behind", [0, 1])
def test_drawn_tokens_come_with_the_law_of_their_head(behind: int) -> None:
    """A node's law is softmax(logits / T) of the head that drafts for its depth, cut to eight ids and rounded."""
    vocabulary = np.array(medusa_settings().draft_vocabulary)
    drafter, frozen = random_medusa(medusa_settings(HEADS))
    how = Drawing(DraftKind.DISTINCT, b"key", 3, 2, top=8)
    budget = Budget(16, 3, tree=True, sampling=Sampling(0.7), drawing=how)
    draft = fresh(IDS[:12], 11 - behind).propose(budget).draft
    assert len(draft) == 16 and draft.kind is DraftKind.DISTINCT
    depths = (0, *draft.depths)
    for row, told in zip(draft.inner_rows, draft.laws, strict=True):
        state = torch.from_numpy(rows()[10 - behind : 11 - behind])
        with torch.no_grad():
            logits = frozen.head(drafter.heads[behind + depths[row]](state))[0].double().numpy()
        weights = np.exp((logits - logits.max()) / 0.7)
        expected = quantise(weights / weights.sum(), top=8, bits=12, ids=vocabulary)
        assert told.ids == expected.ids
        assert told.counts == pytest.approx(expected.counts, abs=1)  # the graph computes in float32


def test_nothing_is_proposed_beyond_the_last_position() -> None:
    """At the end of the positions the bundle serves, drafts shorten and then stop."""
    drafter = MedusaDrafter(graph())
    drafter.begin(IDS[: MAX_POSITION - 2])
    drafter.add_rows(0, MAX_POSITION - 4, rows()[:1])
    drafter.add_rows(0, MAX_POSITION - 5, rows()[:1])
    assert len(drafter.propose(CHAIN).draft) == 2
    drafter.accept(IDS[:4])
    assert drafter.propose(CHAIN) == Proposal.empty()


@pytest.mark.parametrize("change", [{"row_widths": ()}, {"row_widths": (16,)}, {"vocabulary": np.arange(7)}])
def test_a_graph_of_another_layout_is_refused(change: dict[str, object]) -> None:
    """Metadata that promises what the graph does not have is found before the first token."""
    with pytest.raises(ValueError, match=r"differs|one plane"):
        make_medusa(model(), replace(layout(), **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [Budget(1, 1), CHAIN, Budget(6, 2, tree=True), TREE])
def test_pacing_charges_a_draft_what_its_run_takes(budget: Budget) -> None:
    """One run gives all levels: reckoned by levels and nodes as pacing does, a draft costs what was measured."""
    drafter, times = fresh(IDS[:12], 11), StepTimes()
    for _ in range(8):
        passes, fed = drafter.counters.passes, drafter.counters.ingested
        draft = drafter.propose(budget).draft
        times.add(drafter.counters.passes - passes, drafter.counters.ingested - fed, 0.003)
    size = Size(len(draft), max(draft.depths), len(set(draft.parents)), 0.0)
    step = times.cost()
    assert step is not None and draft_s(size, step) == pytest.approx(0.003)


def test_a_silent_round_counts_no_run() -> None:
    """Where no head reaches, nothing runs, and nothing is counted but the proposal."""
    drafter = fresh(IDS[:12], 3)
    drafter.propose(CHAIN)
    assert (drafter.counters.proposals, drafter.counters.passes, drafter.counters.ingested) == (1, 0, 0)


@pytest.mark.parametrize("heads", ["n", "4", 0, MAX_HEADS + 1, 10**9])
def test_a_graph_of_no_fixed_or_too_many_heads_is_refused(heads: int | str) -> None:
    """The device makes noise for every head: their number is fixed in the graph, and bounded."""
    single, frozen = random_medusa(medusa_settings(1))  # one head goes with noise of any height
    graph = KIND.build_graph(single, frozen, MAX_POSITION, {}, int8=False)
    (noise,) = (tensor for tensor in graph.graph.input if tensor.name == "noise")
    dim = noise.type.tensor_type.shape.dim[0]
    if isinstance(heads, str):
        dim.dim_param = heads
    else:
        dim.dim_value = heads
    with pytest.raises(ValueError, match="heads"):
        make_medusa(graph.SerializeToString(), layout())


def _all_paths(law: Law) -> list[tuple[int, ...]]:
    """Every path of ranks, the empty one left out."""
    paths: list[tuple[int, ...]] = [()]
    level = paths
    for row in law:
        level = [(*path, rank) for path in level for rank in range(len(row))]
        paths = paths + level
    return paths[1:]
