"""Exact laws of rules: the production function itself, run once per outcome of every draft and every coin.

A *program* is any function of a `Branches`; wherever it needs luck it asks `Branches.choose`, and `outcomes` runs it
again and again until every branch was taken, adding up the probability of each result. A rule takes part through
`BranchingCoins`: a coin that is a number nobody knows, only an interval it lies in. Each comparison ``coin < a`` that
the interval leaves open is a branch, weighted by where ``a`` cuts the interval, and narrows it; asked again under the
same address it remembers. So a coin that is thrown twice (for two decisions, or in two rounds) shows up as the
dependence it is. Inverse-CDF draws are comparisons too (`Nodes.draw` bisects), hence nothing of a rule is copied or
replaced here.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.rules import NOTHING, Decision, Nodes
from outrider.shared.coins import CoinSource, Purpose
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.laws import SparseLaw
from outrider.shared.sampling import Sampling

Law = NDArray[np.float64]
Path = tuple[int, ...]
Model = Callable[[Path], Law]
"""A law for every path."""
T = TypeVar("T", bound=Hashable)
START = 10
"""Committed tokens before the first round."""
PLAIN = Sampling(1.0)


class Branches:
    """The choices of one run: those of ``script`` again, beyond it always the first that can happen."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.taken: list[int] = []
        self.open: list[list[int]] = []
        self.weight = 1.0

    def choose(self, weights: Sequence[float]) -> int:
        """An index, with probability proportional to its weight; the weights sum to 1."""
        able = [index for index, weight in enumerate(weights) if weight > 0]
        at = len(self.taken)
        index = self.script[at] if at < len(self.script) else able[0]
        self.taken.append(index)
        self.open.append([other for other in able if other > index])
        self.weight *= float(weights[index])
        return index


def outcomes(program: Callable[[Branches], T]) -> dict[T, float]:
    """Every result of ``program`` with its probability."""
    found: dict[T, float] = defaultdict(float)
    script: list[int] | None = []
    while script is not None:
        branches = Branches(script)
        found[program(branches)] += branches.weight
        script = None
        for at in reversed(range(len(branches.taken))):
            if branches.open[at]:
                script = [*branches.taken[:at], branches.open[at][0]]
                break
    return dict(found)


class BranchingCoin:
    """A coin known only by the interval it lies in; has no value, so anything but a comparison fails."""

    def __init__(self, branches: Branches, interval: list[float]) -> None:
        self.branches = branches
        self.interval = interval

    def __lt__(self, bound: float) -> bool:
        low, high = self.interval
        if bound <= low or bound >= high:
            return bool(bound >= high)
        share = (float(bound) - low) / (high - low)
        below = self.branches.choose((share, 1.0 - share)) == 0
        self.interval[int(below)] = float(bound)
        return below

    def __ge__(self, bound: float) -> bool:
        return not self < bound


class BranchingCoins:
    """Coins that branch, one per address. ``address`` may forget parts of it: a coin that is thrown again."""

    def __init__(
        self, branches: Branches, address: Callable[[tuple[int, ...]], Hashable] = lambda whole: whole
    ) -> None:
        self.branches = branches
        self.address = address
        self.intervals: dict[Hashable, list[float]] = defaultdict(lambda: [0.0, 1.0])

    def __call__(self, base: int, position: int, purpose: Purpose, index: int = 0) -> float:
        """As `outrider.shared.coins.Coins`."""
        whole = (base, position, int(purpose), index)
        return cast(float, BranchingCoin(self.branches, self.intervals[self.address(whole)]))


@dataclass(frozen=True)
class RealLaw:
    """A draft law of any numbers, where a `SparseLaw` has multiples of 2^-bits: for golden values."""

    ids: tuple[int, ...]
    counts: tuple[float, ...]
    bits: int = 0

    def dense(self, vocabulary: int) -> Law:
        """As `SparseLaw.dense`."""
        law = np.zeros(vocabulary)
        law[list(self.ids)] = self.counts
        return law


def real(law: Law) -> SparseLaw:
    """``law`` in the place of a sparse one."""
    ids = np.flatnonzero(law)
    return cast(SparseLaw, RealLaw(tuple(ids.tolist()), tuple(law[ids].tolist())))


Judge = Callable[[Nodes, Mapping[str, float]], Decision]


