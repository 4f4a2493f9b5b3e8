"""Byte codecs of the wire: token ids, parents, floats and state rows.

All integers are little-endian; lengths must be exact; values that are not finite are refused. Every refusal is an
``InvalidField`` that names the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.shared.errors import InvalidField
from outrider.shared.frames import RowEncoding, RowPlane

_ID = np.dtype("<u4")
_PARENT = np.dtype("<u2")
_FLOAT = np.dtype("<f4")
_HALF = np.dtype("<f2")
_DOUBLE = np.dtype("<f8")
_INT8_MAX = 127


def pack_ids(ids: Sequence[int], field: str = "ids") -> bytes:
    """Token ids as u32 little-endian. Raises InvalidField for an id outside 0 … 2^32-1."""
    return _pack(ids, _ID, field)


def unpack_ids(data: bytes, field: str = "ids", vocabulary: int | None = None) -> tuple[int, ...]:
    """The ids in ``data``; with ``vocabulary`` each must lie in 0 … vocabulary-1."""
    ids = _unpack(data, _ID, field)
    if vocabulary is not None and ids and max(ids) >= vocabulary:
        raise InvalidField(field, f"id {max(ids)} is outside the vocabulary of {vocabulary}")
    return ids


def pack_parents(parents: Sequence[int], field: str = "parents") -> bytes:
    """Parents as u16 little-endian: 0 is the base, k is node k-1."""
    return _pack(parents, _PARENT, field)


def unpack_parents(data: bytes, field: str = "parents") -> tuple[int, ...]:
    """The parents in ``data``; each must come before its node, so that cycles cannot be written down."""
    parents = _unpack(data, _PARENT, field)
    for index, parent in enumerate(parents):
        if parent > index:
            raise InvalidField(field, f"node {index} has parent {parent}; it must be at most {index}")
    return parents


def pack_floats(values: Sequence[float]) -> bytes:
    """Numbers as f32 little-endian."""
    return np.asarray(values, _FLOAT).tobytes()


def unpack_floats(data: bytes, field: str) -> tuple[float, ...]:
    """The f32 numbers in ``data``, whatever they are: NaN and infinities are the caller's to refuse."""
    return tuple(np.frombuffer(_whole(data, _FLOAT, field), _FLOAT).tolist())


def pack_doubles(values: Sequence[float]) -> bytes:
    """Numbers as f64 little-endian."""
    return np.asarray(values, _DOUBLE).tobytes()


def unpack_doubles(data: bytes, field: str) -> tuple[float, ...]:
    """The f64 numbers in ``data``, whatever they are."""
    return tuple(np.frombuffer(_whole(data, _DOUBLE, field), _DOUBLE).tolist())


def row_bytes(plane: RowPlane) -> int:
    """Bytes of one encoded row of ``plane``. Raises InvalidField where the parts do not divide the width."""
    if plane.width < 1 or plane.parts < 1 or plane.width % plane.parts:
        raise InvalidField("planes", f"width {plane.width} is not a multiple of {plane.parts} parts")
    if plane.encoding is RowEncoding.F32:
        return plane.width * 4
    if plane.encoding is RowEncoding.F16:
        return plane.width * 2
    return plane.width + plane.parts * 4


def encode_rows(rows: NDArray[np.floating], plane: RowPlane) -> bytes:  # rows: [count, width]
    """State rows in the plane's encoding. Raises InvalidField on a wrong width or a value that does not fit."""
    row_bytes(plane)
    if rows.ndim != 2 or rows.shape[1] != plane.width:
        raise InvalidField("rows.data", f"shape {rows.shape}, expected [count, {plane.width}]")
    values = rows.astype(_FLOAT, copy=False)
    _require_finite(values)
    if plane.encoding is RowEncoding.F32:
        return values.tobytes()
    if plane.encoding is RowEncoding.F16:
        with np.errstate(over="ignore"):
            halves = values.astype(_HALF)
        _require_finite(halves)
        return halves.tobytes()
    return _encode_int8(values, plane)


def decode_rows(data: bytes, count: int, plane: RowPlane) -> NDArray[np.float32]:
    """``count`` rows, float32 [count, width]. Raises InvalidField on a wrong length or a value that is not finite."""
    expected = count * row_bytes(plane)
    if len(data) != expected:
        raise InvalidField("rows.data", f"{len(data)} bytes, expected {expected} for {count} rows")
    if plane.encoding is RowEncoding.INT8:
        return _decode_int8(data, count, plane)
    dtype = _FLOAT if plane.encoding is RowEncoding.F32 else _HALF
    rows = np.frombuffer(data, dtype).reshape(count, plane.width).astype(np.float32)
    _require_finite(rows)
    return rows


def _encode_int8(values: NDArray[np.float32], plane: RowPlane) -> bytes:
    parts = values.reshape(len(values), plane.parts, -1)
    scales = np.abs(parts).max(axis=2) / np.float32(_INT8_MAX)
    safe = np.where(scales > 0, scales, np.float32(1))
    out = np.zeros((len(values), plane.parts), _int8_dtype(plane))
    out["scale"] = scales
    out["values"] = np.clip(np.rint(parts / safe[..., None]), -_INT8_MAX, _INT8_MAX)
    return out.tobytes()


def _decode_int8(data: bytes, count: int, plane: RowPlane) -> NDArray[np.float32]:
    raw = np.frombuffer(data, _int8_dtype(plane)).reshape(count, plane.parts)
    scales = raw["scale"].astype(np.float32)
    _require_finite(scales)
    with np.errstate(over="ignore"):
        rows = (scales[..., None] * raw["values"].astype(np.float32)).reshape(count, plane.width)
    _require_finite(rows)
    return rows


def _int8_dtype(plane: RowPlane) -> np.dtype[np.void]:
    return np.dtype([("scale", "<f4"), ("values", "i1", (plane.width // plane.parts,))])


def _require_finite(values: NDArray[np.floating]) -> None:
    if not np.isfinite(values).all():
        raise InvalidField("rows.data", "a value is not finite")


def _pack(values: Sequence[int], dtype: np.dtype[np.unsignedinteger], field: str) -> bytes:
    if not values:
        return b""
    top = int(np.iinfo(dtype).max)
    if min(values) < 0 or max(values) > top:
        raise InvalidField(field, f"values must lie in 0 … {top}")
    return np.asarray(values, dtype).tobytes()


def _unpack(data: bytes, dtype: np.dtype[np.unsignedinteger], field: str) -> tuple[int, ...]:
    return tuple(np.frombuffer(_whole(data, dtype, field), dtype).tolist())


def _whole(data: bytes, dtype: np.dtype[Any], field: str) -> bytes:
    if len(data) % dtype.itemsize:
        raise InvalidField(field, f"{len(data)} bytes is not a multiple of {dtype.itemsize}")
    return data
