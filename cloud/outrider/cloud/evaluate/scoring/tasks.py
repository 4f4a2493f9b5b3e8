"""Tasks whose answers can be scored, read by path: HumanEval and GSM8K, in the forms they are published in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.cloud.evaluate.prompts import files_of, numbered_rows
from outrider.cloud.evaluate.scoring import gsm8k
from outrider.cloud.evaluate.scoring.gsm8k import NumberTask
from outrider.cloud.evaluate.scoring.humaneval import CodeScorer, CodeTask, defines
from outrider.cloud.evaluate.scoring.sandbox import Sandbox, Verdict
from outrider.shared.errors import ConfigError

Task = CodeTask | NumberTask
HUMANEVAL, GSM8K = "humaneval", "gsm8k"
_CODE = ("task_id", "prompt", "entry_point", "test")
_NUMBER = ("question", "answer")


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Tasks of one kind."""

    kind: str
    """`HUMANEVAL` or `GSM8K`."""
    tasks: tuple[Task, ...]

    def spread(self, count: int) -> tuple[Task, ...]:
        """``count`` tasks at even distances (all, where there are fewer)."""
        step = max(1, len(self.tasks) // max(count, 1))
        return self.tasks[::step][:count]


def read_tasks(given: Path) -> TaskSet:
    """The tasks of a file, or of a folder's only prompt file or its ``test`` one.

    A row has ``task_id``, ``prompt``, ``entry_point`` and ``test``, or ``question`` and ``answer`` with the number
    behind ``####``; all rows of a file are of one kind. Raises ConfigError ("--prompts") naming file, line and what
    was expected.
    """
    path = _file(given)
    tasks: list[Task] = []
    for line, row in numbered_rows(path):
        task = _task(f"{path}:{line}", line, row)
        if tasks and type(task) is not type(tasks[0]):
            raise _wrong(f"{path}:{line}", "expected rows of one kind, this one is of another than the first")
        tasks.append(task)
    if not tasks:
        raise _wrong(str(path), "no rows there")
    return TaskSet(HUMANEVAL if isinstance(tasks[0], CodeTask) else GSM8K, tuple(tasks))


def _file(given: Path) -> Path:
    files = files_of(given)
    if len(files) > 1:
        files = [path for path in files if path.name.startswith("test.")]
    if len(files) != 1:
        raise _wrong(str(given), "expected one prompt file there, or one named test.*; name the file itself")
    return files[0]


def _task(where: str, line: int, row: dict[str, Any]) -> Task:
    if all(isinstance(row.get(name), str) for name in _CODE):
        if not defines(row["prompt"], row["entry_point"]):
            raise _wrong(where, f"expected a prompt with the head of {row['entry_point']!r}")
        return CodeTask(row["task_id"], row["prompt"], row["entry_point"], row["test"])
    if all(isinstance(row.get(name), str) for name in _NUMBER):
        _, mark, behind = row["answer"].rpartition(gsm8k.MARK)
        found = gsm8k.numbers(behind) if mark else []
        if len(found) != 1:
            raise _wrong(where, f"expected an answer that ends with {gsm8k.MARK} and one number")
        return NumberTask(f"GSM8K/{line}", row["question"], found[0])
    has = ", ".join(sorted(row))
    raise _wrong(where, f"expected {', '.join(_CODE)}, or {', '.join(_NUMBER)}, as texts; it has {has}")


def _wrong(where: str, why: str) -> ConfigError:
    return ConfigError("--prompts", f"{where}: {why}")


class Scorer:
    """Verdicts on answers to tasks of either kind."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._code = CodeScorer(sandbox)

    def score(self, task: Task, answer: str) -> Verdict:
        """Whether an answer is right."""
        if isinstance(task, CodeTask):
            return self._code.score(task, answer)
        return gsm8k.score(task, answer)
