"""What accepting too much costs, at one position.

A rule that tests one drafted token x ~ d at a time accepts it with probability b(x) and otherwise emits a draw from
some law P. The emitted token then has the law out = b·d + rho·P with rho = sum of (1 - b)·d, the probability of a
rejection. Yin, Chen, Huang, Wang, "A theoretical perspective for speculative decoding algorithm", NeurIPS 2024:

- Theorem 2: out = t, the target's law, is possible exactly when b <= min(1, t/d).
- Theorem 4: for any b the least loss TV(out, t) over P is sum of [b·d - t]+, reached by P = [t - b·d]+ normalised.
- Theorem 5: rejection + loss >= TV(t, d) whatever b and P are, and b >= min(1, t/d) with that P has equality.

For every b >= min(1, t/d) the sum [t - b·d]+ is [t - d]+: where a token is drafted too rarely (t > d) it is accepted
anyway, and elsewhere both are 0. So the best replacement (*Decoding-OPT*) is the one that `residual` draws from, and
nobody needs to know b at tokens that were not drafted. Drawing from t instead (*Decoding-UNO*) loses more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.rules.nodes import Audit
from outrider.cloud.rules.residual import Law, left_mass

Ids = NDArray[np.intp]
Probabilities = NDArray[np.float64]


def lossless(target: Law, ids: Ids, draft: Probabilities) -> Probabilities:
    """min(1, t/d) of each of ``ids``, [entries]: the most that can be accepted without loss.

    ``target`` is t of every id, ``draft`` d of ``ids``, each above 0.
    """
    return np.minimum(1.0, target[ids] / draft)


def account(target: Law, ids: Ids, draft: Probabilities, accept: Probabilities, replacement: Law) -> Audit:
    """The audit of one position, by its definition: no theorem is assumed.

    ``draft`` and ``accept`` are d and b of ``ids`` [entries], d is 0 elsewhere; ``target`` and ``replacement`` are t
    and P of every id [vocabulary].
    """
    rejection = max(0.0, float(np.sum((1.0 - accept) * draft)))
    emitted = rejection * replacement
    emitted[ids] += accept * draft
    loss = float(np.sum(np.abs(emitted - target))) / 2
    return Audit(1, rejection, loss, left_mass(target, draft, ids))


def estimate(target: Law, ids: Ids, draft: Probabilities, token: int, accept: float) -> Audit:
    """`account` where b is known at the drafted ``token`` alone, for the best replacement and b >= min(1, t/d).

    Rejection and loss are those of this token; over tokens drawn from d their means are the true ones, since
    sum of (1 - b)·d = E[1 - b] and sum of [b·d - t]+ = E[(b - t/d)+]. ``tv`` is exact, so the gap is noise around 0.
    """
    drawn = float(draft[ids == token][0])
    loss = max(0.0, accept - float(target[token]) / drawn)
    return Audit(1, 1.0 - accept, loss, left_mass(target, draft, ids))
