"""What the verifier does for an independent drafter: nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor

from outrider.cloud.independent.settings import IndependentSettings
from outrider.cloud.kinds.server import KeyValue, RowPlaneSpec


class ServerHalf:
    """No planes, so nothing is ever asked of it."""

    planes: tuple[RowPlaneSpec, ...] = ()

    def __init__(self, settings: IndependentSettings):
        self.settings = settings

    @property
    def needed_layers(self) -> tuple[int, ...]:
        """None."""
        return ()

    @property
    def needs_final(self) -> bool:
        """Final states are not read."""
        return False

    def rows(self, kv: Mapping[int, KeyValue], final: Tensor | None, positions: Tensor) -> list[Tensor]:
        """No planes, no rows."""
        del kv, final, positions
        return []

    def fingerprint(self) -> str:
        """Hex hash of the kind's name: there is nothing else."""
        return hashlib.sha256(b"independent").hexdigest()
