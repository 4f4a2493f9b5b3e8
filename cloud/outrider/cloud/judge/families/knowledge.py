"""Facts and words that even a small target knows and a smaller drafter may not: nothing in the prompt says them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from outrider.cloud.judge.families.family import Content, Split, Template, TemplatedFamily, pick
from outrider.cloud.judge.families.reading import WordsReader

CAPITALS: Mapping[str, str] = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "Austria": "Vienna",
    "Poland": "Warsaw",
    "Greece": "Athens",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Denmark": "Copenhagen",
    "Finland": "Helsinki",
    "Ireland": "Dublin",
    "Hungary": "Budapest",
    "Russia": "Moscow",
    "Turkey": "Ankara",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Japan": "Tokyo",
    "China": "Beijing",
    "Thailand": "Bangkok",
    "Indonesia": "Jakarta",
    "Cuba": "Havana",
    "Peru": "Lima",
    "Chile": "Santiago",
    "Canada": "Ottawa",
    "Australia": "Canberra",
    "Iran": "Tehran",
    "Iraq": "Baghdad",
    "Belgium": "Brussels",
}
CONTINENTS: Mapping[str, tuple[str, ...]] = {
    "Europe": ("France", "Germany", "Italy", "Spain", "Poland", "Greece", "Sweden", "Hungary", "Norway"),
    "Asia": ("Japan", "China", "Thailand", "Vietnam", "Nepal", "Mongolia", "Malaysia", "Pakistan"),
    "Africa": ("Egypt", "Kenya", "Nigeria", "Ghana", "Morocco", "Ethiopia", "Uganda", "Senegal"),
    "South America": ("Brazil", "Peru", "Chile", "Argentina", "Bolivia", "Ecuador", "Uruguay"),
}
OPPOSITES: Mapping[str, str] = {
    "hot": "cold",
    "big": "small",
    "fast": "slow",
    "old": "young",
    "happy": "sad",
    "light": "dark",
    "up": "down",
    "left": "right",
    "open": "closed",
    "early": "late",
    "rich": "poor",
    "strong": "weak",
    "wet": "dry",
    "loud": "quiet",
    "hard": "soft",
    "day": "night",
    "full": "empty",
    "high": "low",
}


def _capital(rng: np.random.Generator) -> Content:
    country = pick(rng, tuple(CAPITALS), 1)[0]
    right = CAPITALS[country]
    wrong = [city.lower() for city in pick(rng, tuple(CAPITALS.values()), 5) if city != right]
    return Content({"country": country}, right.lower(), tuple(wrong))


def _continent(rng: np.random.Generator) -> Content:
    right = pick(rng, tuple(CONTINENTS), 1)[0]
    country = pick(rng, CONTINENTS[right], 1)[0]
    return Content({"country": country}, right.lower(), tuple(c.lower() for c in CONTINENTS if c != right))


def _opposite(rng: np.random.Generator) -> Content:
    word = pick(rng, tuple(OPPOSITES), 1)[0]
    right = OPPOSITES[word]
    wrong = [other for other in pick(rng, tuple(OPPOSITES.values()), 5) if other != right]
    return Content({"word": word}, right, tuple(wrong))


CAPITAL = TemplatedFamily(
    "capital",
    WordsReader(tuple(CAPITALS.values()), first=True),
    _capital,
    (
        Template("what", Split.TRAIN, "What is the capital of {country}? Answer in one sentence."),
        Template("name", Split.TRAIN, "Name the capital city of {country} and one thing to see there."),
        Template("seat", Split.VALIDATION, "In which city does the government of {country} sit?"),
        Template(
            "trip", Split.TEST, "I am planning a trip to {country}. Tell me about its capital, starting with its name."
        ),
    ),
)  # fmt: skip
CONTINENT = TemplatedFamily(
    "continent",
    WordsReader(tuple(CONTINENTS), first=True),
    _continent,
    (
        Template("which", Split.TRAIN, "On which continent is {country}? Answer in one sentence."),
        Template("part", Split.TRAIN, "Complete the sentence: {country} is a country in"),
        Template("map", Split.VALIDATION, "Where on a map of the world do I find {country}? Say the continent."),
        Template("pupil", Split.TEST, "A pupil asks what continent {country} belongs to. What do you say?"),
    ),
)  # fmt: skip
OPPOSITE = TemplatedFamily(
    "opposite",
    WordsReader(tuple(OPPOSITES.values()), first=True),
    _opposite,
    (
        Template("what", Split.TRAIN, 'What is the opposite of "{word}"? Answer in one sentence.'),
        Template("word", Split.TRAIN, 'Give me a word that means the reverse of "{word}".'),
        Template("antonym", Split.VALIDATION, 'Which antonym does the adjective "{word}" have?'),
        Template("contrary", Split.TEST, 'Explain to a child what the contrary of "{word}" is.'),
    ),
)
FAMILIES = (CAPITAL, CONTINENT, OPPOSITE)
