"""GSM8K: the number an answer ends with, against the reference.

The data and its ``####`` line: Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from outrider.cloud.evaluate.scoring.sandbox import Verdict

MARK = "####"
_SIGN = "[-\N{MINUS SIGN}]"
_NUMBER = re.compile(
    # A sign counts only where nothing stands before it that could be subtracted from.
    rf"(?:(?<![\w)\].%]){_SIGN})?\$?(?:(?<=\$){_SIGN})?"
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+"
)


@dataclass(frozen=True, slots=True)
class NumberTask:
    """A question with a number as its answer."""

    name: str
    question: str
    reference: Decimal

    @property
    def message(self) -> str:
        """What the model is asked."""
        return self.question


def numbers(text: str) -> list[Decimal]:
    """All numbers of a text in order: 1,234.50, $5, -$3, $-3, .5. Units, percent signs and full stops are left alone.

    A hyphen between numbers or behind a word subtracts or joins and is no sign; of 1/2 both are numbers.
    """
    found = []
    for one in _NUMBER.finditer(text):
        plain = re.sub(r"[$,]", "", one.group()).replace("\N{MINUS SIGN}", "-")
        found.append(Decimal(plain))
    return found


def final_number(text: str) -> Decimal | None:
    """The number an answer comes to: the first behind its last ``####``, else the last of all. None without any."""
    _, mark, behind = text.rpartition(MARK)
    if mark and (found := numbers(behind)):
        return found[0]
    found = numbers(text)
    return found[-1] if found else None


def score(task: NumberTask, answer: str) -> Verdict:
    """Whether the answer's number equals the reference exactly (18, 18.0 and $18.00 are one number)."""
    found = final_number(answer)
    if found is None:
        return Verdict(False, "no number")
    return Verdict(True) if found == task.reference else Verdict(False, f"{found}, not {task.reference}")
