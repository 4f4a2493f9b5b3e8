"""Prompt lookup: what is found, what is drafted from it, and how sure it says it is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.drafter import Budget, Proposal
from outrider.client.drafters.ngram import (
    MAX_MATCH,
    MIN_MATCH,
    Continuation,
    Lookup,
    NgramDrafter,
    bucket,
    confidences,
)
from outrider.shared.sampling import Sampling

texts = st.lists(st.integers(0, 3), max_size=60)


def by_hand(ids: list[int], count: int) -> list[tuple[int, int]]:
    """(token, matched) of the continuations, by trying every place and length."""
    best: dict[int, tuple[int, int]] = {}
    for place in range(1, len(ids)):
        length = 0
        while length < min(MAX_MATCH, place, len(ids) - 1) and ids[place - 1 - length] == ids[-1 - length]:
            length += 1
        if length:
            best[ids[place]] = max(best.get(ids[place], (0, 0)), (length, place))
    ranked = sorted(best.items(), key=lambda item: item[1], reverse=True)[:count]
    return [(token_id, length) for token_id, (length, _) in ranked if length >= MIN_MATCH]


@given(texts, st.integers(1, 4))
def test_lookup_finds_the_longest_and_latest_of_every_continuation(ids: list[int], count: int) -> None:
    """The continuations found by narrowing are those found by trying every length and place."""
    found = Lookup.of(ids).continuations(count)
    assert [(each.token_id, each.matched) for each in found] == by_hand(ids, count)
    assert [each.rank for each in found] == list(range(len(found)))
    assert all(each.tied == (each.matched == found[0].matched) for each in found)


@given(texts, st.lists(st.integers(0, 3), max_size=6))
def test_looking_up_a_path_is_looking_up_the_text_with_it(ids: list[int], path: list[int]) -> None:
    """Token by token, a lookup equals one of the longer text made anew."""
    lookup = Lookup.of(ids)
    for place, token_id in enumerate(path, start=1):
        lookup = lookup.after(token_id)
        assert lookup.continuations(4) == Lookup.of([*ids, *path[:place]]).continuations(4)


def test_a_chain_copies_what_followed() -> None:
    """The continuation of the earlier occurrence, running on into its own copy; nothing without two equal tokens."""
    drafter = NgramDrafter()
    drafter.begin([1, 2, 3, 4, 9, 1, 2])
    assert drafter.propose(Budget(3, 3)).draft.ids == (3, 4, 9)
    drafter.begin([5, 6, 5, 6])
    assert drafter.propose(Budget(5, 5)).draft.ids == (5, 6, 5, 6, 5)
    drafter.begin([1, 2, 3, 1])
    assert drafter.propose(Budget(3, 3)) == Proposal.empty()


def test_a_tree_offers_every_way_the_text_went_on() -> None:
    """Two continuations of the text's end become two branches, the one of the longer match first."""
    drafter = NgramDrafter()
    drafter.begin([7, 1, 2, 3, 4, 5, 9, 1, 2, 6, 8, 7, 1, 2])
    proposal = drafter.propose(Budget(8, 3, tree=True))
    draft = proposal.draft
    assert [draft.ids[node] for node in draft.children(0)] == [3, 6]
    assert tuple(proposal.best_ids) == (3, 4, 5)
    assert drafter.propose(Budget(8, 3)).draft.is_chain
    paths = {tuple(draft.ids[n] for n in draft.path_to(node)) for node in range(len(draft))}
    assert (6, 8, 7) in paths


def test_a_copy_gets_surer_as_it_goes_and_stops_at_the_floor() -> None:
    """Each right token makes the match longer; with a floor the copy ends where its probability falls below it."""
    drafter = NgramDrafter()
    drafter.begin([1, 2, 3, 4, 5, 6, 7, 8, 1, 2])
    whole = drafter.propose(Budget(6, 6))
    assert list(whole.log_probs) == sorted(whole.log_probs)
    for count in range(1, 7):
        floor = sum(whole.log_probs[:count]) - 1e-6
        assert drafter.propose(Budget(6, 6, floor=floor)) == Proposal.chain(
            whole.draft.ids[:count], whole.log_probs[:count]
        )
    assert len(drafter.propose(Budget(6, 6, floor=0.0)).draft) == 1


def test_sampled_text_is_copied_less_surely() -> None:
    """The same copy at a temperature above 0 carries the lower confidence measured there."""
    drafter = NgramDrafter()
    drafter.begin([1, 2, 3, 4, 9, 1, 2])
    greedy = drafter.propose(Budget(3, 3))
    warm = drafter.propose(Budget(3, 3, sampling=Sampling(0.8, seed=1)))
    assert warm.draft == greedy.draft
    assert all(one < other for one, other in zip(warm.log_probs, greedy.log_probs, strict=True))


@pytest.mark.parametrize("warm", [False, True])
def test_confidences_are_probabilities(warm: bool) -> None:
    """Over a node's children they sum to at most one and fall by rank; longer matches and fewer rivals are surer."""
    for matched in range(MIN_MATCH, MAX_MATCH + 1):
        by_rivals = []
        for different in range(1, 7):
            for tied in (False, True):
                found = [
                    Continuation(rank, matched, rank, tied or not rank, different)
                    for rank in range(min(different, 4))
                ]
                values = confidences(found, warm)
                assert 0 < sum(values) <= 1
                assert values == sorted(values, reverse=True)
            by_rivals.append(values[0])
        assert by_rivals == sorted(by_rivals, reverse=True)
    for different in (1, 4):
        firsts = [
            confidences([Continuation(0, m, 0, True, different)], warm)[0]
            for m in range(MIN_MATCH, MAX_MATCH + 1)
        ]
        assert firsts == sorted(firsts)
    assert bucket(MIN_MATCH) == 0 and bucket(MAX_MATCH) == bucket(MAX_MATCH + 5)
    assert math.isclose(confidences([Continuation(0, MAX_MATCH, 0, True, 1)])[0], 0.993)
