"""Laws of drafts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.shared.draft import Draft
from outrider.shared.errors import InvalidField

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
