"""Labels without annotators (AutoJudge, Garipov et al., NeurIPS 2025): does the target still reach its own result?

Per prompt: the target answers greedily, and the result of that answer is the reference, right or wrong. Chains are
drafted along the answer as in a session. At the first token that differs, the drafter's is put in its place and the
target writes the rest anew: the same result makes the token *good* (it did not matter), and the walk goes on along the
new text ("semi-greedy"); another result, or none, makes it *bad*, and the target's own token stays.

Beside these, from answers that are right: the result is replaced by a wrong one. That token is bad, tokens before it
are good, and what would follow is not looked at (the paper's hand-made wrong answers, without hands).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np

from outrider.cloud.evaluate.chains import Law
from outrider.cloud.judge.families import Family, Task, corrupted
from outrider.cloud.judge.features import CandidateStates, States
from outrider.cloud.judge.measures import Measures, measures, unknown
from outrider.cloud.judge.passes import Grown, Line, Passes, Rows, Script, grow
from outrider.shared.laws import SparseLaw


class Source(StrEnum):
    """Where a label comes from."""

    MINED = "mined"
    CORRUPTED = "corrupted"


@dataclass(frozen=True, slots=True)
class Label:
    """A drafted (or forged) token, and whether it may stay."""

    place: int
    """Index in the answer."""
    token: int
    instead_of: int
    """The target's own token there."""
    good: bool
    source: Source
    states: CandidateStates
    measures: Measures


@dataclass(frozen=True, slots=True)
class Mined:
    """What one prompt gave."""

    index: int
    task: Task
    answer: str
    """The target's own."""
    reference: str | None
    """Its result; without one there are no labels."""
    labels: tuple[Label, ...]
    written: int
    """Tokens the target wrote for it."""


class Text(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str) -> Sequence[int]:
        """Ids of a text, nothing added."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""


class Propose(Protocol):
    """One text's drafter: `outrider.cloud.evaluate.chains.ChainDrafter.propose`."""

    def __call__(
        self, ids: Sequence[int], rows: Rows, depth: int
    ) -> tuple[tuple[int, ...], tuple[float, ...], Law]:
        """A chain after ``ids``, with confidences and laws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is the same for all prompts."""

    tokens: int = 64
    """Of an answer, at most."""
    depth: int = 8
    """Of a drafted chain. 1 drafts each token along the text, as AutoJudge does."""
    max_labels: int = 24
    """Mined ones of a prompt, at most."""
    forged: int = 1
    """Corrupted answers of a prompt that was answered rightly."""
    forged_good: int = 4
    """Tokens before a forged one that are taken as good."""
    stops: frozenset[int]
    """Ids that end an answer."""
    kept_out: frozenset[int]
    """Ids that are never judged: `stops` and other specials."""


@dataclass(slots=True)
class _Walk:
    """The text as far as it is settled, and what is known along it."""

    ids: list[int]
    """Of the prompt."""
    answer: list[int]
    states: list[States]
    """Entry k chose answer token k."""
    rows: Rows = field(default_factory=list)


