"""The device's EAGLE-2 drafter on a random ONNX graph: rows may come when they like, nothing else changes a draft."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from outrider.client.drafter import Budget, Proposal
from outrider.client.drafters.eagle2 import INGEST_ALONE, Eagle2Drafter, make_eagle2
from outrider.client.drafters.graph import Array, Layout
from outrider.cloud.eagle2.device_half import DeviceHalf
from outrider.cloud.eagle2.kind import KIND
from outrider.shared.noise import gumbel
from outrider.shared.sampling import Sampling
from tests.client.proposals import same
from tests.tiny_features import (
    HIDDEN,
    VOCABULARY,
    Device,
    eagle2_settings,
    feature_text,
    random_eagle2,
    random_features,
)

LENGTH, MAX_POSITION = 24, 640
CHAIN = Budget(6, 6)
TREE = Budget(14, 5, tree=True)
IDS = np.random.default_rng(3).integers(0, VOCABULARY, 1024).tolist()


@cache
def model() -> bytes:
    """The float32 graph of the random drafter."""
    drafter, frozen = random_eagle2(eagle2_settings())
    content: bytes = KIND.build_graph(drafter, frozen, MAX_POSITION, {}, int8=False).SerializeToString()
    return content


def layout() -> Layout:
    """Its metadata as a bundle has it."""
    settings = eagle2_settings()
    return Layout(
        kind="eagle2",
        own_layers=settings.own_layers,
        own_width=settings.kv_width,
        tli_layers=0,
        row_mask=False,
        row_widths=(HIDDEN,),
        vocabulary=np.array(settings.draft_vocabulary, np.int64),
        kappa=1.3,
        max_position=MAX_POSITION,
        features=HIDDEN,
    )


@cache
def shared() -> Eagle2Drafter:
    """Holds the one session that all drafters of these tests use."""
    drafter = make_eagle2(model(), layout())
    assert isinstance(drafter, Eagle2Drafter)
    return drafter


@cache
def rows(length: int = LENGTH) -> Array:
    """True features of positions 0 … length-1."""
    return random_features(length).numpy()


def fresh(ids: list[int], known: int) -> Eagle2Drafter:
    """A drafter that has ``ids`` and the rows of the first ``known`` positions, and no past."""
    drafter = Eagle2Drafter(shared().graph, HIDDEN)
    drafter.add_rows(0, 0, rows()[:known])
    drafter.begin(ids)
    return drafter


@pytest.mark.parametrize("known", [0, 4, 9])
def test_a_chain_is_the_parallel_pass_along_it(known: int) -> None:
    """Each drafted token is the best of the training side's parallel pass over the text with the chain in it."""
    drafter, frozen = random_eagle2(eagle2_settings())
    drafted = fresh(IDS[:10], known).propose(CHAIN).draft.ids
    assert len(drafted) == 6
    text = feature_text(torch.tensor([*IDS[:10], *drafted]), torch.from_numpy(rows()[:16]), [known])
    with torch.no_grad():
        best = frozen.head(drafter([text], frozen).final).argmax(-1)[9 - known : -1]
    assert drafted == tuple(eagle2_settings().draft_vocabulary[index] for index in best)


@pytest.mark.parametrize("budget", [CHAIN, TREE])
def test_late_rows_give_the_draft_of_rows_that_were_always_there(budget: Budget) -> None:
    """Rounds whose rows come one round late, after part of a draft was accepted, end where punctual rows end."""
    drafter = fresh(IDS[:5], 0)
    while drafter.length < LENGTH - 7:
        proposal = drafter.propose(budget)
        drafter.accept(proposal.best_ids[: 1 + drafter.length % 4])
        drafter.accept([IDS[drafter.length]])
        drafter.propose(budget)
        drafter.add_rows(0, 0, rows()[: drafter.length - 1])
        same(drafter.propose(budget), fresh(drafter.ids, drafter.length - 1).propose(budget))


