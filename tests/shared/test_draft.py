"""Laws of drafts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import InvalidField
from outrider.shared.laws import SparseLaw

ROOM: dict[str, Any] = {"vocabulary": 100, "max_nodes": 8, "max_depth": 3, "max_chain": 20}


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    """Any well-formed draft of up to 12 nodes."""
    parents = [draw(st.integers(0, node)) for node in range(draw(st.integers(0, 12)))]
    return Draft(tuple(range(len(parents))), tuple(parents))


@given(trees())
def test_paths_depths_and_children_agree(draft: Draft) -> None:
    """A node's path starts at the base, follows parents, and is as long as the node is deep."""
    for node, depth in enumerate(draft.depths):
        path = draft.path_to(node)
        assert len(path) == depth and path[-1] == node and draft.parents[path[0]] == 0
        assert all(draft.parents[below] == above + 1 for above, below in zip(path, path[1:], strict=False))
        assert node in draft.children(draft.parents[node])
    assert sum(len(draft.children(row)) for row in range(len(draft) + 1)) == len(draft)


def test_a_chain_is_a_chain() -> None:
    """chain() makes each token follow the last; the empty draft is a chain too."""
    chain = Draft.chain([5, 0, 7])
    assert chain == Draft((5, 0, 7), (0, 1, 2)) and chain.is_chain and chain.depths == (1, 2, 3)
    assert Draft.chain(()).is_chain and Draft.chain(()).depths == ()
    assert not Draft((1, 2), (0, 0)).is_chain


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        (Draft((1, 2), (0,)), "draft.parents"),
        (Draft((1, 100), (0, 1)), "draft.ids"),
        (Draft((-1,), (0,)), "draft.ids"),
        (Draft((1,), (1,)), "draft.parents"),
        (Draft((1, 2), (2, 1)), "draft.parents"),
        (Draft((1, 2), (0, -1)), "draft.parents"),
        (Draft((1, 2, 2), (0, 1, 1)), "draft.ids"),
        (Draft.chain(range(21)), "draft.ids"),
        (Draft(tuple(range(9)), (0,) * 9), "draft.ids"),
        (Draft((1, 2, 3, 4, 5), (0, 0, 1, 3, 4)), "draft.parents"),
    ],
)
def test_what_no_verifier_may_take_is_refused_by_field(draft: Draft, field: str) -> None:
    """Lengths that disagree, foreign ids, forward and cyclic parents, twins and oversize name their field."""
    with pytest.raises(InvalidField) as refused:
        draft.validate(**ROOM)
    assert refused.value.field == field


def test_trees_need_agreement_and_chains_have_room_of_their_own() -> None:
    """A tree without the feature is refused; a chain may be longer and deeper than a tree."""
    Draft.chain(range(20)).validate(**ROOM, trees=False)
    Draft((1, 2), (0, 0)).validate(**ROOM)
    with pytest.raises(InvalidField):
        Draft((1, 2), (0, 0)).validate(**ROOM, trees=False)


LAW, OTHER = SparseLaw(4, (1, 2), (12, 4)), SparseLaw(4, (2, 3), (1, 15))
DRAWN, DISTINCT = DraftKind.SAMPLED, DraftKind.DISTINCT


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        (Draft((1, 1), (0, 0), DISTINCT, (LAW,)), "draft.ids"),
        (Draft((1, 2), (0, 0), DraftKind.CHOSEN, (LAW,)), "draft.laws"),
        (Draft((1, 2), (0, 1), DRAWN, (LAW,)), "draft.laws.sizes"),
        (Draft((1, 2), (0, 0), DRAWN, (LAW, OTHER)), "draft.laws.sizes"),
        (Draft((1, 3), (0, 0), DRAWN, (LAW,)), "draft.laws.ids"),
        (Draft((1, 1), (0, 1), DRAWN, (LAW, OTHER)), "draft.laws.ids"),
        (Draft((1,), (0,), DRAWN, (SparseLaw(4, (1, 100), (8, 8)),)), "draft.laws.ids"),
    ],
)
def test_laws_that_do_not_belong_to_their_draft_are_refused_by_field(draft: Draft, field: str) -> None:
    """Laws of chosen tokens, too few or too many, foreign ids, and a law without the token that came from it."""
    with pytest.raises(InvalidField) as refused:
        draft.validate(**ROOM)
    assert refused.value.field == field


def test_only_independent_draws_may_have_equal_siblings() -> None:
    """A token that was drawn twice is sent twice; whatever else has twins is refused."""
    Draft((1, 1), (0, 0), DRAWN).validate(**ROOM)
    Draft((1, 1), (0, 0), DRAWN, (LAW,)).validate(**ROOM)
    for kind in (DraftKind.CHOSEN, DISTINCT):
        with pytest.raises(InvalidField, match="same id"):
            Draft((1, 1), (0, 0), kind).validate(**ROOM)


def test_laws_belong_to_rows_with_children() -> None:
    """In row order; a row without children, and a draft without laws, have none."""
    draft = Draft((1, 2, 3, 1), (0, 0, 2, 0), DRAWN, (LAW, OTHER))
    assert draft.inner_rows == (0, 2) and draft.has_siblings
    assert (draft.law_of(0), draft.law_of(2)) == (LAW, OTHER)
    assert not Draft.chain((1, 2), DRAWN, (LAW, OTHER)).has_siblings
    for bare, row in ((draft, 1), (draft, 4), (Draft((1,), (0,)), 0)):
        with pytest.raises(ValueError, match="no draft law"):
            bare.law_of(row)


def test_a_part_of_a_draft_keeps_its_kind_and_laws() -> None:
    """Nodes below a row, renumbered, with the laws of the rows that still have children."""
    draft = Draft((1, 2, 3, 1, 3), (0, 0, 2, 0, 2), DRAWN, (LAW, OTHER))
    assert draft.only((2, 4), root=2) == Draft((3, 3), (0, 0), DRAWN, (OTHER,))
    assert draft.only((0, 1, 3)) == Draft((1, 2, 1), (0, 0, 0), DRAWN, (LAW,))
    assert draft.only(()) == Draft((), (), DRAWN)
    assert draft.only(range(5)) == draft
