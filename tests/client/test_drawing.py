"""Drawn drafts: the laws that are sent are the drafter's, the tokens come from them, and the form was fixed before."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from outrider.client.drafter import Budget, Drawing, Prices, Proposal
from outrider.client.drafters.drawing import Drawn, Entries, draw, places, sparse_law
from outrider.client.drafters.growth import ROOT
from outrider.client.drafters.hybrid import HybridDrafter
from outrider.client.drafters.ngram import NgramDrafter
from outrider.client.drafters.oracle import OracleDrafter
from outrider.client.rules import manner_of
from outrider.cloud.rules import EXACT, KNOWN, check_draft
from outrider.shared.draft import DraftKind
from outrider.shared.frames import Rule
from outrider.shared.sampling import History, Sampling, law

SAMPLED, DISTINCT = DraftKind.SAMPLED, DraftKind.DISTINCT
IDS = np.array((40, 7, 23, 11, 90, 3))
LOGITS = np.array((1.2, 2.0, -0.3, 0.9, 0.1, 1.9))
TEXT = (7, 11, 5, 23, 11)
WARM = Sampling(0.8)


def drawing(
    kind: DraftKind = SAMPLED, key: int = 0, first: int = 1, below: int = 1, top: int = 16
) -> Drawing:
    """A drawing with a key of that number."""
    return Drawing(kind, key.to_bytes(8, "big"), first, below, top)


def drafted(how: Drawing, budget: Budget | None = None, entries: Entries = (IDS, LOGITS)) -> Proposal:
    """A draft whose every node has the same entries."""
    budget = budget or Budget(12, 4, sampling=WARM)
    return draw(Drawn(replace(budget, drawing=how), how, TEXT), lambda node: entries)


def chi_square(counts: Sequence[int], chances: Sequence[float]) -> float:
    """p-value, no cell of which is small."""
    total = sum(counts)
    terms = ((n - total * p) ** 2 / (total * p) for n, p in zip(counts, chances, strict=True))
    return float(chi2.sf(sum(terms), len(counts) - 1))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.5),
        Sampling(1.5, 4),
        Sampling(1.0, 0, 0.8),
        Sampling(1.0, min_p=0.4),
        Sampling(0.9, 0, 0.0, 0, 0.0, 1.4, 0.7, 0.3, 4, ((7, -1.0), (99, 5.0))),
        Sampling(),
    ],
)
def test_a_law_is_the_warped_softmax_of_the_logits(sampling: Sampling) -> None:
    """Each count is the float64 law over a whole vocabulary times 2^bits, rounded; nothing else has any."""
    dense = np.full(128, -np.inf)
    dense[IDS] = LOGITS
    text = sampling.history(TEXT, 2, (3,))
    whole = law(dense, sampling, text)
    told = sparse_law((IDS, LOGITS), sampling, text, drawing())
    assert set(told.ids) == set(np.flatnonzero(whole).tolist())
    assert np.abs(told.dense(128) - whole).max() <= len(IDS) * 2.0**-12


def test_only_the_likeliest_are_kept() -> None:
    """With three entries the law is that of the three, renormalised before it is rounded."""
    told = sparse_law((IDS, LOGITS), Sampling(1.0), None, drawing(top=3))
    kept = np.exp(LOGITS) / np.exp(LOGITS)[[0, 1, 5]].sum()
    assert set(told.ids) == {40, 7, 3}
    assert told.dense(128)[IDS[[0, 1, 5]]] == pytest.approx(kept[[0, 1, 5]], abs=2.0**-12)


def test_tokens_come_from_the_law_that_is_told() -> None:
    """6,000 drafts of two tokens: the pairs have the product law (36 cells; p >= 1e-4, seed fixed by the keys)."""
    counts: dict[tuple[int, ...], int] = {}
    for key in range(6000):
        proposal = drafted(drawing(key=key), Budget(2, 2, sampling=WARM))
        counts[proposal.draft.ids] = counts.get(proposal.draft.ids, 0) + 1
    own = dict(zip(proposal.draft.laws[0].ids, proposal.draft.laws[0].counts, strict=True))
    pairs = list(itertools.product(own, repeat=2))
    chances = [own[a] * own[b] / 4096**2 for a, b in pairs]
    assert chi_square([counts.get(pair, 0) for pair in pairs], chances) >= 1e-4


def test_draws_without_replacement_have_their_law_in_draw_order() -> None:
    """4,000 pairs of siblings: P(a, b) = p(a) p(b) / (1 - p(a)), 30 cells, none twice (p >= 1e-4)."""
    counts: dict[tuple[int, ...], int] = {}
    for key in range(4000):
        proposal = drafted(drawing(DISTINCT, key, 2, 2), Budget(2, 1, sampling=WARM))
        counts[proposal.draft.ids] = counts.get(proposal.draft.ids, 0) + 1
    own = {
        i: n / 4096 for i, n in zip(proposal.draft.laws[0].ids, proposal.draft.laws[0].counts, strict=True)
    }
    pairs = list(itertools.permutations(own, 2))
    assert set(counts) <= set(pairs)
    assert (
        chi_square([counts.get(p, 0) for p in pairs], [own[a] * own[b] / (1 - own[a]) for a, b in pairs])
        >= 1e-4
    )


def test_keys_are_what_tells_two_drafts_apart() -> None:
    """The same key draws the same draft; every node has a coin of its own."""
    assert drafted(drawing(key=1)) == drafted(drawing(key=1))
    drafts = {drafted(drawing(key=key)).draft.ids for key in range(50)}
    assert len(drafts) > 40
    twins = drafted(drawing(SAMPLED, 3, 4, 4), Budget(24, 3, sampling=WARM)).draft
    assert len(set(twins.ids)) > 1


@pytest.mark.parametrize(
    ("kind", "first", "below"), [(SAMPLED, 1, 1), (SAMPLED, 4, 1), (SAMPLED, 3, 3), (DISTINCT, 4, 4)]
)
def test_a_draft_keeps_all_that_was_drawn_in_a_form_fixed_before(
    kind: DraftKind, first: int, below: int
) -> None:
    """Whatever is drawn, the form is the same; laws pass the wire's checks; siblings are no more than asked."""
    budget = Budget(16, 5, tree=True, sampling=WARM)
    forms = set()
    for key in range(20):
        draft = drafted(drawing(kind, key, first, below), budget).draft
        draft.validate(vocabulary=128, max_nodes=16, max_depth=5, max_chain=5)
        assert draft.kind is kind and len(draft.laws) == len(draft.inner_rows)
        assert len(draft.children(0)) <= first
        assert all(len(draft.children(row)) <= below for row in range(1, len(draft) + 1))
        forms.add(
            tuple(sorted((depth, parent) for depth, parent in zip(draft.depths, draft.parents, strict=True)))
        )
    assert len(forms) == 1


