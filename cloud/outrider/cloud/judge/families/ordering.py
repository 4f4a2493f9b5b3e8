"""The largest of some numbers, and the first of some dates."""

from __future__ import annotations

import numpy as np

from outrider.cloud.judge.families.family import Content, Split, Template, TemplatedFamily, pick
from outrider.cloud.judge.families.reading import NumberReader, WordsReader
from outrider.cloud.judge.families.words import MONTHS, NAMES


def _largest(rng: np.random.Generator) -> Content:
    numbers = [int(one) for one in rng.choice(np.arange(10, 100), 3, replace=False)]
    best = max(numbers)
    wrong = tuple(str(one) for one in numbers if one != best)
    return Content({"numbers": ", ".join(map(str, numbers))}, str(best), wrong)


def _first(rng: np.random.Generator) -> Content:
    names = pick(rng, NAMES, 3)
    months = rng.choice(12, 3, replace=False)
    dates = [
        f"{name} was born on {int(rng.integers(1, 29))} {MONTHS[month]} 2001."
        for name, month in zip(names, months, strict=True)
    ]
    first = int(np.argmin(months))
    wrong = tuple(name.lower() for index, name in enumerate(names) if index != first)
    return Content({"dates": " ".join(dates)}, names[first].lower(), wrong)


LARGEST = TemplatedFamily(
    "largest",
    NumberReader(),
    _largest,
    (
        Template(
            "which", Split.TRAIN, "Which of these numbers is the largest: {numbers}? Answer in one sentence."
        ),
        Template("biggest", Split.TRAIN, "Look at the numbers {numbers}. Tell me the biggest one."),
        Template(
            "shown",
            Split.VALIDATION,
            "Q: What is the maximum of 5, 81, 40?\nA: The maximum is 81.\nQ: What is the maximum of {numbers}?\nA:",
        ),
        Template(
            "greatest", Split.TEST, "From the numbers {numbers}, choose the greatest and name only that one."
        ),
    ),
)
OLDEST = TemplatedFamily(
    "oldest",
    WordsReader(NAMES, first=True),
    _first,
    (
        Template("oldest", Split.TRAIN, "{dates} Who is the oldest of them? Answer in one sentence."),
        Template("first", Split.TRAIN, "Who was born first? {dates} Begin with the name."),
        Template(
            "earliest", Split.VALIDATION, "Birthdays:\n{dates}\nWhose birthday is the earliest in the year?"
        ),
        Template(
            "party", Split.TEST, "{dates} Which of the three had a birthday party before the others in 2002?"
        ),
    ),
)
FAMILIES = (LARGEST, OLDEST)
