"""Processes: what target and draft say at each position, given what stands before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.netsim.errors import BadConfig
from outrider.netsim.theory.pairs import Array, Pair, random_pairs

Rows = NDArray[np.int64]

MOST_PREFIXES = 2_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """The pairs of every position, one row per context; position 0 has the one empty context.

    In a Markov chain a context is the last token. With ``whole_prefix`` it is the whole text so far (row of the longer
    text = row · vocabulary + token), which is every dependence on the past there can be, at vocabulary^n rows.
    Raises `BadConfig` when the rows do not fit together.
    """

    steps: tuple[Pair, ...]
    whole_prefix: bool = False

    def __post_init__(self) -> None:
        if not self.steps:
            raise BadConfig("steps", "a process has at least one position")
        rows = 1
        for number, step in enumerate(self.steps):
            if step.target.shape != (rows, self.vocabulary):
                expected = (rows, self.vocabulary)
                raise BadConfig("steps", f"position {number} is {step.target.shape}, not {expected}")
            rows = rows * self.vocabulary if self.whole_prefix else self.vocabulary

    @property
    def horizon(self) -> int:
        """Number of tokens, the paper's T."""
        return len(self.steps)

    @property
    def vocabulary(self) -> int:
        """Number of tokens to choose from."""
        return self.steps[0].vocabulary

    def advance(self, mass: Array) -> Array:
        """Weights of the next position's contexts, [rows'], from the mass of (context, token), [rows, vocabulary]."""
        return mass.reshape(-1) if self.whole_prefix else mass.sum(axis=0)

    def after(self, rows: Rows, tokens: Rows) -> Rows:
        """Contexts of the next position, one per run."""
        return rows * self.vocabulary + tokens if self.whole_prefix else tokens

    def stacked(self) -> Pair:
        """All rows of all positions below each other, [rows in all, vocabulary]; `split` cuts again."""
        return Pair(
            np.concatenate([step.target for step in self.steps]),
            np.concatenate([step.draft for step in self.steps]),
        )

    def split(self, rows: Array) -> list[Array]:
        """What belongs to each position, of something computed for `stacked`."""
        ends = np.cumsum([len(step.target) for step in self.steps])
        return np.split(rows, ends[:-1])

    def marginals(self) -> Iterator[Array]:
        """Law of the context under the target, position by position, [rows]."""
        weight = np.ones(1)
        for step in self.steps:
            yield weight
            weight = self.advance(weight[:, None] * step.target)

    def by_prefix(self) -> Process:
        """The same process with whole prefixes as contexts. Raises `BadConfig` above two million prefixes."""
        if self.whole_prefix:
            return self
        if self.vocabulary ** (self.horizon - 1) > MOST_PREFIXES:
            raise BadConfig("horizon", f"{self.vocabulary}^{self.horizon - 1} prefixes are too many")
        rows, steps = np.zeros(1, dtype=np.int64), []
        for step in self.steps:
            steps.append(step.rows(rows))
            rows = np.tile(np.arange(self.vocabulary, dtype=np.int64), len(rows))
        return Process(tuple(steps), whole_prefix=True)


def markov(first: Pair, later: Pair) -> Process:
    """A chain from its first pair, [states], and the pairs of positions 1 …, [horizon - 1, states, states]."""
    start = Pair(first.target[None, :], first.draft[None, :])
    rest = (Pair(t, d) for t, d in zip(later.target, later.draft, strict=True))
    return Process((start, *rest))


def iid(pair: Pair, horizon: int) -> Process:
    """The same pair, [vocabulary], at every position."""
    shape = (horizon - 1, pair.vocabulary, pair.vocabulary)
    return markov(pair, Pair(np.broadcast_to(pair.target, shape), np.broadcast_to(pair.draft, shape)))


def golden_chain() -> Process:
    """The chain all published figures of this project refer to: 7 states, 50 tokens, non-stationary.

    Its laws come from numpy's seeded generator in a fixed order, so the chain is one per numpy stream version; exact
    values are computed from it, never copied. (The paper's own 7-state matrices are not published.)
    """
    states, horizon = 7, 50
    rng = np.random.default_rng(20241101)
    one = np.ones(states)
    first = Pair(rng.dirichlet(one), rng.dirichlet(one))
    later = Pair(
        rng.dirichlet(one, size=(horizon, states))[1:], rng.dirichlet(one, size=(horizon, states))[1:]
    )
    return markov(first, later)


def random_chain(rng: np.random.Generator, states: int, horizon: int, concentration: float = 1.0) -> Process:
    """A non-stationary chain of independent Dirichlet laws."""
    first = random_pairs(rng, (), states, concentration)
    return markov(first, random_pairs(rng, (horizon - 1, states), states, concentration))


def random_history(
    rng: np.random.Generator, vocabulary: int, horizon: int, concentration: float = 1.0
) -> Process:
    """Independent Dirichlet laws for every prefix: nothing about the past can be left out."""
    steps = (random_pairs(rng, (vocabulary**n,), vocabulary, concentration) for n in range(horizon))
    return Process(tuple(steps), whole_prefix=True)
