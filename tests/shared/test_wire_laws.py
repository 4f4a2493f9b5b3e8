"""Draft laws cross the wire as the integers they are, and whatever is no law is refused by its field's name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.shared.anchor import EMPTY
from outrider.shared.codec import pack_ids
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import InvalidField
from outrider.shared.frames import DraftFrame, Feature, Window
from outrider.shared.laws import SparseLaw, quantise, sample, sample_distinct
from outrider.shared.wire import UpChecks, up_from_wire, up_to_wire
from outrider.v1 import verifier_pb2 as pb

VOCABULARY = 100
CHECKS = UpChecks(vocabulary=VOCABULARY, granted=(Feature.TREES, Feature.DRAFT_LAWS))
SAMPLED, DISTINCT = DraftKind.SAMPLED, DraftKind.DISTINCT


def frame_of(draft: Draft) -> DraftFrame:
    """A round with this draft."""
    return DraftFrame(1, 1, Window(EMPTY), draft)


def crossed(draft: Draft) -> Draft:
    """What the verifier reads."""
    frame = up_from_wire(up_to_wire(frame_of(draft)), CHECKS)
    assert isinstance(frame, DraftFrame)
    return frame.draft


@st.composite
def drawn_drafts(draw: st.DrawFn) -> Draft:
    """Trees of up to 12 nodes, drawn either way from rounded laws of their own, in any order of rows."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    bits, kind = draw(st.integers(2, 16)), draw(st.sampled_from([SAMPLED, DISTINCT]))
    parents: list[int] = []
    ids: list[int] = []
    laws: dict[int, SparseLaw] = {}
    while len(ids) < draw(st.integers(1, 12)):
        row = int(rng.choice([row for row in range(len(ids) + 1) if row not in laws]))
        law = quantise(rng.dirichlet(np.full(VOCABULARY, 0.1)), top=draw(st.integers(1, 4)), bits=bits)
        coins = rng.random(draw(st.integers(1, 3))).tolist()
        tokens = sample_distinct(law, coins) if kind is DISTINCT else [sample(law, coin) for coin in coins]
        laws[row] = law
        ids += tokens
        parents += [row] * len(tokens)
    return Draft(tuple(ids), tuple(parents), kind, tuple(laws[row] for row in sorted(laws)))


@settings(max_examples=100, deadline=None)
@given(drawn_drafts())
def test_the_verifier_reads_the_integers_that_were_sampled_from(draft: Draft) -> None:
    """Ids, counts, kind, draw order and equal siblings come out as they went in."""
    assert crossed(draft) == draft


def test_the_ends_of_the_format() -> None:
    """A law of one entry with all 2^16, 255 entries, and drafts without laws."""
    whole = SparseLaw(16, (7,), (65536,))
    assert crossed(Draft.chain((7,), SAMPLED, (whole,))).laws == (whole,)
    wide = UpChecks(vocabulary=300, granted=CHECKS.granted)
    law = SparseLaw(8, tuple(range(255)), (2, *(1,) * 254))
    frame = frame_of(Draft.chain((254,), SAMPLED, (law,)))
    assert up_from_wire(up_to_wire(frame), wide) == frame
    assert crossed(Draft((1, 2), (0, 0))) == Draft((1, 2), (0, 0))
    with pytest.raises(InvalidField, match="expected one number"):
        up_to_wire(frame_of(Draft.chain((7, 1), SAMPLED, (whole, SparseLaw(4, (1,), (16,))))))


def test_a_chain_of_eight_entries_a_position_costs_what_the_design_says() -> None:
    """At most 49 bytes a position for eight entries, and nothing for a draft without laws."""
    law = SparseLaw(12, tuple(range(40_000, 40_008)), (4089, *(1,) * 7))
    chain = Draft.chain((40_000,) * 8, SAMPLED, (law,) * 8)
    told, untold = (up_to_wire(frame_of(draft)).ByteSize() for draft in (chain, Draft.chain(chain.ids)))
    assert told - untold <= 8 * 49 + 20


TREE = Draft(
    (5, 6, 5, 7), (0, 0, 1, 1), SAMPLED, (SparseLaw(4, (5, 6), (12, 4)), SparseLaw(4, (5, 7, 9), (1, 5, 10)))
)


def u16(*counts: int) -> bytes:
    """Counts as on the wire."""
    return np.asarray(counts, "<u2").tobytes()


