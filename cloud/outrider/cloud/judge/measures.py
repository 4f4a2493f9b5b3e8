"""What can be said of a drafted token without a judge: the controls' evidence, from two laws."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Measures:
    """One drafted token beside the target's law at temperature 1."""

    probability: float
    """t(x)."""
    rank: int
    """Tokens that the target finds likelier."""
    entropy: float
    """Of the target's law, nats."""
    drafted: float
    """What the drafter says the chance is that x is the target's own."""
    kl: float
    """KL(draft ‖ target) of the two-cell laws {x, anything else}, nats: a lower bound of that over all tokens (data
    processing), and all that can be known from a drafter that sends ids and confidences."""

    def to_json(self) -> dict[str, float]:
        """As written beside labels."""
        return {name: float(f"{value:.6g}") for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, given: dict[str, float]) -> Measures:
        """Read back. Raises KeyError for a missing one."""
        return cls(
            float(given["probability"]),
            int(given["rank"]),
            float(given["entropy"]),
            float(given["drafted"]),
            float(given["kl"]),
        )


def measures(logits: NDArray[np.floating], token: int, drafted: float) -> Measures:
    """Measures of ``token`` under the target's ``logits`` [vocabulary] where it was drafted with that confidence."""
    scores = np.asarray(logits, np.float64)
    shifted = scores - scores.max()
    log_law = shifted - math.log(float(np.exp(shifted).sum()))
    law = np.exp(log_law)
    return Measures(
        probability=float(law[token]),
        rank=int((scores > scores[token]).sum()),
        entropy=float(-(law * log_law).sum()),
        drafted=drafted,
        kl=two_cell_kl(drafted, float(law[token])),
    )


def two_cell_kl(drafted: float, probability: float) -> float:
    """KL between Bernoulli laws of these chances, both kept within 1e-9 of the open interval."""
    d, t = (min(max(chance, 1e-9), 1 - 1e-9) for chance in (drafted, probability))
    return d * math.log(d / t) + (1 - d) * math.log((1 - d) / (1 - t))
