"""The drafter's contract: five verbs, and what a call to ``propose`` may spend and returns.

A drafter holds one token sequence of its own (committed ids and, behind them, whatever the session appended). It is
driven by one thread at a time and never sees the network. A new kind is a new file in ``drafters/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.shared.draft import Draft, DraftKind
from outrider.shared.sampling import Sampling

Rows = NDArray[np.float32]


Law = tuple[tuple[float, ...], ...]
"""By depth and rank: the probability that a child is the target's token, given that its parents were. Best rank first;
depths beyond the last one are like it."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """How often a drafter's children are right, measured on held-out answers when it was made; () = not measured."""

    greedy: Law = ()
    sampled: Law = ()
    """At temperature 1 with shared noise."""

    def at(self, temperature: float) -> Law:
        """The law for answers at ``temperature``: between the two in proportion, beyond 1 the sampled one."""
        if temperature <= 0 or not self.sampled:
            return self.greedy
        share = min(temperature, 1.0)
        if share >= 1.0 or not self.greedy:
            return self.sampled
        return tuple(
            tuple((1.0 - share) * cold + share * warm for cold, warm in zip(left, right, strict=False))
            for left, right in zip(self.greedy, self.sampled, strict=False)
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """What drafting costs, in tokens that the same time would have brought otherwise."""

    verify: tuple[float, ...]
    """Entry n: verifying a draft of n nodes beyond a draft of none. A staircase where passes are padded."""
    level: float
    """One more run of the drafter's model, whatever its width."""
    node: float
    """Each node expanded in it."""
    law: Law
    """What children can be expected to be worth before they are seen."""

    def child(self, depth: int, rank: int = 0) -> float:
        """Expected probability of the child of this rank at this depth (1 = directly below the base)."""
        ranks = self.law[min(depth, len(self.law)) - 1]
        return ranks[rank] if rank < len(ranks) else 0.0

    @property
    def pays(self) -> bool:
        """Whether a pass of one node can be expected to bring more than it costs."""
        verify = self.verify[min(1, len(self.verify) - 1)] - self.verify[0]
        return self.child(1) > self.level + self.node + verify

    def behind(self, sent: int) -> Prices:
        """The prices of what is drafted behind ``sent`` tokens that are part of the same draft.

        It counts only if they are all accepted, so everything is dearer by the chance of that.
        """
        if sent <= 0:
            return self
        chance = 1.0
        for depth in range(1, sent + 1):
            chance *= self.child(depth)
        dearer = 1.0 / max(chance, 1e-6)
        already = self.verify[min(sent, len(self.verify) - 1)]
        verify = tuple(dearer * (price - already) for price in self.verify[sent:]) or (0.0,)
        law = self.law[min(sent, len(self.law) - 1) :]
        return Prices(verify, dearer * self.level, dearer * self.node, law)


@dataclass(frozen=True, slots=True)
class Drawing:
    """How children are drawn, for rules that compare laws: from the drafter's own law, cut and rounded *before*."""

    kind: DraftKind
    """SAMPLED or DISTINCT."""
    key: bytes
    """Of the coins of this one draft; nobody who judges it knows them, and no other draft has them."""
    first: int = 1
    """Children of the base, at most."""
    below: int = 1
    """Children of any other node, at most."""
    top: int = 16
    """Entries of a law, at most."""
    bits: int = 12
    """Probabilities are multiples of 2^-bits."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one draft may be."""

    max_nodes: int
    """Tokens in the draft, at most."""
    max_depth: int
    """Tokens from the base to the deepest node, at most."""
    tree: bool = False
    """Whether siblings are allowed; False asks for a chain."""
    floor: float = -float("inf")
    """Cumulative log-probability below which growing stops (the first token is always proposed)."""
    sampling: Sampling = field(default_factory=Sampling)
    """How the target will choose, so that the draft can guess the same coins."""
    prices: Prices | None = None
    """What the draft has to be worth; None: it is grown to ``max_nodes`` whatever that costs."""
    drawing: Drawing | None = None
    """Draw the children, and say from which laws; None: choose them."""
    generated_from: int = 0
    """Where the answer begins, for penalties; read where the sampling adjusts logits."""
    stop_ids: tuple[int, ...] = ()
    """What ends it, likewise; nothing is drawn below these."""
    alone_from: int | None = None
    """Length of what the target vouches for, where the device writes alone: the text behind it must not go round in
    circles. None: the target will judge the draft."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft and what the drafter thinks of it."""

    draft: Draft
    log_probs: tuple[float, ...]
    """Per node: calibrated log-probability that the target picks it after its parent; of drawn ones, by their law."""
    best_path: tuple[int, ...]
    """Node indices (0-based), base to leaf: what the device shows if it has to write on alone."""

    @classmethod
    def empty(cls) -> Proposal:
        """A proposal of nothing: the round becomes a plain step."""
        return cls(Draft.chain(()), (), ())

    @classmethod
    def chain(cls, ids: Sequence[int], log_probs: Sequence[float]) -> Proposal:
        """A chain of ``ids``, whose best path is the whole of it."""
        return cls(Draft.chain(tuple(ids)), tuple(log_probs), tuple(range(len(ids))))

    @property
    def best_ids(self) -> tuple[int, ...]:
        """The ids along the best path."""
        return tuple(self.draft.ids[node] for node in self.best_path)


@dataclass(slots=True)
class Counters:
    """What a drafter did since it was made; only ever grows."""

    proposals: int = 0
    nodes: int = 0
    """Tokens proposed."""
    passes: int = 0
    """Runs of the model. A kind that drafts in one run whatever the depth counts the levels that it gave."""
    ingested: int = 0
    """Tokens the model consumed, those of drafts included; of such a kind the base and the nodes with children."""
    reused: int = 0
    """Accepted tokens whose keys and values were taken over from the draft."""
    rows: int = 0
    """State rows received."""


class Drafter(Protocol):
    """What the session asks of any drafter. Ids are target ids; lengths and positions are absolute."""

    kind: str
    counters: Counters
    confidence: Confidence

    @property
    def length(self) -> int:
        """Tokens in the drafter's sequence."""
        ...

    def begin(self, ids: Sequence[int]) -> None:
        """The sequence becomes ``ids``; what is kept of the old one's beginning costs nothing."""
        ...

    def add_rows(self, plane: int, start: int, rows: Rows) -> None:
        """Take state rows [count, width] of positions start …; late, in any order, or never."""
        ...

    def propose(self, budget: Budget) -> Proposal:
        """Draft what follows the sequence, which stays as it is. Empty when there is nothing to say."""
        ...

    def accept(self, ids: Sequence[int]) -> None:
        """Append ``ids``; work done for them by the last ``propose`` is kept."""
        ...

    def rollback(self, length: int) -> None:
        """Cut the sequence to ``length`` tokens (no effect when it is that short already)."""
        ...


class SequenceDrafter:
    """Keeps the sequence and the counters; kinds without a model need only ``propose``."""

    kind = "none"
    confidence = Confidence()

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.counters = Counters()

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return len(self.ids)

    def begin(self, ids: Sequence[int]) -> None:
        """Replace the sequence."""
        self.ids = list(ids)

    def add_rows(self, plane: int, start: int, rows: Rows) -> None:
        """Ignore state rows: this kind does not read the target's state."""
        del plane, start
        self.counters.rows += len(rows)

    def accept(self, ids: Sequence[int]) -> None:
        """Append ``ids``."""
        self.ids.extend(ids)

    def rollback(self, length: int) -> None:
        """Cut the sequence to ``length`` tokens."""
        del self.ids[max(length, 0) :]

    def count(self, proposal: Proposal) -> Proposal:
        """Count a proposal and hand it back."""
        self.counters.proposals += 1
        self.counters.nodes += len(proposal.draft.ids)
        return proposal


def common_prefix(left: Sequence[Any], right: Sequence[Any]) -> int:
    """How many leading items are equal."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
