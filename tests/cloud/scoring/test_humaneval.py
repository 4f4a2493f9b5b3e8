"""From chat answers to programs and verdicts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from outrider.cloud.evaluate.scoring.humaneval import CodeScorer, CodeTask, program
from outrider.cloud.evaluate.scoring.sandbox import Limits, Sandbox, Verdict
from outrider.cloud.evaluate.scoring.tasks import HUMANEVAL, read_tasks

PROMPT = '''from typing import List


def double(x):
    """ helper """
    return 2 * x


def total(xs: List[int]) -> int:
    """ Sum of the doubles.
    >>> total([1])
    2
    """
'''
TESTS = "def check(candidate):\n    assert candidate([1, 2]) == double(3)\n    assert total([]) == 0\n"
TASK = CodeTask("T/0", PROMPT, "total", TESTS)
BODY = "    return sum(double(x) for x in xs)\n"
WHOLE = "def total(xs: List[int]) -> int:\n" + BODY


@pytest.fixture(scope="module")
def scorer() -> CodeScorer:
    """With a sandbox of this machine."""
    return CodeScorer(Sandbox(Limits(cpu_s=2)))


ANSWERS = {
    "fenced": f"Here it is:\n```python\n{WHOLE}```\nIt sums the doubles.",
    "fenced, with the prompt again": f"```python\n{PROMPT}{BODY}```",
    "second block": f"Like this:\n```\n>>> total([1])\n2\n```\nso:\n```py\n{WHOLE}\n```",
    "open fence, cut in what follows": f"```python\n{WHOLE}\nprint(total([1, ",
    "no fence": f"Sure, from the list:\n\n{WHOLE}\nThis function sums.",
    "the body alone": BODY,
    "the body in a fence, not indented": "```python\nreturn sum(double(x) for x in xs)\n```",
}


@pytest.mark.parametrize("form", ANSWERS)
def test_every_form_of_a_right_answer_passes(scorer: CodeScorer, form: str) -> None:
    """Whole functions and bodies, fenced or not, with imports and helpers of the prompt."""
    assert scorer.score(TASK, ANSWERS[form]) == Verdict(True)


NOTHING = {
    "empty": "",
    "prose": "I'd add them up, one by one.",
    "cut in the head": "```python\ndef total(xs: Li",
    "cut behind the head": "```python\ndef total(xs):\n",
    "cut in the docstring": PROMPT[:-10],
    "the docstring alone": PROMPT,
    "another function": "```python\ndef sum_all(xs):\n    return 1\n",
}


@pytest.mark.parametrize("form", NOTHING)
def test_answers_without_a_program_fail(scorer: CodeScorer, form: str) -> None:
    """What was cut too early, or never was a program, does not pass."""
    assert not scorer.score(TASK, NOTHING[form]).passed


def test_a_cut_inside_the_function_keeps_what_parses() -> None:
    """Lines that do not parse are dropped from the end only; what is left is what the user could have run."""
    found = program(TASK, "```python\ndef total(xs):\n    n = 0\n    for x in xs:\n        n += 2 *")
    assert found is not None and found.endswith("    n = 0\n") is True


def test_the_same_program_is_run_once() -> None:
    """Prose around it does not matter: the second verdict needs no sandbox."""

    class Once(Sandbox):
        runs = 0

        def __init__(self) -> None:
            pass

        def run(self, code: str, entry: str, tests: str) -> Verdict:
            self.runs += 1
            return Verdict(False, str(self.runs))

    box = Once()
    scorer = CodeScorer(box)
    found = [scorer.score(TASK, f"{before}```python\n{WHOLE}```") for before in ("", "Yes. ", "So: ")]
    assert found == [Verdict(False, "1")] * 3 and box.runs == 1


@pytest.mark.data
@pytest.mark.long
def test_every_reference_passes_and_every_empty_function_fails(shared_data: Path) -> None:
    """All 164 published solutions, as a chat answer, pass; the same heads with `pass` below do not."""
    folder = shared_data / "prompts/humaneval"
    with gzip.open(folder / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    found = read_tasks(folder)
    assert found.kind == HUMANEVAL and len(found.tasks) == 164
    scorer = CodeScorer(Sandbox(Limits(cpu_s=10)))
    for task, row in zip(found.tasks, rows, strict=True):
        assert isinstance(task, CodeTask)
        solved = f"```python\n{row['prompt']}{row['canonical_solution']}\n```\nThat is it."
        assert scorer.score(task, solved) == Verdict(True), task.name
        assert not scorer.score(task, f"```python\n{row['prompt']}    pass\n```").passed, task.name
