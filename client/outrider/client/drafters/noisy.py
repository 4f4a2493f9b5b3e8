"""An oracle that is wrong at a chosen rate, the same way every time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.client.drafter import Budget, Proposal
from outrider.client.drafters.oracle import LOG_SURE, OracleDrafter
from outrider.shared.draft import Draft


class NoisyDrafter(OracleDrafter):
    """Replaces each id with probability ``rate``; which and by what depends on (seed, position) only."""

    kind = "noisy"

    def __init__(self, truth: Sequence[int], rate: float, seed: int, vocabulary: int) -> None:
        super().__init__(truth)
        self.rate = rate
        self.seed = seed
        self.vocabulary = vocabulary

    def guess(self, position: int) -> int:
        """What this drafter says at ``position``."""
        noise = np.random.default_rng((self.seed, position))
        truth = self.truth[position] if position < len(self.truth) else int(noise.integers(self.vocabulary))
        if self.vocabulary > 1 and noise.random() < self.rate:
            return (truth + 1 + int(noise.integers(self.vocabulary - 1))) % self.vocabulary
        return truth

    def propose(self, budget: Budget) -> Proposal:
        """A chain of guesses; as a tree, a second guess stands beside every token of it."""
        depth = min(budget.max_depth, budget.max_nodes)
        if depth < 1:
            return self.count(Proposal.empty())
        chain = [self.guess(self.length + index) for index in range(depth)]
        if not budget.tree:
            return self.count(Proposal.chain(chain, [LOG_SURE] * depth))
        return self.count(_with_siblings(chain, budget.max_nodes, self.vocabulary))


def _with_siblings(chain: Sequence[int], max_nodes: int, vocabulary: int) -> Proposal:
    """The chain, each token followed by one different sibling while nodes are left."""
    ids: list[int] = []
    parents: list[int] = []
    path: list[int] = []
    parent = 0
    for index, token in enumerate(chain):
        if len(ids) == max_nodes:
            break
        path.append(len(ids))
        ids.append(token)
        parents.append(parent)
        spare = max_nodes - len(ids) - (len(chain) - index - 1)
        next_parent = len(ids)
        if spare > 0 and vocabulary > 1:
            ids.append((token + 1) % vocabulary)
            parents.append(parent)
        parent = next_parent
    draft = Draft(ids=tuple(ids), parents=tuple(parents))
    return Proposal(draft, (LOG_SURE,) * len(ids), tuple(path))
