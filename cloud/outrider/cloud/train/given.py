"""Rows from answers that exist already: the target only reads them, which costs a fraction of writing.

The paper trains on data-set answers (teacher forcing). Here they add breadth to what the target writes itself: answers
that come with prompts, functions of Python's own library, and sentences taken out of long texts, which is what a
small target mostly does when it is asked for a summary.
"""

from __future__ import annotations

import ast
import os
import random
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.cloud.train.corpus import read_json_lines, render_prompt, user_turn

ANSWERS = ("response", "output", "answer")
"""Fields that hold a row's answer."""
TEMPERATURE = 1.0
"""Written into rows: they are no greedy text, so they are never held out for validation."""
LEAST_TOKENS = 12
_COMPLETE = (
    "Complete the following python code:\n\n{}",
    "Write the body of this function.\n\n{}",
    "Finish this Python function:\n\n```python\n{}\n```",
    "Implement the following function in Python:\n\n{}",
)
_SUMMARISE = (
    "Summarize: {}",
    "Summarize the following text.\n\n{}",
    "{}\n\nTL;DR",
    "Write a short summary of this article:\n\n{}",
    "{}\n\nWhat are the main points of the text above?",
    "Read the text and give its key sentences.\n\n{}",
)
_OPENINGS = ("", "The text says: ", "Here is a summary: ")
_SKIPPED = ("site-packages", "dist-packages", "test", "idlelib", "lib2to3", "encodings")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One prompt and its answer, as text."""

    prompt: str
    answer: str
    source: str
    most_tokens: int = 256
    """Answer tokens kept."""


def from_file(path: Path) -> Iterator[Exchange]:
    """Rows of a data set that hold an answer, also Self-Instruct's `instances`. ValueError for a row with none."""
    source = "given-" + path.name.split(".")[0].split("-")[0]
    for number, row in enumerate(read_json_lines(path), start=1):
        instances: list[dict[str, Any]] = row.get("instances") or [row]
        for instance in instances[:2]:
            answer = next((str(instance[name]) for name in ANSWERS if instance.get(name)), None)
            if answer is None:
                raise ValueError(f"{path}: row {number} has no answer; one of {', '.join(ANSWERS)} is needed")
            asked = {**row, "input": instance.get("input", "")}
            yield Exchange(user_turn(asked), _plain(answer), source)


def _plain(answer: str) -> str:
    """Without GSM8K's calculator notes."""
    return re.sub(r"<<.*?>>", "", answer).replace("####", "The answer is")


def functions(seed: int, library: Path | None = None) -> Iterator[Exchange]:
    """Documented functions of a Python library (its own one by default), to be completed; shuffled by `seed`."""
    root = Path(os.__file__).parent if library is None else library
    found: list[tuple[str, str, str]] = []
    for path in sorted(root.rglob("*.py")):
        if not any(part in str(path.relative_to(root)) for part in _SKIPPED):
            found += _functions_of(path)
    source = random.Random(seed)
    source.shuffle(found)
    for head, about, whole in found:
        prompt = source.choice(_COMPLETE).format(head)
        code = f"```python\n{whole}\n```"
        if source.random() >= 0.5:
            code = f"Here is the completed code:\n\n{code}\n\nThis function {about[:200]}"
        yield Exchange(prompt, code, "given-python")


def _functions_of(path: Path) -> list[tuple[str, str, str]]:
    """(signature with docstring, docstring on one line, whole function) of 7 to 41 lines."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return []
    lines, found = text.splitlines(), []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.end_lineno is None or len(node.body) < 2:
            continue
        about, length = ast.get_docstring(node), node.end_lineno - node.lineno
        whole = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        if about and 6 <= length <= 40 and whole.startswith("def"):
            head = whole.splitlines()[: (node.body[0].end_lineno or 0) - node.lineno + 1]
            found.append(("\n".join(head), " ".join(about.split()), whole))
    return found


def extracts(texts: Sequence[str], seed: int) -> Iterator[Exchange]:
    """Requests to summarise one to three joined texts; the answer is three of their sentences."""
    source = random.Random(seed)
    for number in range(len(texts)):
        count = source.choice((1, 2, 2, 3))
        joined = "\n\n".join(texts[(number * 3 + i) % len(texts)] for i in range(count))
        sentences = [s.strip() for s in re.split(r"(?<=[.!?])\s+", joined) if 30 < len(s) < 300]
        if len(sentences) < 5:
            continue
        kind, start = source.random(), source.randrange(len(sentences) - 2)
        spread = sorted(source.sample(range(len(sentences)), 3))
        picked = sentences[:3] if kind < 0.45 else sentences[start : start + 3]
        if 0.45 <= kind < 0.8:
            picked = [sentences[place] for place in spread]
        answer = source.choice(_OPENINGS) + " ".join(picked)
        yield Exchange(source.choice(_SUMMARISE).format(joined), answer, "given-extract", 160)


def rows(
    exchanges: Iterable[Exchange], tokenizer: Any, stop: int, prompt_tokens: int
) -> Iterator[dict[str, Any]]:
    """Training rows; answers that are cut have no end token, those under `LEAST_TOKENS` are left out."""
    for exchange in exchanges:
        ids = tokenizer(exchange.answer, add_special_tokens=False)["input_ids"]
        ids = [*ids, stop] if len(ids) < exchange.most_tokens else ids[: exchange.most_tokens]
        if len(ids) >= LEAST_TOKENS:
            prompt = render_prompt(tokenizer, exchange.prompt, prompt_tokens)
            yield {
                "prompt_ids": prompt.tolist(),
                "answer_ids": ids,
                "temperature": TEMPERATURE,
                "source": exchange.source,
            }
