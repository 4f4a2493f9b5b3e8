"""What a task family is: prompts with checkable answers in several wordings, each wording used for one purpose only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from outrider.cloud.judge.families import reading
from outrider.cloud.judge.families.reading import Reader


class Split(StrEnum):
    """What a template's prompts are for."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt."""

    family: str
    template: str
    """`family/template`: the unit that splits are made by."""
    split: Split
    prompt: str
    """The user's message."""
    answer: str
    """The right result, as `Family.check` returns it."""
    wrong: tuple[str, ...]
    """Other results of the same kind, for answers that are to be wrong."""


@dataclass(frozen=True, slots=True)
class Template:
    """One wording."""

    name: str
    split: Split
    text: str
    """With {slots} of the family's content."""


@dataclass(frozen=True, slots=True)
class Content:
    """What the templates of a family are filled with."""

    slots: Mapping[str, object]
    answer: str
    wrong: tuple[str, ...]


class Family(Protocol):
    """A kind of task that checks its own answers."""

    @property
    def name(self) -> str:
        """Name of the family."""

    @property
    def templates(self) -> tuple[Template, ...]:
        """Its wordings, at least one per split."""

    def make(self, rng: np.random.Generator, split: Split | None = None) -> Task:
        """A task of one of the split's templates (None: of any)."""

    def check(self, text: str) -> str | None:
        """The result an answer gives, None if it gives none."""

    def settled(self, text: str) -> bool:
        """Whether no continuation of the answer can change its result."""


@dataclass(frozen=True, slots=True)
class TemplatedFamily:
    """The family of some templates over one kind of content."""

    name: str
    reader: Reader
    fill: Callable[[np.random.Generator], Content]
    templates: tuple[Template, ...]

    def make(self, rng: np.random.Generator, split: Split | None = None) -> Task:
        """A task of one of the split's templates (None: of any)."""
        fitting = [one for one in self.templates if split is None or one.split == split]
        template = fitting[int(rng.integers(len(fitting)))]
        content = self.fill(rng)
        return Task(
            family=self.name,
            template=f"{self.name}/{template.name}",
            split=template.split,
            prompt=template.text.format(**content.slots),
            answer=content.answer,
            wrong=content.wrong,
        )

    def check(self, text: str) -> str | None:
        """The result an answer gives, None if it gives none."""
        return reading.read(text, self.reader)

    def settled(self, text: str) -> bool:
        """Whether no continuation of the answer can change its result."""
        return reading.settled(text, self.reader)


def corrupted(text: str, result: str, wrong: str) -> str | None:
    """``text`` with the first mention of ``result`` replaced by ``wrong`` in its case; None if it is not mentioned.

    Only up to the replacement: what would follow it is another answer's.
    """
    found = re.search(rf"(?<![\w.,]){re.escape(result)}(?!\w)", text, re.IGNORECASE)
    if found is None:
        return None
    said = found.group()
    replacement = wrong.capitalize() if said[:1].isupper() and len(said) > 1 else wrong
    return text[: found.start()] + replacement


def near_numbers(value: int, rng: np.random.Generator) -> tuple[str, ...]:
    """Numbers one or a few off, none negative and none equal, in random order."""
    off = [value + step for step in (-10, -3, -2, -1, 1, 2, 3, 10) if value + step >= 0]
    return tuple(str(off[index]) for index in rng.permutation(len(off)))


def pick(rng: np.random.Generator, pool: tuple[str, ...], count: int) -> list[str]:
    """Distinct members of a pool in random order."""
    return [pool[index] for index in rng.permutation(len(pool))[:count]]
