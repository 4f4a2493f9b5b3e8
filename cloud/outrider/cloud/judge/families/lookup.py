"""One fact to be found in a short passage."""

from __future__ import annotations

import numpy as np

from outrider.cloud.judge.families.family import Content, Split, Template, TemplatedFamily, pick
from outrider.cloud.judge.families.reading import WordsReader
from outrider.cloud.judge.families.words import CITIES, JOBS, NAMES


def _homes(rng: np.random.Generator) -> Content:
    names, cities = pick(rng, NAMES, 3), pick(rng, CITIES, 3)
    asked = int(rng.integers(3))
    facts = " ".join(f"{name} lives in {city}." for name, city in zip(names, cities, strict=True))
    wrong = [city.lower() for index, city in enumerate(cities) if index != asked]
    return Content({"facts": facts, "name": names[asked]}, cities[asked].lower(), tuple(wrong))


def _jobs(rng: np.random.Generator) -> Content:
    names, jobs = pick(rng, NAMES, 3), pick(rng, JOBS, 3)
    asked = int(rng.integers(3))
    facts = " ".join(f"{name} works as a {job}." for name, job in zip(names, jobs, strict=True))
    wrong = [job for index, job in enumerate(jobs) if index != asked]
    return Content({"facts": facts, "name": names[asked]}, jobs[asked], tuple(wrong))


HOMES = TemplatedFamily(
    "homes",
    WordsReader(CITIES),
    _homes,
    (
        Template("where", Split.TRAIN, "{facts} Where does {name} live? Answer in one sentence."),
        Template("city", Split.TRAIN, "Question: in which city does {name} live? Facts: {facts}"),
        Template(
            "passage", Split.VALIDATION, "Read the passage.\n\n{facts}\n\nWhich city is the home of {name}?"
        ),
        Template(
            "visit",
            Split.TEST,
            "I want to visit {name}. I know this: {facts} To which city do I have to travel, and why?",
        ),
    ),
)
JOBS_OF = TemplatedFamily(
    "jobs",
    WordsReader(JOBS),
    _jobs,
    (
        Template("what", Split.TRAIN, "{facts} What does {name} do for a living? Answer in one sentence."),
        Template("job", Split.TRAIN, "Question: what is the job of {name}? Facts: {facts}"),
        Template(
            "passage", Split.VALIDATION, "Read the passage.\n\n{facts}\n\nWhich profession does {name} have?"
        ),
        Template(
            "introduce",
            Split.TEST,
            "Here is a list of people: {facts} Introduce {name} to me by profession, in one sentence.",
        ),
    ),
)
FAMILIES = (HOMES, JOBS_OF)
