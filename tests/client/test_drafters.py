"""Drafters without a model: prompt lookup, the oracle and its spoiled versions, and none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.drafter import Budget, Drafter, Proposal
from outrider.client.drafters.adversarial import AdversarialDrafter
from outrider.client.drafters.ngram import NgramDrafter, confidence, longest_match
from outrider.client.drafters.noisy import NoisyDrafter
from outrider.client.drafters.none import NoDrafter
from outrider.client.drafters.oracle import OracleDrafter

VOCABULARY = 32
TRUTH = tuple((7 * n * n + 3 * n) % VOCABULARY for n in range(200))
budgets = st.builds(Budget, max_nodes=st.integers(0, 20), max_depth=st.integers(0, 8), tree=st.booleans())


def kinds() -> list[Drafter]:
    """One of each."""
    return [
        NoDrafter(),
        NgramDrafter(),
        OracleDrafter(TRUTH),
        NoisyDrafter(TRUTH, 0.3, seed=1, vocabulary=VOCABULARY),
        AdversarialDrafter(TRUTH, (2, 5), seed=1, vocabulary=VOCABULARY),
    ]


@given(st.integers(0, 4), st.integers(0, 210), budgets)
def test_every_proposal_keeps_the_contract(kind: int, length: int, budget: Budget) -> None:
    """Within the budget, valid on the wire, scored node by node, the same when asked twice, sequence untouched."""
    drafter = kinds()[kind]
    ids = [*TRUTH, *range(10)][:length]
    drafter.begin(ids)
    proposal = drafter.propose(budget)
    draft = proposal.draft
    assert len(draft) <= budget.max_nodes
    assert max(draft.depths, default=0) <= budget.max_depth
    draft.validate(
        vocabulary=VOCABULARY, max_nodes=20, max_depth=8, max_chain=8, trees=budget.tree or draft.is_chain
    )
    assert len(proposal.log_probs) == len(draft)
    assert all(-math.inf < log_prob <= 0 for log_prob in proposal.log_probs)
    if proposal.best_path:
        assert draft.path_to(proposal.best_path[-1]) == proposal.best_path
    assert drafter.length == length
    assert drafter.propose(budget) == proposal
    assert drafter.counters.proposals == 2


@pytest.mark.parametrize("drafter", kinds(), ids=lambda drafter: drafter.kind)
def test_accept_and_rollback_address_the_sequence(drafter: Drafter) -> None:
    """accept appends, rollback cuts, a cut to more than there is does nothing."""
    drafter.begin(TRUTH[:10])
    before = drafter.propose(Budget(4, 4))
    drafter.accept(TRUTH[10:15])
    drafter.rollback(40)
    assert drafter.length == 15
    drafter.rollback(10)
    assert drafter.propose(Budget(4, 4)) == before
    drafter.rollback(0)
    assert drafter.length == 0


def test_the_oracle_is_always_right() -> None:
    """Its chain is the truth, up to the truth's end."""
    drafter = OracleDrafter(TRUTH)
    drafter.begin(TRUTH[:197])
    assert drafter.propose(Budget(8, 8)).draft.ids == TRUTH[197:]


@pytest.mark.parametrize(("rate", "least", "most"), [(0.0, 200, 200), (0.5, 70, 130), (1.0, 0, 0)])
def test_noise_spoils_the_share_asked_for(rate: float, least: int, most: int) -> None:
    """A rate of 0 is the oracle, of 1 never right, of a half right about half the time."""
    drafter = NoisyDrafter(TRUTH, rate, seed=4, vocabulary=VOCABULARY)
    right = sum(drafter.guess(position) == truth for position, truth in enumerate(TRUTH))
    assert least <= right <= most


def test_the_adversary_proposes_end_tokens_and_token_zero() -> None:
    """Over some rounds it offers id 0, the last id and every stop id."""
    drafter = AdversarialDrafter(TRUTH, (2, 5), seed=0, vocabulary=VOCABULARY)
    seen: set[int] = set()
    for length in range(50):
        drafter.begin(TRUTH[:length])
        seen.update(drafter.propose(Budget(16, 4, tree=True)).draft.ids)
    assert {0, 2, 5, VOCABULARY - 1} <= seen


@given(st.lists(st.integers(0, 3), max_size=60))
def test_lookup_finds_the_latest_longest_match(ids: list[int]) -> None:
    """The match found by narrowing is the one found by trying every length and place."""
    end, matched = longest_match(ids)
    best = (0, 0)
    for stop in range(1, len(ids)):
        length = 0
        while length < min(16, stop, len(ids) - 1) and ids[stop - 1 - length] == ids[-1 - length]:
            length += 1
        if length and length >= best[1]:
            best = (stop, length)
    assert (end, matched) == best


def test_lookup_copies_what_followed() -> None:
    """The continuation of the earlier occurrence, running on into its own copy; nothing without two equal tokens."""
    drafter = NgramDrafter()
    drafter.begin([1, 2, 3, 4, 9, 1, 2])
    assert drafter.propose(Budget(3, 3)).draft.ids == (3, 4, 9)
    drafter.begin([5, 6, 5, 6])
    assert drafter.propose(Budget(5, 5)).draft.ids == (5, 6, 5, 6, 5)
    drafter.begin([1, 2, 3, 1])
    assert drafter.propose(Budget(3, 3)) == Proposal.empty()


def test_lookup_stops_at_the_floor() -> None:
    """A copy gets shorter the more certainty is asked for, down to one token."""
    drafter = NgramDrafter()
    drafter.begin([1, 2, 3, 4, 5, 6, 7, 8, 1, 2])
    step = math.log(confidence(2))
    assert len(drafter.propose(Budget(6, 6, floor=3.5 * step)).draft) == 3
    assert len(drafter.propose(Budget(6, 6, floor=0.5 * step)).draft) == 1
