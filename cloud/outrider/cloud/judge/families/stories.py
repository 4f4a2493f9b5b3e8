"""One-step word problems."""

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
from outrider.cloud.judge.families.reading import NumberReader
from outrider.cloud.judge.families.words import NAMES, THINGS


def _gain(rng: np.random.Generator) -> Content:
    return _story(rng, 1)


def _loss(rng: np.random.Generator) -> Content:
    return _story(rng, -1)


def _story(rng: np.random.Generator, sign: int) -> Content:
    (name, friend), (thing,) = pick(rng, NAMES, 2), pick(rng, THINGS, 1)
    few = int(rng.integers(2, 10))
    have = few + int(rng.integers(1, 12))
    left = have + sign * few
    slots = {"name": name, "friend": friend, "thing": thing, "a": have, "b": few}
    return Content(slots, str(left), near_numbers(left, rng))


GAIN = TemplatedFamily(
    "gain",
    NumberReader(),
    _gain,
    (
        Template(
            "gets",
            Split.TRAIN,
            "{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have now?",
        ),
        Template(
            "gives",
            Split.TRAIN,
            "{friend} gives {b} {thing} to {name}, who had {a} {thing} before. "
            "How many {thing} does {name} have in the end? Explain in one sentence.",
        ),
        Template(
            "finds",
            Split.VALIDATION,
            "There were {a} {thing} on the table. Then {name} put {b} {thing} beside them. "
            "How many {thing} are on the table?",
        ),
        Template(
            "buys",
            Split.TEST,
            "Yesterday {name} bought {a} {thing}. Today {name} bought another {b}. "
            "What is the number of {thing} {name} bought altogether?",
        ),
    ),
)
LOSS = TemplatedFamily(
    "loss",
    NumberReader(),
    _loss,
    (
        Template(
            "loses", Split.TRAIN, "{name} has {a} {thing} and loses {b} of them. How many {thing} are left?"
        ),
        Template(
            "gives",
            Split.TRAIN,
            "{name} had {a} {thing} and gave {b} {thing} to {friend}. "
            "How many {thing} does {name} still have? Explain in one sentence.",
        ),
        Template(
            "removes",
            Split.VALIDATION,
            "There were {a} {thing} in a box. {name} took {b} out. How many {thing} remain in the box?",
        ),
        Template(
            "sells",
            Split.TEST,
            "A shop had {a} {thing} in the morning and sold {b} to {name}. "
            "What is the number of {thing} the shop has in the evening?",
        ),
    ),
)
FAMILIES = (GAIN, LOSS)
