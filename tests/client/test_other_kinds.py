"""GLIDE and the independent model on the device: the machinery they share with MoA changes no prediction of theirs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from outrider.client.drafter import Budget
from outrider.client.drafters.graph import OnnxGraph
from outrider.client.drafters.hybrid import HybridDrafter
from outrider.client.drafters.moa import GraphDrafter
from outrider.cloud.glide.settings import GlideSettings
from outrider.cloud.independent.settings import IndependentSettings
from outrider.cloud.kinds.base import Text
from outrider.cloud.kinds.settings import DrafterSettings
from tests.client.proposals import same
from tests.tiny_kinds import SHAPE, VOCABULARY, graph_of, law, random_cache, random_kind, rows_of_kind

LENGTH = 24
IDS = np.random.default_rng(3).integers(0, VOCABULARY, 64).tolist()
CHAIN, TREE = Budget(6, 6), Budget(14, 5, tree=True)
SETTINGS: dict[str, DrafterSettings] = {
    "glide": GlideSettings(**SHAPE, num_layers=1, init_layers=(0,)),
    "glide all": GlideSettings(**SHAPE, num_layers=3, init_layers=(0, 4, 5)),
    "glide last": GlideSettings(**SHAPE, num_layers=3, first_cross=2, init_layers=(0, 4, 5)),
    "independent": IndependentSettings(**SHAPE, num_layers=2, init_layers=(0, 5)),
}
kinds = pytest.mark.parametrize("name", SETTINGS)


@cache
def made(name: str) -> tuple[Any, Any, OnnxGraph, tuple[NDArray[np.float32], ...]]:
    """Drafter, frozen parts, graph and the rows of the first positions."""
    drafter, frozen = random_kind(SETTINGS[name])
    with torch.no_grad():
        rows = rows_of_kind(drafter, random_cache(SETTINGS[name], LENGTH))
    return drafter, frozen, graph_of(drafter, frozen), tuple(plane.numpy() for plane in rows)


def fresh(name: str, ids: list[int], rows: int) -> GraphDrafter:
    """A device that has ``ids`` and the first ``rows`` rows, and no past."""
    _, _, graph, planes = made(name)
    drafter = GraphDrafter(graph)
    for plane, values in enumerate(planes):
        drafter.add_rows(plane, 0, values[:rows])
    drafter.begin(ids)
    return drafter


@kinds
@pytest.mark.parametrize("rows", [0, 4, 9])
def test_a_draft_is_what_the_training_pass_says(name: str, rows: int) -> None:
    """Every node of a chain has the parallel pass's log-probability at its place in a block begun by the last token."""
    drafter, frozen, graph, _ = made(name)
    device = fresh(name, IDS[:10], rows)
    assert device.kind == name.split()[0]
    proposal = device.propose(CHAIN)
    ids = torch.tensor([*IDS[:10], *proposal.draft.ids])
    begin = rows if rows else 0
    kv = random_cache(SETTINGS[name], LENGTH)[: len(ids)]
    with torch.no_grad():
        text = Text(ids, kv, begin, torch.full((len(ids) - begin,), begin))
        wanted = law(frozen, drafter([text], frozen).final)[9 - begin :]
    places = [graph.layout.vocabulary.tolist().index(token_id) for token_id in proposal.draft.ids]
    expected = [float(wanted[depth, place]) for depth, place in enumerate(places)]
    assert proposal.log_probs == pytest.approx(expected, abs=1e-3)


@kinds
@pytest.mark.parametrize("budget", [CHAIN, TREE])
def test_accepted_drafts_are_not_computed_again_and_nothing_changes(name: str, budget: Budget) -> None:
    """After rounds that accept part of a draft, proposals equal those of a device that begins with the same ids."""
    device = fresh(name, IDS[:5], 4)
    planes = made(name)[3]
    while device.length < LENGTH - 7:
        proposal = device.propose(budget)
        taken = proposal.best_ids[: 1 + device.length % 4]
        before, base = device.counters.reused, device.length
        device.accept(taken)
        device.accept([IDS[device.length]])
        for plane, values in enumerate(planes):
            device.add_rows(plane, base - 1, values[base - 1 : device.length - 1])
        assert device.counters.reused - before >= min(len(taken), len(proposal.best_ids) - 1)
        same(device.propose(budget), fresh(name, device.ids, device.length - 1).propose(budget))


