"""One field of a record that is written like JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

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
from outrider.cloud.judge.families.words import CITIES, COLOURS, JOBS, NAMES


def _person(rng: np.random.Generator) -> dict[str, object]:
    fields: dict[str, object] = {
        "name": pick(rng, NAMES, 1)[0],
        "age": int(rng.integers(18, 80)),
        "city": pick(rng, CITIES, 1)[0],
        "job": pick(rng, JOBS, 1)[0],
        "colour": pick(rng, COLOURS, 1)[0],
    }
    return {name: fields[name] for name in pick(rng, tuple(fields), len(fields))}


def _age(rng: np.random.Generator) -> Content:
    person = _person(rng)
    age = int(str(person["age"]))
    return Content({"record": json.dumps(person), "name": person["name"]}, str(age), near_numbers(age, rng))


def _word_of(field: str, pool: tuple[str, ...]) -> Callable[[np.random.Generator], Content]:
    def fill(rng: np.random.Generator) -> Content:
        person = _person(rng)
        right = str(person[field])
        wrong = tuple(other.lower() for other in pick(rng, pool, 4) if other != right)
        return Content({"record": json.dumps(person), "name": person["name"]}, right.lower(), wrong)

    return fill


def _wordings(field: str, name: str, question: str) -> tuple[Template, ...]:
    """The wordings of a field: three that all fields have, and a question of its own, called ``name``."""
    return (
        Template("value", Split.TRAIN, f'Here is a record: {{record}}. What is the value of "{field}"?'),
        Template(name, Split.TRAIN, f"{{record}}\n\n{question} according to this record? Use a sentence."),
        Template(
            "field",
            Split.VALIDATION,
            f'Extract the field "{field}" from {{record}} and state it in a sentence.',
        ),
        Template(
            "form",
            Split.TEST,
            f"A form was filled in as follows: {{record}}. Which {field} was given in the form?",
        ),
    )


AGE = TemplatedFamily("age_field", NumberReader(), _age, _wordings("age", "old", "How old is {name}"))
CITY = TemplatedFamily(
    "city_field", WordsReader(CITIES), _word_of("city", CITIES), _wordings("city", "where", "Where is {name}")
)
JOB = TemplatedFamily(
    "job_field", WordsReader(JOBS), _word_of("job", JOBS), _wordings("job", "work", "What does {name} do")
)
FAMILIES = (AGE, CITY, JOB)
