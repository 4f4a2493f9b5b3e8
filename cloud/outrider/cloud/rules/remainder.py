"""What refused drafts leave of a target law, kept at the cost of the draft law's few entries.

Refusing a drafted token changes the target's law t to [p·t - d]+ normalised: outside the draft law's entries that is
t times a constant, so only the entries and that constant need to be kept up. The law of the whole vocabulary is made
once, when a token is drawn from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.rules.nodes import Nodes
from outrider.cloud.rules.residual import LEAST_MASS, Law


@dataclass(slots=True)
class Remainder:
    """A row's target law as the children refused so far have left it, and the law the next child was drawn from."""

    whole: Law
    """The target's law before any refusal, [vocabulary]."""
    ids: NDArray[np.intp]
    """The draft law's entries."""
    target: Law
    """The target's law at `ids` as it is now, [entries]."""
    draft: Law
    """The draft's law at `ids` as it is now, [entries]."""
    outside: float
    """The target's mass outside `ids`, before any refusal."""
    scale: float = 1.0
    """What the target's law outside `ids` is multiplied by now."""

    @classmethod
    def at(cls, nodes: Nodes, row: int) -> Remainder:
        """Nothing refused yet. ValueError if ``row`` has no draft law."""
        whole = nodes.law(row)
        ids, draft = nodes.draft_entries(row)
        target = whole[ids]
        return cls(whole, ids, target, draft, max(0.0, 1.0 - float(np.sum(target))))

    def ratio(self, token: int) -> float:
        """Target over draft probability of a child's ``token``. ZeroDivisionError if it cannot have been drawn."""
        entry = self._entry(token)
        return float(self.target[entry]) / float(self.draft[entry])

    def refuse(self, token: int, kept: float = 1.0, *, distinct: bool) -> float:
        """A child with this token was refused: the mass of [kept·target - draft]+, which becomes the target's law.

        ``distinct``: the next child was drawn without replacement, so the draft's law loses ``token``. Where nothing
        is left, target and draft were equal and the target's law stays.
        """
        rest = np.maximum(kept * self.target - self.draft, 0.0)
        mass = kept * self.scale * self.outside + float(np.sum(rest))
        if mass >= LEAST_MASS:
            self.target = rest / mass
            self.scale *= kept / mass
        if distinct:
            self.draft = self.draft.copy()
            self.draft[self._entry(token)] = 0.0
            self.draft /= max(float(np.sum(self.draft)), np.finfo(np.float64).tiny)
        return mass

    def law(self) -> Law:
        """The target's law as it is now, [vocabulary]."""
        law = self.scale * self.whole
        law[self.ids] = self.target
        return law

    def _entry(self, token: int) -> int:
        return int(np.flatnonzero(self.ids == token)[0])
