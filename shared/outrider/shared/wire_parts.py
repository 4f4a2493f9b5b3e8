"""The pieces that frames of both directions share: one ``…_to_wire`` / ``…_from_wire`` pair each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, TypeVar

from outrider.shared.anchor import EMPTY
from outrider.shared.errors import InvalidField
from outrider.shared.frames import (
    Anchor,
    CostCurve,
    Feature,
    Fingerprints,
    Limits,
    Numerics,
    RowEncoding,
    RowPlane,
)
from outrider.v1 import verifier_pb2 as pb

MAX_FIELD_BYTES = 65_536
"""No bytes field of Decode is longer."""
MAX_MESSAGE_BYTES = 1_048_576
"""No message is longer."""
MAX_LIST = 256
"""No repeated field of a handshake is longer."""

EnumT = TypeVar("EnumT", bound=IntEnum)


def enum_value(member: IntEnum) -> Any:
    """The number of ``member``; the generated stubs want a type of their own per enum."""
    return int(member)


def enum_member(kind: type[EnumT], value: int, field: str) -> EnumT:
    """The member with this number. Raises InvalidField for 0 and for numbers this version does not know."""
    try:
        return kind(value)
    except ValueError:
        raise InvalidField(field, f"unknown value {value}") from None


def check_bytes(data: bytes, field: str, limit: int = MAX_FIELD_BYTES) -> bytes:
    """``data``, unless it is longer than ``limit`` bytes."""
    if len(data) > limit:
        raise InvalidField(field, f"{len(data)} bytes, at most {limit}")
    return data


def check_count(count: int, limit: int, field: str) -> None:
    """Refuse a list that is longer than ``limit``."""
    if count > limit:
        raise InvalidField(field, f"{count} entries, at most {limit}")


def check_finite(value: float, low: float, high: float, field: str) -> float:
    """``value``, if finite and within [low, high]."""
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidField(field, f"{value} is outside {low} … {high}")
    return value


def check_digest(data: bytes, field: str, sizes: tuple[int, ...] = (0, 32)) -> bytes:
    """A digest of one of the allowed sizes in bytes."""
    if len(data) not in sizes:
        raise InvalidField(field, f"{len(data)} bytes, expected {' or '.join(map(str, sizes))}")
    return data


def check_message(message: Any, field: str) -> None:
    """Refuse a whole message above 1 MiB."""
    if message.ByteSize() > MAX_MESSAGE_BYTES:
        raise InvalidField(field, f"{message.ByteSize()} bytes, at most {MAX_MESSAGE_BYTES}")


def anchor_to_wire(anchor: Anchor) -> pb.Anchor:
    """Anchor to protobuf."""
    return pb.Anchor(length=anchor.length, hash=anchor.hash)


def anchor_from_wire(message: pb.Anchor, field: str, longest: int | None = None) -> Anchor:
    """Anchor from protobuf; length 0 is the empty anchor whatever hash was sent."""
    if longest is not None and message.length > longest:
        raise InvalidField(f"{field}.length", f"{message.length}, at most {longest}")
    return Anchor(message.length, message.hash) if message.length else EMPTY


def fingerprints_to_wire(fingerprints: Fingerprints) -> pb.Fingerprints:
    """Fingerprints to protobuf."""
    return pb.Fingerprints(law=fingerprints.law, tokenizer=fingerprints.tokenizer, bundle=fingerprints.bundle)


def fingerprints_from_wire(message: pb.Fingerprints, field: str) -> Fingerprints:
    """Fingerprints from protobuf: 32 bytes or empty each."""
    return Fingerprints(
        law=check_digest(message.law, f"{field}.law"),
        tokenizer=check_digest(message.tokenizer, f"{field}.tokenizer"),
        bundle=check_digest(message.bundle, f"{field}.bundle"),
    )


def features_from_wire(values: Iterable[int], field: str) -> tuple[Feature, ...]:
    """Features from protobuf; unknown numbers are refused, repeats dropped."""
    members = [enum_member(Feature, value, field) for value in list(values)[: MAX_LIST + 1]]
    check_count(len(members), MAX_LIST, field)
    return tuple(dict.fromkeys(members))


def limits_to_wire(limits: Limits) -> pb.Limits:
    """Limits to protobuf."""
    return pb.Limits(**{name: getattr(limits, name) for name in Limits.__dataclass_fields__})


def limits_from_wire(message: pb.Limits, field: str) -> Limits:
    """Limits from protobuf; a server that allows no context, no chain or no round is refused."""
    limits = Limits(**{name: int(getattr(message, name)) for name in Limits.__dataclass_fields__})
    for name in ("max_context_tokens", "max_chain_tokens", "max_rounds_in_flight"):
        if getattr(limits, name) < 1:
            raise InvalidField(f"{field}.{name}", "must be at least 1")
    return limits


def cost_to_wire(cost: CostCurve) -> pb.CostCurve:
    """CostCurve to protobuf."""
    return pb.CostCurve(
        widths=cost.widths,
        costs_us=cost.costs_us,
        context_tokens=cost.context_tokens,
        prefill_us_per_token=cost.prefill_us_per_token,
    )


def cost_from_wire(message: pb.CostCurve, field: str) -> CostCurve:
    """CostCurve from protobuf; the lists are parallel and the widths ascend."""
    check_count(len(message.widths), MAX_LIST, f"{field}.widths")
    if len(message.widths) != len(message.costs_us):
        raise InvalidField(f"{field}.costs_us", "must be as long as widths")
    widths = tuple(message.widths)
    if any(b <= a for a, b in zip(widths, widths[1:], strict=False)):
        raise InvalidField(f"{field}.widths", "must ascend")
    return CostCurve(widths, tuple(message.costs_us), message.context_tokens, message.prefill_us_per_token)


def numerics_to_wire(numerics: Numerics) -> pb.Numerics:
    """Numerics to protobuf."""
    return pb.Numerics(width_invariant=numerics.width_invariant, near_tie_gap=numerics.near_tie_gap)


def numerics_from_wire(message: pb.Numerics, field: str) -> Numerics:
    """Numerics from protobuf; the gap is finite and not negative."""
    gap = check_finite(message.near_tie_gap, 0.0, 1.0, f"{field}.near_tie_gap")
    return Numerics(message.width_invariant, gap)


def plane_to_wire(plane: RowPlane) -> pb.RowPlane:
    """RowPlane to protobuf."""
    return pb.RowPlane(
        plane=plane.plane,
        width=plane.width,
        encoding=enum_value(plane.encoding),
        content=plane.content,
        parts=plane.parts,
    )


def plane_from_wire(message: pb.RowPlane, field: str) -> RowPlane:
    """RowPlane from protobuf; one row fits a bulk frame and the parts divide the width."""
    encoding = enum_member(RowEncoding, message.encoding, f"{field}.encoding")
    parts = message.parts or 1
    if not 1 <= message.width <= 4096:
        raise InvalidField(f"{field}.width", f"{message.width} is outside 1 … 4096")
    if message.width % parts:
        raise InvalidField(f"{field}.parts", f"{parts} does not divide the width {message.width}")
    check_count(len(message.content), 64, f"{field}.content")
    return RowPlane(message.plane, message.width, encoding, message.content, parts)


def planes_from_wire(messages: Iterable[pb.RowPlane], field: str) -> tuple[RowPlane, ...]:
    """Row planes from protobuf; at most 16, no number twice."""
    planes = tuple(plane_from_wire(message, f"{field}[{i}]") for i, message in enumerate(messages))
    check_count(len(planes), 16, field)
    if len({plane.plane for plane in planes}) != len(planes):
        raise InvalidField(field, "a plane number occurs twice")
    return planes
