"""The rolling hash that names a prefix of a session's sequence.

h(0) = first 8 bytes of SHA-256("outrider.v1"); h(n+1) = first 8 bytes of SHA-256(h(n) || u32(id n)), read as a
little-endian integer. Golden values: ``tests/shared/anchor.json``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from outrider.shared.frames import Anchor

_START = hashlib.sha256(b"outrider.v1").digest()[:8]

EMPTY = Anchor(0, int.from_bytes(_START, "little"))
"""The anchor of the empty sequence."""


def extend(anchor: Anchor, ids: Iterable[int]) -> Anchor:
    """The anchor after appending ``ids`` (each 0 … 2^32-1) to the prefix that ``anchor`` names."""
    length, state = anchor.length, anchor.hash.to_bytes(8, "little")
    for token_id in ids:
        state = hashlib.sha256(state + token_id.to_bytes(4, "little")).digest()[:8]
        length += 1
    return Anchor(length, int.from_bytes(state, "little"))


class TokenSequence:
    """A token sequence that knows the anchor of each of its prefixes.

    Appending costs one hash a token; asking for an anchor or cutting costs none.
    """

    __slots__ = ("_hashes", "_ids")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._ids: list[int] = []
        self._hashes: list[int] = [EMPTY.hash]
        self.append(ids)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> Sequence[int]:
        """All ids; do not change them."""
        return self._ids

    @property
    def anchor(self) -> Anchor:
        """The anchor of the whole sequence."""
        return Anchor(len(self._ids), self._hashes[-1])

    def slice(self, start: int, stop: int | None = None) -> tuple[int, ...]:
        """The ids of positions start … stop-1."""
        return tuple(self._ids[start:stop])

    def anchor_at(self, length: int) -> Anchor:
        """The anchor of the first ``length`` ids. Raises IndexError beyond the end."""
        if not 0 <= length <= len(self._ids):
            raise IndexError(f"length {length} is outside 0 … {len(self._ids)}")
        return Anchor(length, self._hashes[length])

    def contains(self, anchor: Anchor) -> bool:
        """Whether ``anchor`` names a prefix of this sequence."""
        return anchor.length <= len(self._ids) and self._hashes[anchor.length] == anchor.hash

    def append(self, ids: Iterable[int]) -> None:
        """Append ids, each 0 … 2^32-1."""
        state = self._hashes[-1].to_bytes(8, "little")
        for token_id in ids:
            state = hashlib.sha256(state + token_id.to_bytes(4, "little")).digest()[:8]
            self._ids.append(token_id)
            self._hashes.append(int.from_bytes(state, "little"))

    def cut(self, length: int) -> None:
        """Keep the first ``length`` ids."""
        del self._ids[length:]
        del self._hashes[length + 1 :]