def test_nothing_follows_an_end_of_text_or_a_law_without_choice() -> None:
    """A stop id is a leaf; a point mass is drawn once, and a law of two gives two children, not four."""
    budget = Budget(60, 3, tree=True, sampling=WARM, stop_ids=(7, 3))
    draft = drafted(drawing(DISTINCT, 5, 4, 4), budget).draft
    assert {7, 3} & set(draft.ids)
    assert all(not draft.children(node + 1) for node, token in enumerate(draft.ids) if token in (7, 3))
    sure = drafted(drawing(SAMPLED, 1, 4, 4), budget, (IDS[:1], LOGITS[:1])).draft
    assert sure.ids == (40, 40, 40) and sure.is_chain
    two = drafted(
        drawing(DISTINCT, 1, 4, 4), replace(budget, max_depth=1), (IDS[[0, 2]], LOGITS[[0, 2]])
    ).draft
    assert sorted(two.ids) == [23, 40]


def test_penalties_see_the_path() -> None:
    """Under a presence penalty the law below a token is the one after the text with that token."""
    sampling = Sampling(1.0, presence_penalty=2.0)
    budget = Budget(2, 2, sampling=sampling, generated_from=len(TEXT))
    draft = drafted(drawing(key=2), budget).draft
    below = sparse_law((IDS, LOGITS), sampling, History((*TEXT, draft.ids[0]), len(TEXT)), drawing())
    assert draft.laws == (sparse_law((IDS, LOGITS), sampling, History(TEXT, len(TEXT)), drawing()), below)
    assert draft.laws[0] != draft.laws[1]


