"""Multiple choice that a passage answers."""

from __future__ import annotations

import numpy as np

from outrider.cloud.judge.families.family import Content, Split, Template, TemplatedFamily, pick
from outrider.cloud.judge.families.reading import LetterReader
from outrider.cloud.judge.families.words import COLOURS, NAMES

_LETTERS = "ABCD"


def _options(rng: np.random.Generator) -> Content:
    name, owner = pick(rng, NAMES, 2)
    colours = pick(rng, COLOURS, 4)
    right = int(rng.integers(4))
    slots = {
        "passage": f"{name} painted the door of {owner}'s house {colours[right]}.",
        "name": name,
        "options": "\n".join(f"{letter}) {colour}" for letter, colour in zip(_LETTERS, colours, strict=True)),
    }
    wrong = tuple(letter for index, letter in enumerate(_LETTERS) if index != right)
    return Content(slots, _LETTERS[right], wrong)


CHOICE = TemplatedFamily(
    "choice",
    LetterReader(),
    _options,
    (
        Template(
            "letter",
            Split.TRAIN,
            "{passage} What colour is the door?\n{options}\nGive the letter of the answer.",
        ),
        Template(
            "exam",
            Split.TRAIN,
            "Exam question. {passage}\nThe colour of the door is:\n{options}\nChoose A, B, C or D.",
        ),
        Template(
            "shown",
            Split.VALIDATION,
            "Leo's car is pink. Which colour is it?\nA) pink\nB) grey\nAnswer: A) pink\n\n"
            "{passage} Which colour is it?\n{options}\nAnswer:",
        ),
        Template(
            "quiz",
            Split.TEST,
            "Quiz: {passage} Pick the option that names the colour {name} used.\n{options}",
        ),
    ),
)
FAMILIES = (CHOICE,)