Change = Callable[[pb.SparseLaws], object]
REFUSALS: list[tuple[str, Change]] = [
    ("bits", lambda m: setattr(m, "bits", 0)),
    ("bits", lambda m: setattr(m, "bits", 17)),
    ("kind", lambda m: setattr(m, "kind", 0)),
    ("kind", lambda m: setattr(m, "kind", 1)),
    ("kind", lambda m: setattr(m, "kind", 9)),
    ("sizes", lambda m: setattr(m, "sizes", b"")),
    ("sizes", lambda m: setattr(m, "sizes", bytes((2, 0, 3)))),
    ("sizes", lambda m: setattr(m, "sizes", bytes((2, 0, 3, 0, 0)))),
    ("sizes", lambda m: setattr(m, "sizes", bytes((0, 2, 3, 0)))),
    ("sizes", lambda m: setattr(m, "sizes", bytes((2, 2, 3, 0)))),
    ("ids", lambda m: setattr(m, "sizes", bytes((2, 0, 4, 0)))),
    ("ids", lambda m: setattr(m, "ids", m.ids[:-4])),
    ("ids", lambda m: setattr(m, "ids", m.ids[:-1])),
    ("ids", lambda m: setattr(m, "ids", m.ids + m.ids)),
    ("ids", lambda m: setattr(m, "ids", pack_ids((5, 6, 5, 7, 100)))),
    ("ids", lambda m: setattr(m, "ids", pack_ids((5, 6, 5, 7, 7)))),
    ("ids", lambda m: setattr(m, "ids", pack_ids((5, 6, 5, 8, 9)))),
    ("ids", lambda m: setattr(m, "ids", pack_ids((5, 6, 8, 7, 9)))),
    ("counts", lambda m: setattr(m, "counts", m.counts[:-2])),
    ("counts", lambda m: setattr(m, "counts", m.counts[:-1])),
    ("counts", lambda m: setattr(m, "counts", u16(12, 4, 1, 5, 9))),
    ("counts", lambda m: setattr(m, "counts", u16(12, 5, 1, 5, 10))),
    ("counts", lambda m: setattr(m, "counts", u16(16, 0, 1, 5, 10))),
    ("counts", lambda m: setattr(m, "counts", u16(12, 4, 0, 6, 10))),
    ("counts", lambda m: setattr(m, "bits", 5)),
]


@pytest.mark.parametrize("path", ["draft", "open.draft"])
@pytest.mark.parametrize(("field", "change"), REFUSALS)
def test_what_is_no_law_is_refused_by_field(field: str, change: Change, path: str) -> None:
    """Mass missing, too much or zero, ids repeated, unknown or without the drafted one, sizes that do not add up."""
    request = up_to_wire(frame_of(TREE))
    if path == "open.draft":
        request = pb.DecodeRequest(
            open=pb.Open(
                session_id=bytes(16),
                epoch=1,
                turn=pb.Turn(turn=1, append_ids=pack_ids((1,)), rule=pb.Rule(name="multidraft")),
                window=pb.Window(),
                draft=request.draft,
                features=[pb.FEATURE_TREES, pb.FEATURE_DRAFT_LAWS],
            )
        )
    message = request.open.draft if path == "open.draft" else request.draft
    up_from_wire(request, CHECKS)
    change(message.laws)
    with pytest.raises(InvalidField) as refused:
        up_from_wire(request, CHECKS)
    assert refused.value.field == f"{path}.laws.{field}"


def test_laws_need_their_feature_and_twins_need_laws() -> None:
    """Without DRAFT_LAWS a law is refused; without laws nothing says that siblings were drawn, so twins are."""
    for granted in ((Feature.TREES,), None):
        with pytest.raises(InvalidField) as refused:
            up_from_wire(up_to_wire(frame_of(TREE)), UpChecks(vocabulary=VOCABULARY, granted=granted))
        assert refused.value.field == "draft.laws"
    twins = SparseLaw(4, (5, 6), (12, 4))
    assert crossed(Draft((5, 5), (0, 0), SAMPLED, (twins,))).ids == (5, 5)
    for draft in (Draft((5, 5), (0, 0), SAMPLED), Draft((5, 5), (0, 0), DISTINCT, (twins,))):
        with pytest.raises(InvalidField) as refused:
            crossed(draft)
        assert refused.value.field == "draft.ids"