class Miner:
    """Makes the scripts of prompts; `outrider.cloud.judge.passes.together` runs them."""

    def __init__(
        self, passes: Passes, text: Text, drafter: Callable[[], Propose], setting: Setting, seed: int
    ) -> None:
        self._passes, self._text, self._drafter = passes, text, drafter
        self._setting, self._seed = setting, seed

    def script(self, index: int, task: Task, family: Family, prompt: Sequence[int]) -> Script[Mined]:
        """The mining of one prompt of these ids."""
        line = Line(index)
        try:
            return (yield from self._mine(line, index, task, family, list(prompt)))
        finally:
            self._passes.forget(index)

    def _mine(self, line: Line, index: int, task: Task, family: Family, prompt: list[int]) -> Script[Mined]:
        grown = yield from self._continue(line, prompt, [], family)
        answer = self._said(grown.tokens)
        reference = family.check(answer)
        labels: list[Label] = []
        written = len(grown.tokens)
        if reference is not None:
            walk = _Walk(prompt, grown.tokens, grown.states)
            self._add_rows(walk, line.key, 0)
            if reference == task.answer:
                rng = np.random.default_rng((self._seed, index))
                labels += yield from self._forge(line, walk, task, answer, rng)
            written += yield from self._walk(line, walk, family, reference, labels)
        return Mined(index, task, answer, reference, tuple(labels), written)

    def _continue(self, line: Line, prompt: list[int], begun: list[int], family: Family) -> Script[Grown]:
        """The target's rest of an answer that begins like this."""

        def ended(tokens: Sequence[int]) -> bool:
            return tokens[-1] in self._setting.stops or family.settled(self._said([*begun, *tokens]))

        return (yield from grow(line, [*prompt, *begun], self._setting.tokens - len(begun), ended))

    def _said(self, tokens: Sequence[int]) -> str:
        return self._text.decode([token for token in tokens if token not in self._setting.stops])

    def _add_rows(self, walk: _Walk, key: int, start: int) -> None:
        """State rows from position ``start`` on; the last token was never read."""
        fresh = self._passes.rows(key, start, len(walk.ids) + len(walk.answer) - 1)
        kept = [values[:start] for values in walk.rows] or [values[:0] for values in fresh]
        walk.rows = [np.concatenate(pair) for pair in zip(kept, fresh, strict=True)]

    # ------------------------------------------------------------------------------------------------ mismatches

    def _walk(
        self, line: Line, walk: _Walk, family: Family, reference: str, labels: list[Label]
    ) -> Script[int]:
        """Label mismatches in order; returns the tokens the target wrote for that."""
        propose, setting = self._drafter(), self._setting
        place, written, wanted = 1, 0, len(labels) + setting.max_labels
        chain: tuple[int, ...] = ()
        sure: tuple[float, ...] = ()
        law: Law = unknown
        at = place  # where the chain begins
        while place < len(walk.answer) and len(labels) < wanted:
            if place == at:
                known = len(walk.ids) + place
                rows = [values[: known - 1] for values in walk.rows]
                chain, sure, law = propose([*walk.ids, *walk.answer[:place]], rows, setting.depth)
            ahead = place - at
            if ahead >= len(chain):  # all taken, or nothing drafted: the target's own token, and a new round
                place = at = place + 1
                continue
            token = chain[ahead]
            if token == walk.answer[place]:
                place += 1
                continue
            good = False
            if token not in setting.kept_out:
                rest = yield from self._continue(line, walk.ids, [*walk.answer[:place], token], family)
                written += len(rest.tokens)
                changed = [*walk.answer[:place], token, *rest.tokens]
                good = family.check(self._said(changed)) == reference
                labels.append(self._label(walk, place, token, rest.states[0], good, sure[ahead], law(ahead)))
            if good:
                walk.answer, walk.states = changed, [*walk.states[: place + 1], *rest.states]
                self._add_rows(walk, line.key, len(walk.ids) + place)
                place += 1
            else:
                place = at = place + 1
        return written

    def _label(
        self,
        walk: _Walk,
        place: int,
        token: int,
        state: States,
        good: bool,
        sure: float,
        law: SparseLaw | None = None,
        source: Source = Source.MINED,
    ) -> Label:
        before = walk.states[place]
        found = measures(self._passes.logits(before), token, sure, law)
        return Label(place, token, walk.answer[place], good, source, CandidateStates(state, before), found)

    # ---------------------------------------------------------------------------------------------------- forgery

    def _forge(
        self, line: Line, walk: _Walk, task: Task, answer: str, rng: np.random.Generator
    ) -> Script[list[Label]]:
        """Labels of the answer with a wrong result in place of the right one."""
        labels: list[Label] = []
        for wrong in task.wrong[: self._setting.forged]:
            text = corrupted(answer, task.answer, wrong)
            found = None if text is None else self._first_wrong(walk.answer, text)
            if found is None:
                continue
            place, token = found
            seen = yield line.feed([*walk.ids, *walk.answer[:place], token])
            labels.append(
                self._label(walk, place, token, seen.states(0), False, 0.0, source=Source.CORRUPTED)
            )
            earlier = rng.permutation(place)[: self._setting.forged_good]
            for before in sorted(int(one) for one in earlier):
                own = walk.answer[before]
                state = walk.states[before + 1]
                labels.append(self._label(walk, before, own, state, True, 0.0, source=Source.CORRUPTED))
        return labels

    def _first_wrong(self, answer: Sequence[int], text: str) -> tuple[int, int] | None:
        """Where the wrong text's tokens leave the answer's, and by which token; None if they never do."""
        for place, (one, other) in enumerate(zip(self._text.encode(text), answer, strict=False)):
            if one != other:
                return (place, one) if one not in self._setting.kept_out else None
        return None
