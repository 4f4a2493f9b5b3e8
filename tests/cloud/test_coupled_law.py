"""The coupled rule's law, exactly: every noise word of a grid, the real rule, small vocabularies.

**The grid.** A position's noise is one 32-bit word per id. Here each word takes ``m`` values, the midpoints of ``m``
equal intervals, and a position all ``m ** V`` combinations, each equally likely.

**The bound.** Id i wins where E_i / p_i < E_j / p_j for all j, and E grows with the word: the region is closed under
making word i smaller and the others larger. Along a diagonal of cells in that direction membership changes once, so
its boundary cuts at most one cell of each of the ``m ** V - (m - 1) ** V`` diagonals, and only cut cells can count
wrongly: grid and law differ by at most ``1 - (1 - 1/m) ** V`` per position, for one id as for "target and drafter both
choose i" (an intersection of two such regions). Over n positions the differences add.

**The enumeration.** A position's words matter only through what each law in play would choose there. Words that agree
on all of that form a class; the real rule runs once per combination of classes, weighted by their sizes.
`test_classes_leave_nothing_out` runs a small grid without classes and gets the same law.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.cloud.rules import RULES, Nodes
from outrider.shared.draft import Draft
from outrider.shared.noise import gumbel_of
from outrider.shared.sampling import Sampling, law, pick

START = 10
SAMPLING = Sampling(1.0)
LEVELS = {2: 512, 3: 64, 4: 24}
EMITTED = {2: 3, 3: 2, 4: 2}
"""Tokens whose joint law is looked at, by vocabulary."""

Path = tuple[int, ...]
Law = NDArray[np.float64]
Bits = NDArray[np.uint32]


def bound(vocabulary: int, levels: int, positions: int = 1) -> float:
    """How far grid and law can be apart; see the module."""
    return float(positions * (1 - (1 - 1 / levels) ** vocabulary))


@cache
def grid(vocabulary: int, levels: int) -> Bits:
    """All words of a position: [levels ** vocabulary, vocabulary]."""
    values = np.round((np.arange(levels) + 0.5) / levels * 2.0**32 - 0.5).astype(np.uint32)
    return np.stack(np.meshgrid(*[values] * vocabulary, indexing="ij"), -1).reshape(-1, vocabulary)


@cache
def logits_of(vocabulary: int, name: int, mix: float, path: Path) -> NDArray[np.float32]:
    """Scores that are a function of the path; ``mix`` is the share of model 0 in them."""
    own = np.random.default_rng((name, *path)).normal(0, 1.3, vocabulary)
    base = np.random.default_rng((0, *path)).normal(0, 1.3, vocabulary)
    return ((1 - mix) * own + mix * base).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Model:
    """A law for every path: logits are a function of the path."""

    vocabulary: int
    name: int
    mix: float = 0.0
    """Share of model 0 in the logits: 1 is that model."""

    def logits(self, path: Path) -> NDArray[np.float32]:
        """Scores after ``path``."""
        return logits_of(self.vocabulary, self.name, self.mix, path)

    def law(self, path: Path) -> Law:
        """The next-token distribution after ``path``."""
        return law(self.logits(path), SAMPLING)

    def paths(self, depth: int) -> list[Path]:
        """All paths of that length."""
        return list(itertools.product(range(self.vocabulary), repeat=depth))


@dataclass(slots=True)
class Coins:
    """The noise words of each position, in place of Philox."""

    by_position: dict[int, Bits] = field(default_factory=dict)
    address: Callable[[int], int] = staticmethod(lambda position: position)

    def raw_words(self, seed: int, position: int, vocabulary: int) -> NDArray[np.uint64]:
        """As `outrider.shared.noise.raw_words`. Positions that nobody looks at get fixed words."""
        del seed
        fixed = np.arange(1, vocabulary + 1, dtype=np.uint32) * np.uint32(700_000_000)
        bits = self.by_position.get(self.address(position), fixed)
        return bits.astype(np.uint64) << np.uint64(32)


@pytest.fixture
def coins(monkeypatch: pytest.MonkeyPatch) -> Coins:
    """The sampler reads its words here."""
    made = Coins()
    monkeypatch.setattr("outrider.shared.sampling.raw_words", made.raw_words)
    return made


def classes(bits: Bits, laws: list[NDArray[np.float32]]) -> list[tuple[Bits, float]]:
    """Words that differ in what some law would choose, each with its share of the grid."""
    noise = gumbel_of(bits)
    key = np.zeros(len(bits), np.int64)
    for logits in laws:
        chosen = np.argmax(logits.astype(np.float64) + noise, axis=1)
        key = key * len(logits) + chosen
        used = np.bincount(key) > 0
        key = (np.cumsum(used) - 1)[key]
    counts = np.bincount(key)
    first = np.zeros(len(counts), np.int64)
    first[key[::-1]] = np.arange(len(key))[::-1]
    return [(bits[i], n / len(bits)) for i, n in zip(first, counts, strict=True)]


def all_coins(coins: Coins, by_position: Mapping[int, list[tuple[Bits, float]]]) -> Iterator[float]:
    """Every combination of classes in turn, and its weight."""
    for combination in itertools.product(*by_position.values()):
        coins.by_position = {n: bits for n, (bits, _) in zip(by_position, combination, strict=True)}
        yield float(np.prod([share for _, share in combination]))


def coin_classes(models: list[Model], count: int, levels: int) -> dict[int, list[tuple[Bits, float]]]:
    """Classes of each of the first ``count`` positions under all laws of ``models`` there."""
    words = grid(models[0].vocabulary, levels)
    return {
        START + n: classes(words, [model.logits(path) for model in models for path in models[0].paths(n)])
        for n in range(count)
    }


# --------------------------------------------------------------------------------------------------------- drafters

Drafter = Callable[[Path], Draft]


def same_coins(model: Model, depth: int = 3) -> Drafter:
    """A chain of what ``model`` chooses under the target's own noise."""

    def draft(path: Path) -> Draft:
        ids: Path = ()
        for step in range(depth):
            ids += (pick(model.logits(path + ids), SAMPLING, START + len(path) + step),)
        return Draft.chain(ids)

    return draft