@dataclass(frozen=True)
class Play:
    """A target, a drafter and a rule. Laws are functions of the path since the start."""

    target: Model
    drafted: Model
    """The law tokens are drawn from, and, unless `told` says otherwise, the one that is reported."""
    rule: Judge
    widths: tuple[int, ...] = (1,)
    """Children per node, by depth."""
    kind: DraftKind = DraftKind.SAMPLED
    told: Model | None = None
    pick: Callable[[Branches, Law, int, DraftKind], Sequence[int]] | None = None
    """How children are come by; None: as the kind says."""
    sampling: Sampling = PLAIN
    given: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    address: Callable[[tuple[int, ...]], Hashable] = staticmethod(lambda whole: whole)

    @property
    def vocabulary(self) -> int:
        """Number of ids."""
        return len(self.target(()))

    def draft(self, branches: Branches, base: Path) -> Draft:
        """One draft, breadth first."""
        pick, told = self.pick or children, self.told or self.drafted
        ids: list[int] = []
        parents: list[int] = []
        laws: list[SparseLaw] = []
        level = [(0, base)]
        for width in self.widths:
            below = []
            for row, path in level:
                for token in pick(branches, self.drafted(path), width, self.kind):
                    ids.append(token)
                    parents.append(row)
                    below.append((len(ids), (*path, token)))
                if parents and parents[-1] == row:
                    laws.append(real(told(path)))
            level = below
        kept = () if self.kind is DraftKind.CHOSEN else tuple(laws)
        return Draft(tuple(ids), tuple(parents), self.kind, kept)

    def judge(self, draft: Draft, base: Path, coins: CoinSource) -> Decision:
        """The rule's verdict on ``draft`` after ``base``."""
        paths = [base, *((*base, *(draft.ids[n] for n in draft.path_to(node))) for node in range(len(draft)))]
        with np.errstate(divide="ignore"):
            logits = np.log(np.stack([self.target(path) for path in paths]))
        nodes = Nodes(draft, logits, self.sampling, START + len(base), coins=coins)
        return self.rule(nodes, self.given)

    def rounds(self, branches: Branches, count: int = 1) -> tuple[Path, tuple[int, ...]]:
        """Tokens of ``count`` rounds, and how many drafted ones each kept; one set of coins throughout."""
        coins = BranchingCoins(branches, self.address)
        text: Path = ()
        kept = []
        for _ in range(count):
            draft = self.draft(branches, text)
            decision = self.judge(draft, text, coins)
            text = (*text, *(draft.ids[node] for node in decision.path), decision.next_id)
            kept.append(len(decision.path))
        return text, tuple(kept)

    @cached_property
    def one_round(self) -> dict[tuple[Path, tuple[int, ...]], float]:
        """Every outcome of one round with its probability."""
        return outcomes(self.rounds)

    def emitted(self) -> dict[Path, float]:
        """Law of what one round emits."""
        law: dict[Path, float] = defaultdict(float)
        for (text, _), weight in self.one_round.items():
            law[text] += weight
        return dict(law)

    def accepted(self) -> float:
        """Probability that the first token is a drafted one."""
        return sum(weight for (_, kept), weight in self.one_round.items() if kept[0])

    def mean_kept(self) -> float:
        """Expected number of drafted tokens kept in a round."""
        return sum(kept[0] * weight for (_, kept), weight in self.one_round.items())

    def bias(self, rounds: int = 1, tokens: int | None = None) -> float:
        """Total variation between the first tokens and the target's; what the rounds leave open the target adds.

        ``tokens`` of them, by default as many as the rounds can emit.
        """
        tokens = tokens or rounds * (len(self.widths) + 1)
        law: dict[Path, float] = defaultdict(float)
        found = self.one_round if rounds == 1 else outcomes(lambda branches: self.rounds(branches, rounds))
        for (text, _), weight in found.items():
            for path, share in self.extended(text[:tokens], tokens).items():
                law[path] += weight * share
        true = self.extended((), tokens)
        return sum(abs(law[path] - true.get(path, 0.0)) for path in law.keys() | true.keys()) / 2

    def extended(self, text: Path, tokens: int) -> dict[Path, float]:
        """Continuations of ``text`` to that many tokens by the target, with their probabilities."""
        law = {text: 1.0}
        for _ in range(tokens - len(text)):
            law = {
                (*path, token): weight * share
                for path, weight in law.items()
                for token, share in enumerate(self.warped(path))
                if share > 0
            }
        return law

    def warped(self, path: Path) -> Law:
        """The target's law after ``path`` under the sampling's temperature (no other warp is known here), above 0."""
        powered = self.target(path) ** (1 / self.sampling.temperature)
        return powered / np.sum(powered)

    def but(self, **changes: object) -> Play:
        """The same with other parts."""
        return replace(self, **changes)  # type: ignore[arg-type]


def children(branches: Branches, law: Law, width: int, kind: DraftKind) -> Sequence[int]:
    """Children as ``kind`` says: independent draws, draws without replacement, or the likeliest."""
    if kind is DraftKind.CHOSEN:
        return [int(token) for token in np.argsort(-law, kind="stable")[:width]]
    drawn: list[int] = []
    left = law.copy()
    for _ in range(min(width, int(np.count_nonzero(law))) if kind is DraftKind.DISTINCT else width):
        drawn.append(branches.choose(tuple(left / np.sum(left))))
        if kind is DraftKind.DISTINCT:
            left[drawn[-1]] = 0.0
    return drawn


def random_model(
    seed: int, vocabulary: int, depth: int, zeros: float = 0.0, like: Model | None = None
) -> Model:
    """A law for every path of up to ``depth`` tokens; a share of entries 0; half of ``like`` mixed in."""
    rng = np.random.default_rng(seed)
    table: dict[Path, Law] = {}
    for length in range(depth + 1):
        for path in itertools.product(range(vocabulary), repeat=length):
            law = rng.dirichlet(np.ones(vocabulary)) * (rng.random(vocabulary) >= zeros)
            law = law if law.any() else np.eye(vocabulary)[0]
            table[path] = (law / law.sum() + (like(path) if like else law / law.sum())) / 2
    return table.__getitem__


def always(law: Sequence[float]) -> Model:
    """The same law after every path."""
    fixed = np.asarray(law, np.float64)
    return lambda path: fixed


G1 = (always((0.2, 0.3, 0.5)), always((0.5, 0.3, 0.2)))
"""Target and draft: TV 0.3, residual (0, 0, 1)."""
G2 = (always((0.05, 0.10, 0.15, 0.30, 0.40)), always((0.40, 0.25, 0.15, 0.15, 0.05)))
"""Target and draft: TV 0.5, residual (0, 0, 0, 0.3, 0.7)."""
