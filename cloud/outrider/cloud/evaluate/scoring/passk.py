"""pass@k: the chance that at least one of k samples passes."""

from __future__ import annotations

import math


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Unbiased estimate from ``samples`` independent ones, of which ``passed`` passed: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", section 2.1, equation 1, in exact integers.
    Raises ValueError unless 0 <= passed <= samples and 1 <= k <= samples.
    """
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(f"expected 0 <= passed <= samples and 1 <= k <= samples: {passed}, {samples}, {k}")
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)