def spiteful(target: Model) -> Drafter:
    """Reads the coins and never proposes what the target will choose."""

    def draft(path: Path) -> Draft:
        right = same_coins(target)(path).ids
        return Draft.chain([(token + 1) % target.vocabulary for token in right])

    return draft


def full_tree(vocabulary: int, depth: int) -> Drafter:
    """Every path."""
    ids: list[int] = []
    parents: list[int] = []
    rows = [0]
    for _ in range(depth):
        next_rows = []
        for row, token in itertools.product(rows, range(vocabulary)):
            ids.append(token)
            parents.append(row)
            next_rows.append(len(ids))
        rows = next_rows
    return lambda path: Draft(tuple(ids), tuple(parents))


def some_tree(vocabulary: int, seed: int) -> Drafter:
    """A tree of up to eight nodes, three deep, another one after every path, siblings in any order."""

    def draft(path: Path) -> Draft:
        rng = np.random.default_rng((seed, *path))
        ids: list[int] = []
        parents: list[int] = []
        depths = [0]
        for _ in range(8):
            parent, token = int(rng.integers(len(depths))), int(rng.integers(vocabulary))
            if depths[parent] < 3 and (parent, token) not in set(zip(parents, ids, strict=True)):
                ids.append(token)
                parents.append(parent)
                depths.append(depths[parent] + 1)
        return Draft(tuple(ids), tuple(parents))

    return draft


def drafters(target: Model, good: Model, bad: Model) -> dict[str, Drafter]:
    """Good and adversarial ones, chains and trees."""
    v = target.vocabulary
    return {
        "nothing": lambda path: Draft.chain(()),
        "truth": same_coins(target),
        "good": same_coins(good),
        "bad": same_coins(bad),
        "spiteful": spiteful(target),
        "constant": lambda path: Draft.chain((0, 0, 0)),
        "full tree": full_tree(v, 3 if v == 2 else 2),
        "tree 1": some_tree(v, 1),
        "tree 2": some_tree(v, 2),
    }


