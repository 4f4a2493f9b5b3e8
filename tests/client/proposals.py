"""What two drafts of graph drafters have in common, or not."""

from __future__ import annotations

import numpy as np

from outrider.client.drafter import Proposal


def same(one: Proposal, other: Proposal) -> None:
    """Same draft, same confidence, but for rounding."""
    assert one.draft == other.draft
    assert one.best_path == other.best_path
    np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)
