"""Files of tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.cloud.evaluate.scoring.tasks import GSM8K, HUMANEVAL, read_tasks
from outrider.shared.errors import ConfigError

CODE = {"task_id": "T/0", "prompt": "def f():\n", "entry_point": "f", "test": "def check(c): pass\n"}
NUMBER = {"question": "How many?", "answer": "2 + 2 = <<2+2=4>>4\n#### 1,004"}


def write(path: Path, *rows: Any) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_both_kinds_are_read(tmp_path: Path) -> None:
    """By their fields; numbers of the reference come from behind its mark."""
    code = read_tasks(write(tmp_path / "code.jsonl", CODE))
    number = read_tasks(write(tmp_path / "number.jsonl", NUMBER, NUMBER))
    assert (code.kind, code.tasks[0].name, code.tasks[0].message) == (HUMANEVAL, "T/0", "def f():\n")
    assert (number.kind, len(number.tasks), number.tasks[1].name) == (GSM8K, 2, "GSM8K/2")
    assert "reference=Decimal('1004')" in repr(number.tasks[0])


def test_tasks_are_spread(tmp_path: Path) -> None:
    """Even distances, and all where there are fewer."""
    found = read_tasks(write(tmp_path / "n.jsonl", *[NUMBER] * 10))
    assert [task.name for task in found.spread(3)] == ["GSM8K/1", "GSM8K/4", "GSM8K/7"]
    assert len(found.spread(100)) == 10


def test_of_a_folder_the_test_file_is_taken(tmp_path: Path) -> None:
    """Training rows beside it are none of ours; two other files are too many."""
    write(tmp_path / "train.jsonl", NUMBER)
    with_test = write(tmp_path / "test.jsonl", NUMBER, NUMBER)
    assert len(read_tasks(tmp_path).tasks) == 2
    with_test.rename(tmp_path / "other.jsonl")
    with pytest.raises(ConfigError, match="expected one prompt file"):
        read_tasks(tmp_path)


BAD = {
    "no fields": {"turns": ["Hi"]},
    "no number": {"question": "How many?", "answer": "4"},
    "two numbers": {"question": "How many?", "answer": "#### 4 or 5"},
    "no function": {**CODE, "entry_point": "g"},
    "not a text": {**CODE, "test": 3},
    "another kind": CODE,
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_named(tmp_path: Path, name: str) -> None:
    """File, line and what was expected."""
    path = write(tmp_path / "rows.jsonl", NUMBER, BAD[name])
    with pytest.raises(ConfigError, match=r"rows\.jsonl:2: expected"):
        read_tasks(path)
