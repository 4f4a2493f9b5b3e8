"""The worst drafter that still keeps the contract: wide wrong trees, end tokens, token 0, and the truth told last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.client.drafter import Budget, Proposal
from outrider.client.drafters.oracle import OracleDrafter
from outrider.shared.draft import Draft


class AdversarialDrafter(OracleDrafter):
    """Every shape and id that has ever broken a verifier, from a seed and the position."""

    kind = "adversarial"

    def __init__(self, truth: Sequence[int], stop_ids: Sequence[int], seed: int, vocabulary: int) -> None:
        super().__init__(truth)
        self.stop_ids = tuple(stop_ids)
        self.seed = seed
        self.vocabulary = vocabulary

    def propose(self, budget: Budget) -> Proposal:
        """A tree (or chain) of the full size allowed, mostly wrong."""
        noise = np.random.default_rng((self.seed, self.length))
        size = budget.max_nodes if budget.tree else min(budget.max_nodes, budget.max_depth)
        ids: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        for _ in range(max(size, 0)):
            parent = int(noise.integers(len(ids) + 1)) if budget.tree else len(ids)
            depth = 1 + (depths[parent - 1] if parent else 0)
            taken = {ids[node] for node, of in enumerate(parents) if of == parent}
            token = self._token(noise, depth, last=len(taken) + 1 >= 3)
            if depth > budget.max_depth or token in taken:
                continue
            ids.append(token)
            parents.append(parent)
            depths.append(depth)
        return self.count(_proposal(ids, parents, noise))

    def _token(self, noise: np.random.Generator, depth: int, *, last: bool) -> int:
        position = self.length + depth - 1
        if last and position < len(self.truth):
            return self.truth[position]
        special = (0, self.vocabulary - 1, *self.stop_ids)
        if noise.random() < 0.3:
            return int(special[int(noise.integers(len(special)))])
        return int(noise.integers(self.vocabulary))


def _proposal(ids: list[int], parents: list[int], noise: np.random.Generator) -> Proposal:
    """Any node may end the best path, so that what is shown offline is as odd as what is sent."""
    if not ids:
        return Proposal.empty()
    node, path = int(noise.integers(len(ids))), []
    while node >= 0:
        path.append(node)
        node = parents[node] - 1
    draft = Draft(ids=tuple(ids), parents=tuple(parents))
    return Proposal(draft, (-float(noise.random()),) * len(ids), tuple(reversed(path)))
