"""What drafters of every kind without a model have in common, and the oracle and its spoiled versions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.drafter import Budget, Drafter
from outrider.client.drafters.adversarial import AdversarialDrafter
from outrider.client.drafters.hybrid import HybridDrafter
from outrider.client.drafters.ngram import NgramDrafter
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
        HybridDrafter(NoisyDrafter(TRUTH, 0.3, seed=1, vocabulary=VOCABULARY)),
        OracleDrafter(TRUTH),
        NoisyDrafter(TRUTH, 0.3, seed=1, vocabulary=VOCABULARY),
        AdversarialDrafter(TRUTH, (2, 5), seed=1, vocabulary=VOCABULARY),
    ]


@given(st.integers(0, 5), st.integers(0, 210), budgets)
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