def test_rows_may_come_in_any_order_or_never() -> None:
    """Rows newest first, twice, or with a hole that is filled later: the same draft once all are there."""
    drafter = fresh(IDS[:12], 0)
    assert drafter.propose(CHAIN).draft.ids
    for start in (6, 2, 0, 4, 2):
        drafter.add_rows(0, start, rows()[start : start + 2])
        drafter.propose(CHAIN)
    same(drafter.propose(TREE), fresh(IDS[:12], 8).propose(TREE))


def test_rows_of_the_last_token_wait_for_the_next_one() -> None:
    """A row of the newest token is not looked at before something follows, and then its drafted child is fed again."""
    drafter, other = fresh(IDS[:10], 10), fresh(IDS[:10], 9)
    proposal = drafter.propose(CHAIN)
    same(proposal, other.propose(CHAIN))
    drafter.accept(proposal.best_ids[:3])
    assert drafter.counters.reused == 0
    same(drafter.propose(CHAIN), fresh(drafter.ids, 10).propose(CHAIN))


def test_accepted_drafts_are_not_computed_again_while_rows_are_missing() -> None:
    """Alone, a device feeds each token once: slots and predicted features of its own draft are taken over."""
    drafter = fresh(IDS[:10], 9)
    drafter.propose(Budget(1, 1))
    for _ in range(3):
        before = drafter.counters.ingested
        proposal = drafter.propose(CHAIN)
        drafter.accept(proposal.best_ids)
        assert drafter.counters.ingested - before == 6
    same(drafter.propose(CHAIN), fresh(drafter.ids, 9).propose(CHAIN))


def test_a_branch_off_the_best_path_is_kept_too() -> None:
    """Accepting the path to any node of a tree leaves the drafter as if these tokens had come by themselves."""
    for node in range(TREE.max_nodes):
        drafter = fresh(IDS[:10], 9)
        draft = drafter.propose(TREE).draft
        path = [draft.ids[n] for n in draft.path_to(node)]
        drafter.accept(path)
        other = fresh(IDS[:10], 9)
        other.accept(path)
        same(drafter.propose(CHAIN), other.propose(CHAIN))


@pytest.mark.parametrize("known", [0, 9])
def test_a_tree_node_scores_as_a_chain_on_its_path(known: int) -> None:
    """Every node's log-probability is the one a drafter gives that stands at the node's parent."""
    proposal = fresh(IDS[:10], known).propose(TREE)
    draft = proposal.draft
    assert not draft.is_chain
    draft.validate(vocabulary=VOCABULARY, max_nodes=14, max_depth=5, max_chain=14)
    for node, log_prob in enumerate(proposal.log_probs):
        drafter = fresh(IDS[:10], known)
        drafter.accept([draft.ids[n] for n in draft.path_to(node)[:-1]])
        children = drafter.propose(Budget(12, 1, tree=True))
        found = dict(zip(children.draft.ids, children.log_probs, strict=True))
        assert found[draft.ids[node]] == pytest.approx(log_prob, abs=1e-4)


def test_a_tree_holds_the_beginning_of_the_best_chain() -> None:
    """The best path of a tree is what the chain says, as deep as it goes."""
    for length in range(3, 12):
        tree, one = (fresh(IDS[:length], length - 1).propose(budget) for budget in (TREE, CHAIN))
        assert len(tree.best_ids) >= 1
        assert tree.best_ids == one.best_ids[: len(tree.best_ids)]


def test_rollback_forgets() -> None:
    """Cut to any length, with rows and a proposal beyond it, a drafter equals one that never went further."""
    for length in range(1, 12):
        drafter = fresh(IDS[:LENGTH], LENGTH - 1)
        drafter.propose(TREE)
        drafter.rollback(length)
        assert drafter.length == length
        same(drafter.propose(TREE), fresh(IDS[:length], length - 1).propose(TREE))


