"""What a rule sees of one round: the target's view at the base and at every node of the draft."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from outrider.shared.coins import CoinSource, Purpose
from outrider.shared.draft import Draft
from outrider.shared.frames import TokenKind
from outrider.shared.sampling import (
    NEAR_TIE,
    Choice,
    History,
    Logits,
    LogProbs,
    Sampling,
    adjusted,
    choose,
    law,
    log_probs,
    scores,
)


@dataclass(frozen=True, slots=True)
class Audit:
    """What a rule that compares one drafted token at a time did to the law, summed over the positions it tested.

    Everything is an expectation over the coins and the drafted token, given the text before it; exact, not sampled, but
    for `judge`, which knows its score at the drafted token only (`outrider.cloud.rules.audit.estimate`).
    """

    positions: int = 0
    """Positions at which a drafted token was tested."""
    rejection: float = 0.0
    """Probability of rejecting."""
    loss: float = 0.0
    """Total variation between the law of the emitted token and the target's."""
    tv: float = 0.0
    """Total variation between target and draft law: what no rule with one draft gets below."""

    @property
    def gap(self) -> float:
        """rejection + loss - tv: 0 for a rule on the Pareto line, never negative (Yin et al., 2024, Theorem 5)."""
        return self.rejection + self.loss - self.tv

    def __add__(self, other: Audit) -> Audit:
        """Both together."""
        return Audit(
            self.positions + other.positions,
            self.rejection + other.rejection,
            self.loss + other.loss,
            self.tv + other.tv,
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """A rule's verdict."""

    path: tuple[int, ...]
    """Accepted nodes (0-based), root to leaf."""
    next_id: int
    """The token behind them."""
    kinds: tuple[TokenKind, ...]
    """Per committed token: one for each of ``path``, one for ``next_id``."""
    near_ties: int = 0
    """Committed tokens that another engine could have chosen otherwise."""
    audit: Audit | None = None
    """What it did to the law; None where the rule compares no laws, or several drafts at once."""


@dataclass(slots=True)
class Nodes:
    """Rows of a round, computed on demand: row 0 is the base, row k node k-1; row r chooses what follows it."""

    draft: Draft
    logits: Logits
    """[1 + nodes, vocabulary]."""
    sampling: Sampling
    length: int
    """Committed tokens, base included: the absolute position of the token that row 0 chooses."""
    exact: tuple[bool, ...] = ()
    """Per row: the logits have the bits the target alone would compute. Empty = all of them."""
    near_tie_bound: float = NEAR_TIE
    """Relative gap under which rounding may decide."""
    states: NDArray[np.float32] | None = None
    """[1 + nodes, hidden], for rules that ask for them."""
    coins: CoinSource | None = None
    """For rules that throw any; the device must not know them before the verdict."""
    history: History | None = None
    """The text that ends with the base, for samplings whose law depends on it."""
    stop_ids: frozenset[int] = frozenset()
    """The ids that end the turn."""
    wants_log_probs: bool = False
    """The device is told log-probabilities: no bits of an inexact row may reach it."""
    _choices: dict[int, Choice] = field(default_factory=dict)
    _histories: dict[int, History] = field(default_factory=dict)
    _depths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._depths = (0, *self.draft.depths)

    def position(self, row: int) -> int:
        """Absolute position of the token that ``row`` chooses: the coin's address."""
        return self.length + self._depths[row]

    def choice(self, row: int) -> Choice:
        """The target's token after ``row``, under the sampling's warps and noise."""
        if row not in self._choices:
            text = self.text(row)
            self._choices[row] = choose(
                self.logits[row], self.sampling, self.position(row), text, self.near_tie_bound
            )
        return self._choices[row]

    def near_tie(self, row: int) -> bool:
        """Whether rounding could change `choice`."""
        return self.choice(row).near_tie(self.near_tie_bound)

    def argmax(self, row: int) -> int:
        """Id of the largest logit after ``row`` (after bias, penalties and least length), lowest on ties."""
        return int(np.argmax(adjusted(self.logits[row], self.sampling, self.text(row))))

    def law(self, row: int) -> NDArray[np.float64]:
        """The warped next-token distribution after ``row``, [vocabulary]."""
        return law(self.logits[row], self.sampling, self.text(row))

    def draft_law(self, row: int) -> NDArray[np.float64]:
        """The law from which the children of ``row`` were drawn, [vocabulary].

        ValueError if the row has no children, or unless the rule declares ``needs_laws`` and the draft brought them.
        """
        return self.draft.law_of(row).dense(self.logits.shape[1])

    def draft_entries(self, row: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """`draft_law` without its zeros: ids and their probabilities, [entries] each. ValueError as there."""
        sparse = self.draft.law_of(row)
        return np.asarray(sparse.ids, np.intp), np.asarray(sparse.counts, np.float64) / (1 << sparse.bits)

    def drafted(self, node: int) -> float:
        """Probability with which ``node`` was drawn as the first child of its row. ValueError as `draft_law`."""
        sparse = self.draft.law_of(self.draft.parents[node])
        return sparse.counts[sparse.ids.index(self.draft.ids[node])] / (1 << sparse.bits)

    def coin(self, row: int, purpose: Purpose, index: int = 0) -> float:
        """The coin in [0, 1) about the token that ``row`` chooses; something of probability a happens iff coin < a.

        ``index`` tells apart what is decided at one position: for `Purpose.ACCEPT` the node that is tested. ValueError
        in a round without coins.
        """
        if self.coins is None:
            raise ValueError("this round has no coins")
        return self.coins(self.length, self.position(row), purpose, index)

    def draw(self, law: NDArray[np.float64], row: int, purpose: Purpose) -> int:
        """An id drawn from ``law`` [vocabulary] with the coin of ``row`` and ``purpose``; never one without mass.

        The first id whose cumulated mass exceeds the coin. The mass is divided by its sum, so rounding cannot run off
        the end.
        """
        reached = np.cumsum(law)
        reached /= reached[-1]
        return bisect_right(reached, self.coin(row, purpose, row))

    def scores(self, row: int) -> NDArray[np.float64]:
        """Warped logits after ``row``, [vocabulary], -inf outside the support."""
        return scores(self.logits[row], self.sampling, self.text(row))

    def text(self, row: int) -> History | None:
        """The text before the token that ``row`` chooses: the prefix, then the path to ``row``; None if not known."""
        line = []
        above = row
        while above and above not in self._histories:
            line.append(above)
            above = self.draft.parents[above - 1]
        text = self._histories.get(above, self.history)
        if text is None:
            return None
        for step in reversed(line):
            text = self._histories[step] = text.then((self.draft.ids[step - 1],))
        return text

    def log_probs(self, path: Sequence[int], next_id: int) -> tuple[LogProbs, ...]:
        """Of each token of a verdict: the nodes of ``path``, then ``next_id``; each by the row that chose it."""
        rows = (0, *(node + 1 for node in path))
        tokens = (*(self.draft.ids[node] for node in path), next_id)
        return tuple(
            log_probs(self.logits[row], self.sampling, token, self.text(row))
            for row, token in zip(rows, tokens, strict=True)
        )

    def is_exact(self, row: int) -> bool:
        """Whether ``row`` has the bits the target alone would compute."""
        return not self.exact or self.exact[row]

    def child(self, row: int, token: int) -> int | None:
        """The node with id ``token`` below ``row`` (the first one), if the draft has it."""
        return next((node for node in self.draft.children(row) if self.draft.ids[node] == token), None)

    def hidden(self, row: int) -> NDArray[np.float32]:
        """What the LM head read at ``row``, [hidden]; ValueError unless the rule declares ``needs_hidden``."""
        if self.states is None:
            raise ValueError("this rule did not declare needs_hidden")
        return self.states[row]