# -------------------------------------------------------------------------------------------------------------- laws


def nodes_of(target: Model, draft: Draft, path: Path, kind: type[Nodes] = Nodes) -> Nodes:
    """What the rule sees of ``draft`` after ``path``."""
    paths = [(), *(tuple(draft.ids[above] for above in draft.path_to(node)) for node in range(len(draft)))]
    return kind(
        draft, np.stack([target.logits(path + below) for below in paths]), SAMPLING, START + len(path)
    )


def emitted(target: Model, drafter: Drafter, count: int, kind: type[Nodes] = Nodes) -> Path:
    """The first tokens of as many rounds as they take."""
    path: Path = ()
    while len(path) < count:
        draft = drafter(path)
        decision = RULES["coupled"](nodes_of(target, draft, path, kind))
        path += (*(draft.ids[node] for node in decision.path), decision.next_id)
    return path[:count]


def true_law(target: Model, count: int) -> dict[Path, float]:
    """The target's joint law of the first ``count`` tokens."""
    return {
        path: float(np.prod([target.law(path[:n])[token] for n, token in enumerate(path)]))
        for path in target.paths(count)
    }


def farthest(found: Mapping[Path, float], truth: Mapping[Path, float]) -> float:
    """Largest difference of two joint laws."""
    return max(abs(found.get(path, 0.0) - share) for path, share in truth.items())


@pytest.mark.parametrize("vocabulary", [2, 3, 4])
def test_the_joint_law_is_the_targets_whatever_is_drafted(coins: Coins, vocabulary: int) -> None:
    """Over the whole grid, every drafter leaves the target's joint law, and for every single word its very text."""
    target = Model(vocabulary, 0)
    good, bad = Model(vocabulary, 1, mix=0.8), Model(vocabulary, 2)
    count, levels = EMITTED[vocabulary], LEVELS[vocabulary]
    kinds = drafters(target, good, bad)
    models = [target, good, bad]
    if vocabulary == 4:  # classes multiply: one law fewer, and the drafters that say most
        models = [target, good]
        kinds = {name: kinds[name] for name in ("good", "spiteful", "full tree", "tree 1")}
    found: dict[str, dict[Path, float]] = {name: {} for name in kinds}
    for weight in all_coins(coins, coin_classes(models, count, levels)):
        alone = same_coins(target, count)(()).ids
        for name, drafter in kinds.items():
            text = emitted(target, drafter, count)
            assert text == alone, name
            found[name][text] = found[name].get(text, 0.0) + weight
    truth = true_law(target, count)
    for name, shares in found.items():
        assert sum(shares.values()) == pytest.approx(1.0)
        assert farthest(shares, truth) <= bound(vocabulary, levels, count), name


def test_classes_leave_nothing_out(coins: Coins) -> None:
    """A grid of 5 levels, all 625 words of two positions run one by one: the law found by classes."""
    target, good, bad = Model(2, 0), Model(2, 1, mix=0.8), Model(2, 2)
    kinds = drafters(target, good, bad)
    every = {START + n: [(bits, 1 / 25) for bits in grid(2, 5)] for n in range(2)}
    by_class = coin_classes([target, good, bad], 2, 5)
    for name in ("good", "spiteful", "tree 1"):
        laws: list[dict[Path, float]] = []
        for by_position in (every, by_class):
            laws.append({})
            for weight in all_coins(coins, by_position):
                text = emitted(target, kinds[name], 2)
                laws[-1][text] = laws[-1].get(text, 0.0) + weight
        assert laws[0] == pytest.approx(laws[1], abs=1e-12)


def match_rate(target: Law, draft: Law) -> float:
    """Sum over i of 1 / sum over j of max(p_j / p_i, q_j / q_i)."""
    return float(sum(1 / np.maximum(target / target[i], draft / draft[i]).sum() for i in range(len(target))))


