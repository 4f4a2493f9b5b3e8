"""Numbers in answers, and exact matches."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from outrider.cloud.evaluate.scoring.gsm8k import NumberTask, final_number, numbers, score
from outrider.cloud.evaluate.scoring.tasks import GSM8K, read_tasks

FINAL = {
    "The answer is 18.": "18",
    "She makes $1,234.50.": "1234.50",
    "12,345,678 people": "12345678",
    "He lost: -5": "-5",
    "that is -$5 in all": "-5",
    "that is $-5 in all": "-5",
    "\N{MINUS SIGN}7 degrees": "-7",
    "16 - 3 = 13": "13",
    "5-3": "3",
    "(2)-3": "3",
    "a 10-year-old": "10",
    "options 1,2,3": "3",
    "12,34": "34",
    "half: .5": ".5",
    "50%": "50",
    "18.00": "18",
    "### 4\n#### 12\nCheck: 3 + 9": "12",
    "#### 1\n#### $2,000": "2000",
    "3 apples\n####": "3",
    "007": "7",
}


@pytest.mark.parametrize("text", FINAL)
def test_the_final_number(text: str) -> None:
    """Commas, currency, decimals, signs, and the mark of the references."""
    assert final_number(text) == Decimal(FINAL[text])


def test_without_a_number_there_is_none() -> None:
    """And such an answer is wrong."""
    task = NumberTask("T/1", "How many?", Decimal(0))
    assert final_number("No idea, sorry.") is None
    assert not score(task, "No idea, sorry.").passed


def test_a_score_is_equality_of_numbers() -> None:
    """18, 18.0 and $18.00 are one number; 18.5 and -18 are others."""
    task = NumberTask("T/1", "How many?", Decimal(18))
    assert [score(task, text).passed for text in ("18", "18.0", "$18.00.", "18.5", "so: -18")] == [
        *(True, True, True),
        *(False, False),
    ]


@pytest.mark.data
def test_every_reference_is_its_own_answer(shared_data: Path) -> None:
    """All 1,319 test references are read, and their full worked answers score as right."""
    found = read_tasks(shared_data / "prompts/gsm8k")
    assert found.kind == GSM8K and len(found.tasks) == 1319
    for task in found.tasks:
        assert isinstance(task, NumberTask)
        assert numbers(f"so {task.reference:,}.") == [task.reference]
        assert score(task, f"#### {task.reference}").passed
