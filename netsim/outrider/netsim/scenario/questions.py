"""Prompts of a scenario: written into it, or in a file beside it."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from outrider.netsim.scenario.errors import BadScenario
from outrider.netsim.scenario.model import QUESTION, Question
from outrider.netsim.scenario.source import Table, shown

KEYS = ("inline", "path", "take")
ROWS = 'a JSON object with "prompt", "turns", "question" or "instruction"'


def read_questions(table: Table, folder: Path) -> tuple[Question, ...]:
    """The prompts of a `[prompts]` table; paths are relative to `folder`. Raises `BadScenario`.

    A `.txt` file is one prompt; `.jsonl` and `.json` (also with `.gz`) hold one row each, of which the first user
    message counts. `take` = N takes N of them at even distances.
    """
    take = table.whole("take", None, low=1)
    if "inline" in table and "path" in table:
        table.fail("path", "expected inline prompts or a path, not both", key=True)
    if "path" in table:
        path = folder / table.text("path")
        if not path.is_file():
            table.fail("path", f"expected a file of prompts, got {shown(str(path), 200)}")
        found = read_file(path)
    elif "inline" in table:
        found = _inline(table)
    else:
        found = (Question("default", QUESTION),)
    if take is None or take == len(found):
        return found
    if take > len(found):
        table.fail("take", f"expected at most the {len(found)} prompts that are there, got {take}")
    return tuple(found[index * len(found) // take] for index in range(take))


def _inline(table: Table) -> tuple[Question, ...]:
    texts = table.raw("inline")
    if not (isinstance(texts, list) and texts):
        table.fail("inline", f"expected an array of at least one text, got {shown(texts)}")
    for index, text in enumerate(texts):
        if not (isinstance(text, str) and text.strip()):
            table.source.fail((*table.path, "inline", index), f"expected text in quotes, got {shown(text)}")
    return tuple(Question(f"inline-{number}", text) for number, text in enumerate(texts, 1))


def read_file(path: Path) -> tuple[Question, ...]:
    """The prompts of a file, in its order. Raises `BadScenario` naming the file's own line."""
    category = path.name.partition(".")[0]
    text = _text(path)
    if ".txt" in path.suffixes:
        if not text.strip():
            raise BadScenario(path, 1, 1, "expected the text of a prompt")
        return (Question(category, text.strip(), category),)
    rows: list[tuple[int, Any]] = []
    if ".json" in path.suffixes:
        content = _row(path, 1, text)
        rows = [(1, row) for row in content] if isinstance(content, list) else [(1, content)]
    else:
        lines = enumerate(text.splitlines(), 1)
        rows = [(number, _row(path, number, line)) for number, line in lines if line.strip()]
    if not rows:
        raise BadScenario(path, 1, 1, f"expected at least one row: {ROWS}")
    return tuple(_question(path, line, index, row, category) for index, (line, row) in enumerate(rows, 1))


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadScenario(path, 1, 1, f"expected a file of prompts in UTF-8: {error}") from None


def _row(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadScenario(
            path, line + error.lineno - 1, error.colno, f"expected {ROWS}: {error.msg}"
        ) from None


def _question(path: Path, line: int, index: int, row: Any, category: str) -> Question:
    message: Any = None
    if isinstance(row, dict):
        turns = row.get("turns")
        first = turns[0] if isinstance(turns, list) and turns else None
        message = row.get("prompt") or first or row.get("question") or row.get("instruction")
        if message is row.get("instruction") and isinstance(row.get("input"), str) and row["input"]:
            message = f"{message}\n\n{row['input']}"
    if not (isinstance(message, str) and message.strip()):
        raise BadScenario(path, line, 1, f"expected {ROWS}, got {shown(row)}")
    name = next((str(row[key]) for key in ("task_id", "question_id", "uid") if key in row), str(index))
    told = row.get("category")
    return Question(f"{category}/{name}", message, told if isinstance(told, str) else category)
