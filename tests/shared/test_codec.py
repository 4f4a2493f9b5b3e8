"""The byte codecs are exact, bounded and refuse what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.shared.codec import (
    decode_rows,
    encode_rows,
    pack_ids,
    pack_parents,
    row_bytes,
    unpack_ids,
    unpack_parents,
)
from outrider.shared.errors import InvalidField
from outrider.shared.frames import RowEncoding, RowPlane


def plane(encoding: RowEncoding, width: int = 12, parts: int = 2) -> RowPlane:
    """A plane of this encoding."""
    return RowPlane(0, width, encoding, "test.rows", parts)


def test_ids_are_little_endian_u32_and_round_trip() -> None:
    """The bytes of an id are those of the wire's first page."""
    assert pack_ids((1, 258, 2**32 - 1)) == b"\x01\0\0\0\x02\x01\0\0\xff\xff\xff\xff"
    assert unpack_ids(pack_ids((5, 0, 77))) == (5, 0, 77)
    assert unpack_ids(b"") == ()


@pytest.mark.parametrize("bad", [(-1,), (2**32,)])
def test_ids_that_do_not_fit_are_refused(bad: tuple[int, ...]) -> None:
    """A negative or too large id never reaches the wire."""
    with pytest.raises(InvalidField):
        pack_ids(bad)


def test_ids_are_checked_for_length_and_vocabulary() -> None:
    """Odd byte counts and ids outside the vocabulary are named by field."""
    with pytest.raises(InvalidField) as odd:
        unpack_ids(b"\0" * 7, "draft.ids")
    assert odd.value.field == "draft.ids"
    with pytest.raises(InvalidField):
        unpack_ids(pack_ids((3, 49152)), "draft.ids", 49152)
    assert unpack_ids(pack_ids((3, 49151)), "draft.ids", 49152) == (3, 49151)


def test_parents_come_before_their_nodes() -> None:
    """A parent at or after its node is refused, so a cycle cannot be written."""
    assert unpack_parents(pack_parents((0, 1, 1, 0))) == (0, 1, 1, 0)
    for bad in ((1,), (0, 2), (0, 1, 9)):
        with pytest.raises(InvalidField):
            unpack_parents(pack_parents(bad))


def test_row_bytes_follow_the_layout() -> None:
    """INT8 has one f32 scale per part."""
    assert row_bytes(plane(RowEncoding.F32)) == 48
    assert row_bytes(plane(RowEncoding.F16)) == 24
    assert row_bytes(plane(RowEncoding.INT8)) == 12 + 8
    with pytest.raises(InvalidField):
        row_bytes(plane(RowEncoding.INT8, width=12, parts=5))


@pytest.mark.parametrize("encoding", list(RowEncoding))
def test_rows_round_trip_within_the_encoding(encoding: RowEncoding) -> None:
    """Decoding what was encoded gives the rows back: bitwise in F32, within half a step otherwise."""
    rows = np.random.default_rng(3).normal(size=(7, 12)).astype(np.float32)
    rows[2] = 0
    data = encode_rows(rows, plane(encoding))
    assert len(data) == 7 * row_bytes(plane(encoding))
    back = decode_rows(data, 7, plane(encoding))
    if encoding is RowEncoding.F32:
        assert back.tobytes() == rows.tobytes()
    step = np.abs(rows.reshape(7, 2, 6)).max(axis=2) / 127
    bound = np.repeat(step, 6, axis=1) * 0.51 if encoding is RowEncoding.INT8 else np.abs(rows) * 1e-3 + 1e-7
    assert (np.abs(back - rows) <= bound).all()


@pytest.mark.parametrize("encoding", list(RowEncoding))
def test_rows_refuse_wrong_lengths_and_values_that_are_not_finite(encoding: RowEncoding) -> None:
    """One byte more or less, a NaN or an infinity is refused on both sides."""
    rows = np.ones((2, 12), np.float32)
    data = encode_rows(rows, plane(encoding))
    for bad in (data[:-1], data + b"\0", b""):
        with pytest.raises(InvalidField):
            decode_rows(bad, 2, plane(encoding))
    for value in (np.nan, np.inf):
        rows[1, 3] = value
        with pytest.raises(InvalidField):
            encode_rows(rows, plane(encoding))
    with pytest.raises(InvalidField):
        decode_rows(b"\xff" * len(data), 2, plane(encoding))
    with pytest.raises(InvalidField):
        encode_rows(np.ones((2, 11), np.float32), plane(encoding))


def test_half_precision_overflow_is_refused() -> None:
    """A value that would become infinite on the way is refused, not sent."""
    with pytest.raises(InvalidField):
        encode_rows(np.full((1, 12), 1e5, np.float32), plane(RowEncoding.F16))