@kinds
def test_a_tree_node_scores_as_a_chain_on_its_path(name: str) -> None:
    """Every node's log-probability is the one a device gives that stands at the node's parent with the same rows."""
    proposal = fresh(name, IDS[:10], 9).propose(TREE)
    draft = proposal.draft
    for node, log_prob in enumerate(proposal.log_probs):
        device = fresh(name, IDS[:10], 9)
        device.propose(CHAIN)
        device.accept([draft.ids[n] for n in draft.path_to(node)[:-1]])
        children = device.propose(Budget(12, 1, tree=True))
        found = dict(zip(children.draft.ids, children.log_probs, strict=True))
        assert found[draft.ids[node]] == pytest.approx(log_prob, abs=1e-4)


@kinds
def test_rollback_forgets(name: str) -> None:
    """Cut to any length, with a proposal beyond it, a device equals one that never went further."""
    for length in range(2, 12):
        device = fresh(name, IDS[:LENGTH], LENGTH - 1)
        device.propose(TREE)
        device.rollback(length)
        same(device.propose(TREE), fresh(name, IDS[:length], length - 1).propose(TREE))


@kinds
@pytest.mark.parametrize("accepted", [0, 4])
def test_late_rows_change_a_draft_as_early_ones_do(name: str, accepted: int) -> None:
    """Rows that come to a tail fed and drafted without them: each draft is that of a device that began with them."""
    device, planes = fresh(name, IDS[:10], 2), made(name)[3]
    device.accept(device.propose(TREE).best_ids[:accepted])
    for stop in (3, 6, device.length - 1):
        for plane, values in enumerate(planes):
            device.add_rows(plane, 2, values[2:stop])
        same(device.propose(TREE), fresh(name, device.ids, stop).propose(TREE))


@kinds
def test_an_ordinary_round_feeds_only_what_was_not_drafted(name: str) -> None:
    """Rows of all but the last token come with every verdict: only the new tokens are fed."""
    device, planes = fresh(name, IDS[:5], 4), made(name)[3]
    while device.length < LENGTH - 7:
        taken, base = device.propose(CHAIN).best_ids[: 1 + device.length % 5], device.length
        device.accept(taken)
        device.accept([IDS[device.length]])
        for plane, values in enumerate(planes):
            device.add_rows(plane, base - 1, values[base - 1 : device.length - 1])
        before, fed = device.counters.passes, device.counters.ingested
        device.propose(Budget(1, 1))
        assert (device.counters.passes - before, device.counters.ingested - fed) == (1, 1)


@kinds
def test_a_copy_beside_it_takes_nothing_from_it(name: str) -> None:
    """Merged with prompt lookup, whatever is accepted leaves the model as if it had come by itself."""
    text = [*IDS[:3], *(IDS[3:8] * 3)]
    rows = len(text) - 1
    count = len(HybridDrafter(fresh(name, text, rows)).propose(TREE).draft)
    for node in range(0, count, 3):
        model = fresh(name, text, rows)
        hybrid = HybridDrafter(model)
        hybrid.copy.begin(text)
        draft = hybrid.propose(TREE).draft
        path = [draft.ids[n] for n in draft.path_to(node)]
        hybrid.accept(path)
        other = fresh(name, text, rows)
        other.propose(CHAIN)
        other.accept(path)
        same(model.propose(CHAIN), other.propose(CHAIN))


def test_an_independent_device_takes_no_rows() -> None:
    """A kind without planes refuses rows, and drafts the same with or without a link."""
    device = fresh("independent", IDS[:10], 0)
    with pytest.raises(ValueError, match="plane"):
        device.add_rows(0, 0, np.zeros((1, 32), np.float32))
    assert device.layout.row_widths == ()