def test_begin_keeps_the_common_prefix() -> None:
    """A new turn on the same conversation costs its new tokens only."""
    drafter = fresh(IDS[:20], 15)
    drafter.propose(CHAIN)
    before = drafter.counters.ingested
    drafter.begin([*IDS[:15], *IDS[50:55]])
    drafter.propose(Budget(1, 1))
    assert drafter.counters.ingested - before == 5
    same(drafter.propose(CHAIN), fresh([*IDS[:15], *IDS[50:55]], 15).propose(CHAIN))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_first_token_is_the_shared_coins_choice(temperature: float) -> None:
    """The first drafted token is the best of logits / T + noise of its absolute position, by target id."""
    settings = eagle2_settings()
    sampling = Sampling(temperature=temperature, seed=77 if temperature else 0)
    vocabulary = np.array(settings.draft_vocabulary)
    half = DeviceHalf(*random_eagle2(settings))
    for length in range(2, 10):
        proposal = fresh(IDS[:length], length - 1).propose(Budget(1, 1, sampling=sampling))
        device = Device(half, torch.from_numpy(rows()), length - 1)
        scores = device.feed(torch.tensor(IDS[:length]))[-1].double().numpy()
        if temperature:
            scores = scores / temperature + gumbel(77, length, vocabulary, VOCABULARY)
        assert proposal.draft.ids == (vocabulary[scores.argmax()],)
        calibrated = scores * (temperature or 1.0) / 1.3
        expected = -np.log(np.exp(calibrated - calibrated.max()).sum())
        assert proposal.log_probs[0] == pytest.approx(expected, abs=1e-3)


def test_long_text_without_rows_costs_a_few_passes_and_heals() -> None:
    """A long text whose rows have not come is fed in a few runs; once they come, nothing of that is left."""
    drafter = fresh(IDS[:520], 0)
    drafter.propose(Budget(1, 1))
    assert drafter.counters.passes <= INGEST_ALONE + 4
    drafter.add_rows(0, 0, random_features(519).numpy())
    other = Eagle2Drafter(shared().graph, HIDDEN)
    other.begin(IDS[:520])
    other.add_rows(0, 300, random_features(519).numpy()[300:])
    other.propose(Budget(1, 1))
    other.add_rows(0, 0, random_features(519).numpy()[:300])
    same(drafter.propose(CHAIN), other.propose(CHAIN))


def test_nothing_is_proposed_beyond_the_last_position() -> None:
    """At the end of the positions the graph knows, drafts shorten and then stop; the sequence may go on."""
    drafter = fresh(IDS[: MAX_POSITION - 2], 0)
    assert len(drafter.propose(CHAIN).draft) == 2
    drafter.accept(IDS[:5])
    assert drafter.propose(CHAIN) == Proposal.empty()
    drafter.rollback(100)
    assert len(drafter.propose(CHAIN).draft) == 6


@pytest.mark.parametrize(
    ("plane", "start", "shape", "value"),
    [
        (1, 0, (2, HIDDEN), 0.0),
        (-1, 0, (2, HIDDEN), 0.0),
        (0, 0, (2, HIDDEN - 1), 0.0),
        (0, -1, (2, HIDDEN), 0.0),
    ]
    + [(0, MAX_POSITION - 1, (2, HIDDEN), 0.0), (0, 0, (2, HIDDEN), np.nan), (0, 8, (2, HIDDEN), np.inf)],
)
def test_rows_that_do_not_fit_are_refused(
    plane: int, start: int, shape: tuple[int, int], value: float
) -> None:
    """A plane, place, width or value that cannot be is refused, and the drafter goes on as before."""
    drafter = fresh(IDS[:10], 9)
    before = drafter.propose(CHAIN)
    with pytest.raises(ValueError, match="row"):
        drafter.add_rows(plane, start, np.full(shape, value, np.float32))
    same(drafter.propose(CHAIN), before)


@pytest.mark.parametrize(
    "change", [{"own_layers": 3}, {"row_widths": ()}, {"row_widths": (16,)}, {"features": 16}]
)
def test_a_graph_of_another_layout_is_refused(change: dict[str, object]) -> None:
    """Metadata that promises what the graph does not have is found before the first token."""
    with pytest.raises(ValueError, match=r"differs|one plane"):
        make_eagle2(model(), replace(layout(), **change))  # type: ignore[arg-type]
