"""Whether something is in a list, and how many things are."""

from __future__ import annotations

import numpy as np

from outrider.cloud.judge.families.family import (
    Content,
    Split,
    Template,
    TemplatedFamily,
    near_numbers,
    pick,
)
from outrider.cloud.judge.families.reading import NumberReader, WordsReader
from outrider.cloud.judge.families.words import ANIMALS, FRUITS


def _member(rng: np.random.Generator) -> Content:
    items = pick(rng, ANIMALS, 6)
    listed, inside = items[:5], bool(rng.integers(2))
    asked = listed[int(rng.integers(5))] if inside else items[5]
    answer, wrong = ("yes", "no") if inside else ("no", "yes")
    return Content({"items": ", ".join(listed), "item": asked}, answer, (wrong,))


def _count(rng: np.random.Generator) -> Content:
    count = int(rng.integers(2, 8))
    return Content({"items": ", ".join(pick(rng, FRUITS, count))}, str(count), near_numbers(count, rng))


MEMBERSHIP = TemplatedFamily(
    "membership",
    WordsReader(("yes", "no"), first=True),
    _member,
    (
        Template(
            "list", Split.TRAIN, "The list is: {items}. Is {item} in the list? Say yes or no, and then why."
        ),
        Template(
            "farm", Split.TRAIN, "These animals live here: {items}. Does a {item} live here too? Yes or no?"
        ),
        Template(
            "contains",
            Split.VALIDATION,
            "Does the list [{items}] contain the word {item}? Begin with yes or no.",
        ),
        Template(
            "saw",
            Split.TEST,
            "Today I saw the following animals: {items}. Did I see a {item}? Reply yes or no.",
        ),
    ),
)
COUNTING = TemplatedFamily(
    "counting",
    NumberReader(),
    _count,
    (
        Template(
            "many",
            Split.TRAIN,
            "How many fruits are in this list: {items}? Answer in a sentence with a digit.",
        ),
        Template("basket", Split.TRAIN, "A basket holds {items}. Write the number of fruits as a digit."),
        Template(
            "count",
            Split.VALIDATION,
            "Q: Count the items: kiwi, orange.\nA: There are 2 items.\nQ: Count the items: {items}.\nA:",
        ),
        Template(
            "length",
            Split.TEST,
            "What is the length of the list [{items}]? Give the number of entries as a digit.",
        ),
    ),
)
FAMILIES = (MEMBERSHIP, COUNTING)
