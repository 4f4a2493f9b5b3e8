"""What the verifier runs of a drafter: from what the target left behind of verified tokens to their state rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from outrider.cloud.kinds.settings import DrafterSettings

KeyValue = tuple[Tensor, Tensor]
"""Keys and values of one layer, each [kv_heads, n, head_dim]; keys rotated at their positions."""


@dataclass(frozen=True, slots=True)
class RowPlaneSpec:
    """One kind of state row."""

    plane: int
    """Number of the plane, its place in `ServerHalf.rows`."""
    width: int
    """float32 values of one row, all parts together."""
    parts: int
    """Equal parts of a row that deserve a quantisation scale each (key and value)."""
    content: str
    """What a row holds: `moa.ca_kv`, `layer27.kv`, `eagle2.feature`."""


class ServerHalf(Protocol):
    """The server's half of a drafter. A kind that reads nothing of the target has no planes and is never asked."""

    @property
    def settings(self) -> DrafterSettings:
        """Those of the whole drafter."""

    @property
    def planes(self) -> tuple[RowPlaneSpec, ...]:
        """What rows there are, numbered from 0; empty: none."""

    @property
    def needed_layers(self) -> tuple[int, ...]:
        """Target layers whose keys and values `rows` reads, ascending; may be empty."""

    @property
    def needs_final(self) -> bool:
        """Whether `rows` reads the target's final hidden states."""

    def rows(self, kv: Mapping[int, KeyValue], final: Tensor | None, positions: Tensor) -> list[Tensor]:
        """State rows of n tokens, one float32 [n, width] per plane; a row depends on its own token's state alone.

        ``kv`` has the layers of `needed_layers` at ``positions`` [n]; ``final`` [n, hidden] is what the LM head reads
        there (after the final norm), None unless `needs_final`. Any float type.
        """

    def fingerprint(self) -> str:
        """Hex hash of everything rows depend on besides the target: weights, layers, layout."""
