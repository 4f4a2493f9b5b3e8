"""Laws of the task families: every answer made checks out, a wrong one does not, and wordings never cross splits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cloud.judge.families import FAMILIES, Split, corrupted
from outrider.cloud.judge.families.reading import (
    LetterReader,
    NumberReader,
    Reader,
    SpelledReader,
    WordsReader,
    read,
    settled,
)

NAMES = sorted(FAMILIES)
READERS: tuple[Reader, ...] = (
    NumberReader(),
    WordsReader(("Rome", "Oslo")),
    WordsReader(("yes", "no"), first=True),
    LetterReader(),
    SpelledReader(),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", list(Split))
def test_every_answer_checks_out_and_wrong_ones_do_not(name: str, split: Split) -> None:
    """Behind a mark, alone, and in its sentence the right result is read; each wrong one is read as what it is."""
    family, rng = FAMILIES[name], np.random.default_rng(5)
    for _ in range(40):
        task = family.make(rng, split)
        assert task.split is split and task.family == name and task.template.startswith(f"{name}/")
        assert family.check(f"Well.\nAnswer: {task.answer}.\nThat is it.") == task.answer
        assert family.check(task.answer) == task.answer
        assert task.wrong and task.answer not in task.wrong
        for wrong in task.wrong:
            assert family.check(f"The answer is {wrong}.") == wrong != task.answer


@pytest.mark.parametrize("name", NAMES)
def test_tasks_depend_on_the_seed_alone(name: str) -> None:
    """One seed, one list of tasks; another seed, another list."""
    family = FAMILIES[name]
    first, again, other = (
        [family.make(np.random.default_rng((seed, i))) for i in range(12)] for seed in (3, 3, 4)
    )
    assert first == again
    assert [task.prompt for task in first] != [task.prompt for task in other]


def test_wordings_of_splits_are_disjoint() -> None:
    """Every family has wordings for every split, and no wording or name of one is used for another."""
    for family in FAMILIES.values():
        assert {template.split for template in family.templates} == set(Split)
        texts = [template.text for template in family.templates]
        names = [template.name for template in family.templates]
        assert len(set(texts)) == len(texts) and len(set(names)) == len(names)


def test_the_number_of_a_sentence_that_calculates_is_its_result() -> None:
    """Behind a mark the number after the last = counts; without a mark the last number; other numbers are no result."""
    reader = NumberReader()
    cases = {
        "Mia has 8 + 5 = 13 apples.": "13",
        "Answer: 12 + 13 = 25\nNext question: 99": "25",
        "The answer is:\n\n**41**. Then 7.": "41",
        "First 3, and then 4": "4",
        "about 2.5 or x7 or 1,000": None,
        "none": None,
        "answer: none here\nanswer: 007 ": "7",
    }
    assert {text: read(text, reader) for text in cases} == cases


def test_words_letters_and_spellings_are_read_in_the_forms_models_write() -> None:
    """Case, brackets, quotation marks and hyphens do not change a result."""
    cities = WordsReader(("Rome", "Oslo"))
    assert read("Ana lives in rome, not OSLO", cities) == "oslo"
    assert read("Answer: Rome (not Oslo)", cities) == "rome"
    assert read("Romeo", cities) is None
    assert read("No, yes is wrong", WordsReader(("yes", "no"), first=True)) == "no"
    assert read("A door is B) red", LetterReader()) == "B"
    assert read("Answer: (C)", LetterReader()) == "C"
    assert read("A door", LetterReader()) is None
    assert read('Backwards it is "t-a-c".', SpelledReader()) == "tac"
    assert read("Answer: T A C", SpelledReader()) == "tac"
    assert read("it becomes tac", SpelledReader()) == "tac"


PIECES = [
    "Answer:",
    "the answer is",
    " ",
    "\n",
    ". ",
    "12",
    "3",
    "=",
    "Rome",
    "Oslo",
    "yes",
    "B)",
    "A",
    "t-a-c",
    "so",
]


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.lists(st.sampled_from(PIECES), max_size=6))
def test_nothing_written_after_a_settled_answer_changes_it(begun: list[str], more: list[str]) -> None:
    """Where `settled` says so, reading the text with anything behind it gives the same result."""
    text, behind = "".join(begun), "".join(more)
    for reader in READERS:
        if settled(text, reader):
            assert read(text, reader) is not None
            assert read(text + behind, reader) == read(text, reader)
            assert settled(text + behind, reader)


def test_an_answer_settles_when_its_sentence_ends() -> None:
    """Not at the mark, not at the number, but once nothing can be added to either."""
    reader = NumberReader()
    texts = ["The answer", "The answer is", "The answer is 1", "The answer is 12.", "The answer is 12. "]
    assert [settled(text, reader) for text in texts] == [False, False, False, False, True]
    assert not settled("12 apples.\n", reader)


def test_a_corrupted_answer_ends_with_the_wrong_result_in_the_case_of_the_right_one() -> None:
    """The first whole mention is replaced and what followed it is gone; without a mention there is none."""
    assert corrupted("Ana lives in Rome. Rome it is.", "rome", "oslo") == "Ana lives in Oslo"
    assert corrupted("8 + 15 = 115, no: 15", "15", "16") == "8 + 16"
    assert corrupted("It is B) red", "B", "C") == "It is C"
    assert corrupted("no number", "15", "16") is None
