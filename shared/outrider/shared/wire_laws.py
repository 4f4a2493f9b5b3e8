"""Draft laws: dataclass to protobuf and back, with every check of what a device may claim to have drawn from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from outrider.shared.codec import pack_ids, unpack_ids
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import InvalidField
from outrider.shared.laws import MAX_BITS, SparseLaw
from outrider.shared.wire_parts import check_bytes, enum_member, enum_value
from outrider.v1 import verifier_pb2 as pb

_COUNT = np.dtype("<u2")
_FULL = 1 << MAX_BITS
"""The one count that u16 cannot hold; written 0."""


def laws_to_wire(draft: Draft) -> pb.SparseLaws:
    """The laws and kind of ``draft`` as protobuf. Raises InvalidField if its laws differ in bits: a message has one."""
    told: dict[int, SparseLaw] = {}
    sizes = bytearray()
    for parent in draft.parents:
        first = parent not in told
        law = told.setdefault(parent, draft.law_of(parent))
        sizes.append(len(law.ids) if first else 0)
    bits = {law.bits for law in told.values()}
    if len(bits) != 1:
        raise InvalidField("draft.laws.bits", f"{sorted(bits)} in one draft, expected one number")
    counts = [count % _FULL for law in told.values() for count in law.counts]
    return pb.SparseLaws(
        bits=bits.pop(),
        sizes=bytes(sizes),
        ids=pack_ids([token for law in told.values() for token in law.ids]),
        counts=np.asarray(counts, _COUNT).tobytes(),
        kind=enum_value(draft.kind),
    )


def laws_from_wire(message: pb.SparseLaws, draft: Draft, path: str, vocabulary: int | None) -> Draft:
    """``draft`` with the kind and laws in ``message``. Raises InvalidField ("<path>.bits", ".sizes", ".ids" …)."""
    kind = enum_member(DraftKind, message.kind, f"{path}.kind")
    if kind is DraftKind.CHOSEN:
        raise InvalidField(f"{path}.kind", "chosen tokens were not drawn from any law")
    sizes = _sizes(message, draft, path)
    ids = unpack_ids(check_bytes(message.ids, f"{path}.ids"), f"{path}.ids", vocabulary)
    counts = _counts(message, path)
    for name, entries in (("ids", ids), ("counts", counts)):
        if len(entries) != sum(sizes.values()):
            raise InvalidField(
                f"{path}.{name}", f"{len(entries)} entries, the sizes add up to {sum(sizes.values())}"
            )
    laws: dict[int, SparseLaw] = {}
    at = 0
    try:
        for row, size in sizes.items():
            laws[row] = _law(message.bits, ids[at : at + size], counts[at : at + size])
            at += size
        whole = replace(draft, kind=kind, laws=tuple(laws[row] for row in draft.inner_rows))
        whole.check_laws(vocabulary)
    except InvalidField as error:
        raise InvalidField(path + error.field.removeprefix("draft.laws"), error.why) from None
    return whole


def _sizes(message: pb.SparseLaws, draft: Draft, path: str) -> dict[int, int]:
    """Entries of each row's law, in the order of the rows' first children."""
    if not len(message.sizes) == len(draft) > 0:
        raise InvalidField(f"{path}.sizes", f"{len(message.sizes)} entries for {len(draft)} nodes")
    sizes: dict[int, int] = {}
    for node, (parent, size) in enumerate(zip(draft.parents, message.sizes, strict=True)):
        if (size == 0) is not (parent in sizes):
            expected = "0 at a later child of a row" if size else "at least 1 at the first child of a row"
            raise InvalidField(f"{path}.sizes", f"{size} at node {node}, expected {expected}")
        sizes.setdefault(parent, size)
    return sizes


def _counts(message: pb.SparseLaws, path: str) -> tuple[int, ...]:
    data = check_bytes(message.counts, f"{path}.counts")
    if len(data) % _COUNT.itemsize:
        raise InvalidField(f"{path}.counts", f"{len(data)} bytes is not a multiple of {_COUNT.itemsize}")
    return tuple(np.frombuffer(data, _COUNT).tolist())


def _law(bits: int, ids: tuple[int, ...], counts: tuple[int, ...]) -> SparseLaw:
    whole = bits == MAX_BITS and counts == (0,)
    return SparseLaw(bits, ids, (_FULL,) if whole else counts)