def test_prices_make_drafts_smaller_never_empty() -> None:
    """Free drafts are as large as may be, dear ones have one node."""
    known = ((0.8, 0.1), (0.7, 0.1))
    free = Prices((0.0,) * 20, 0.0, 0.0, known)
    dear = Prices(tuple(float(n) for n in range(20)), 0.5, 0.5, known)
    budget = Budget(10, 10, tree=True)
    assert len(places(replace(budget, prices=free), drawing(DISTINCT, 0, 2, 2))) == 10
    assert len(places(replace(budget, prices=dear), drawing(DISTINCT, 0, 2, 2))) == 1


# ------------------------------------------------------------------------------------------------------------ drafters


def test_a_copy_is_drawn_from_what_followed() -> None:
    """Two continuations of the same beginning share the law by how often such ones are right; one alone is sure."""
    drafter = NgramDrafter()
    drafter.begin((1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3))
    how = drawing(SAMPLED)
    draft = drafter.propose(Budget(3, 3, sampling=Sampling(1.0), drawing=how)).draft
    assert set(draft.laws[0].ids) == {4, 5} and draft.kind is SAMPLED and draft.is_chain
    assert [one.counts for one in draft.laws[1:]] == [(4096,)] * (len(draft) - 1)
    greedy = drafter.propose(Budget(3, 3, drawing=how)).draft
    assert all(len(one.ids) == 1 for one in greedy.laws)
    drafter.begin((1, 2, 3))
    assert drafter.propose(Budget(3, 3, drawing=how)) == Proposal.empty()


@pytest.mark.parametrize("copies", [True, False])
def test_a_hybrid_draws_the_whole_draft_of_one_of_the_two(copies: bool) -> None:
    """Of the copy where its match is long, else of the model."""
    text = (*range(20, 40), *range(20, 38)) if copies else (5, 6, 7, 8)
    hybrid = HybridDrafter(OracleDrafter((*text, 1, 1, 1)))
    hybrid.begin(text)
    draft = hybrid.propose(Budget(2, 2, sampling=Sampling(1.0), drawing=drawing())).draft
    assert draft.ids == ((38, 39) if copies else (1, 1))
    assert draft.kind is (SAMPLED if copies else DraftKind.CHOSEN)


# --------------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize("rule", KNOWN.rules, ids=lambda rule: rule.name)
def test_each_rule_gets_drafts_of_its_kind(rule: object) -> None:
    """The device draws for exactly the rules that compare laws, as the verifier's own check wants it."""
    named = next(one for one in KNOWN.rules if one is rule)
    manner = manner_of(Rule(named.name))
    assert (manner is not None) is named.needs_laws
    if manner is not None:
        how = drawing(manner.kind, 4, manner.first, manner.below)
        draft = drafted(how, Budget(20, 4, tree=True, sampling=WARM)).draft
        check_draft(named, draft)
        assert named.name in EXACT.names or draft.is_chain


def test_the_base_of_a_batch_alone_has_siblings() -> None:
    """M sequences that part at the base."""
    manner = manner_of(Rule("batch"))
    assert manner is not None
    how = drawing(manner.kind, 1, manner.first, manner.below)
    draft = drafted(how, Budget(20, 4, tree=True, sampling=WARM)).draft
    assert len(draft.children(ROOT + 1)) == 4
    assert all(len(draft.children(row)) <= 1 for row in range(1, len(draft) + 1))
