"""Sums and differences of numbers of one or two digits."""

from __future__ import annotations

import numpy as np

from outrider.cloud.judge.families.family import Content, Split, Template, TemplatedFamily, near_numbers
from outrider.cloud.judge.families.reading import NumberReader


def _sum(rng: np.random.Generator) -> Content:
    a, b = int(rng.integers(2, 60)), int(rng.integers(2, 40))
    return Content({"a": a, "b": b}, str(a + b), near_numbers(a + b, rng))


def _difference(rng: np.random.Generator) -> Content:
    b, rest = int(rng.integers(2, 30)), int(rng.integers(1, 40))
    return Content({"a": b + rest, "b": b}, str(rest), near_numbers(rest, rng))


ADDITION = TemplatedFamily(
    "addition",
    NumberReader(),
    _sum,
    (
        Template("plain", Split.TRAIN, "What is {a} + {b}? Answer in one sentence."),
        Template("total", Split.TRAIN, "Add {a} and {b}, and tell me the total in a full sentence."),
        Template(
            "shown",
            Split.VALIDATION,
            "Q: How much is 12 plus 30?\nA: 12 plus 30 makes 42.\nQ: How much is {a} plus {b}?\nA:",
        ),
        Template(
            "calculate", Split.TEST, "Calculate the sum {a} + {b} and say the result in words and digits."
        ),
    ),
)
SUBTRACTION = TemplatedFamily(
    "subtraction",
    NumberReader(),
    _difference,
    (
        Template("plain", Split.TRAIN, "What is {a} - {b}? Answer in one sentence."),
        Template("take", Split.TRAIN, "Take {b} away from {a}. What is left? Write a short sentence."),
        Template(
            "shown",
            Split.VALIDATION,
            "Q: How much is 42 minus 30?\nA: 42 minus 30 leaves 12.\nQ: How much is {a} minus {b}?\nA:",
        ),
        Template("calculate", Split.TEST, "Calculate the difference {a} - {b} and state the result clearly."),
    ),
)
FAMILIES = (ADDITION, SUBTRACTION)
