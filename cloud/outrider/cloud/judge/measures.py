"""What can be said of a drafted token without a judge: the controls' evidence, from two laws."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.shared.laws import SparseLaw


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
    """KL(draft ‖ target), nats, of the law the drafter would draw from there at temperature 1, cut to 255 tokens. Where
    it has none (it drafts ids and confidences only): of the two-cell laws {x, anything else}, a lower bound (data
    processing)."""

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


def unknown(place: int) -> SparseLaw | None:
    """No law at any place of a chain."""
    del place
    return None


def measures(
    logits: NDArray[np.floating], token: int, drafted: float, law: SparseLaw | None = None
) -> Measures:
    """Measures of ``token`` under the target's ``logits`` [vocabulary] where it was drafted with that confidence.

    ``law`` is the draft's there, if it is known.
    """
    scores = np.asarray(logits, np.float64)
    shifted = scores - scores.max()
    log_law = shifted - math.log(float(np.exp(shifted).sum()))
    target = np.exp(log_law)
    probability = float(target[token])
    return Measures(
        probability=probability,
        rank=int((scores > scores[token]).sum()),
        entropy=float(-(target * log_law).sum()),
        drafted=drafted,
        kl=two_cell_kl(drafted, probability) if law is None else sparse_kl(law, log_law),
    )


def sparse_kl(law: SparseLaw, log_target: NDArray[np.float64]) -> float:
    """KL(draft ‖ target) in nats; ``log_target`` [vocabulary] is the logarithm of the target's law."""
    draft = np.asarray(law.counts, np.float64) / (1 << law.bits)
    return max(0.0, float((draft * (np.log(draft) - log_target[list(law.ids)])).sum()))


def two_cell_kl(drafted: float, probability: float) -> float:
    """KL between Bernoulli laws of these chances, both kept within 1e-9 of the open interval."""
    d, t = (min(max(chance, 1e-9), 1 - 1e-9) for chance in (drafted, probability))
    return d * math.log(d / t) + (1 - d) * math.log((1 - d) / (1 - t))