@pytest.mark.parametrize("vocabulary", [2, 3, 4])
def test_shared_coins_match_as_often_as_the_formula_says(coins: Coins, vocabulary: int) -> None:
    """The real rule accepts a token drafted with the same noise at the formula's rate, with other noise it does not."""
    target = Model(vocabulary, 0)
    words, levels = grid(vocabulary, LEVELS[vocabulary]), LEVELS[vocabulary]
    told_apart = 0
    for draft in (Model(vocabulary, 1, mix=0.8), Model(vocabulary, 2), Model(vocabulary, 3), target):
        here = classes(words, [target.logits(()), draft.logits(())])
        rate = apart = 0.0
        for weight in all_coins(coins, {START: here}):
            rate += weight * bool(RULES["coupled"](nodes_of(target, same_coins(draft, 1)(()), ())).path)
        expected = match_rate(target.law(()), draft.law(()))
        assert abs(rate - expected) <= vocabulary * bound(vocabulary, levels)
        # Control: a drafter with noise of its own draws independently of the target.
        for weight in all_coins(coins, {START: here, START + 1: here}):
            own = Draft.chain((pick(draft.logits(()), SAMPLING, START + 1),))
            apart += weight * bool(RULES["coupled"](nodes_of(target, own, ())).path)
        independent = float(target.law(()) @ draft.law(()))
        assert abs(apart - independent) <= 2 * vocabulary * bound(vocabulary, levels)
        told_apart += abs(apart - expected) > vocabulary * bound(vocabulary, levels)
    assert told_apart or vocabulary > 2, "the control must fail where the grid is fine enough to tell"


# ------------------------------------------------------------------------------------------------ negative controls


def test_one_coin_for_all_positions_is_found_out(coins: Coins) -> None:
    """Noise that forgets the position gives each token the right law and the pair a wrong one: the test must see it."""
    target, levels = Model(2, 0), LEVELS[2]
    coins.address = lambda position: START
    words = classes(grid(2, levels), [target.logits(path) for n in range(2) for path in target.paths(n)])
    found: dict[Path, float] = {}
    for weight in all_coins(coins, {START: words}):
        text = emitted(target, same_coins(target), 2)
        found[text] = found.get(text, 0.0) + weight
    first: dict[Path, float] = {
        (token,): sum(found.get((token, other), 0.0) for other in range(2)) for token in range(2)
    }
    assert farthest(first, true_law(target, 1)) <= bound(2, levels)
    assert farthest(found, true_law(target, 2)) > 10 * bound(2, levels, 2)


class OwnCoins(Nodes):
    """The mistake: a coin for each node instead of each position."""

    def position(self, row: int) -> int:
        """Another coin for every row."""
        return self.length + row


def test_one_coin_for_each_node_is_found_out(coins: Coins) -> None:
    """Noise by node lets a drafter choose where to hang a token so that the coin below it says what it likes."""
    target, levels = Model(2, 0), LEVELS[2]
    words = grid(2, levels)
    second = classes(words, [target.logits(path) for path in target.paths(1)])
    by_row = {START: classes(words, [target.logits(())]), START + 1: second, START + 2: second}

    def choosing(path: Path) -> Draft:
        """Both first tokens, in the order under which the one the target will take is followed by id 0 if any is."""
        if path:
            return Draft.chain(())
        first = pick(target.logits(()), SAMPLING, START)
        at_once = pick(target.logits((first,)), SAMPLING, START + 1) == 0
        ids = (first, 1 - first) if at_once else (1 - first, first)
        return Draft(ids, (0, 0))

    found: dict[type[Nodes], dict[Path, float]] = {Nodes: {}, OwnCoins: {}}
    for weight in all_coins(coins, by_row):
        for kind, shares in found.items():
            text = emitted(target, choosing, 2, kind)
            shares[text] = shares.get(text, 0.0) + weight
    truth = true_law(target, 2)
    assert farthest(found[Nodes], truth) <= bound(2, levels, 2)
    assert farthest(found[OwnCoins], truth) > 10 * bound(2, levels, 2)
