"""Evaluation prompts by path: MoA's six sets, Spec-Bench, HumanEval, or any file of user messages, none counted twice.

Only the first user message of a row is used. A category is the file's own name, except in files that hold several
kinds of rows (Spec-Bench): there it is the row's, and MT-bench's eight count as one.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.cloud.train.corpus import user_turn
from outrider.shared.errors import ConfigError
from outrider.shared.tokenizer import Tokenizer

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
MT_BENCH = "mt_bench"
MT_BENCH_CATEGORIES = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)
MAX_PROMPT = 500
"""Tokens of a prompt, chat format included; longer messages lose their end."""
LONG = 80
"""Characters from which two messages that differ in their first line only are the same one."""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """User messages of one category."""

    category: str
    prompts: tuple[str, ...]
    doubles: int = 0
    """Rows left out because an earlier file, or an earlier row, has them."""

    def spread(self, count: int) -> tuple[str, ...]:
        """``count`` prompts at even distances (all, where there are fewer)."""
        step = max(1, len(self.prompts) // max(count, 1))
        return self.prompts[::step][:count]


def read_sets(paths: Sequence[Path]) -> list[PromptSet]:
    """All categories of files, and of folders' files, in the order given.

    Raises ConfigError ("--prompts") naming file and line of a row that is no prompt, or a path without prompts.
    """
    found: dict[str, list[str]] = {}
    doubles: dict[str, int] = {}
    seen = _Seen()
    for path in (file for given in paths for file in files_of(given)):
        for category, message in _messages(path):
            doubles.setdefault(category, 0)
            if seen.double(message):
                doubles[category] += 1
            else:
                found.setdefault(category, []).append(message)
    if not found:
        raise _wrong(", ".join(map(str, paths)), "no prompts there")
    return [PromptSet(name, tuple(found.get(name, ())), count) for name, count in doubles.items()]


def files_of(given: Path) -> list[Path]:
    """A file itself, or the prompt files directly in a folder by name. Raises ConfigError if there are none."""
    if given.is_file():
        return [given]
    files = sorted(path for path in given.glob("*") if path.name.endswith(SUFFIXES))
    if not files:
        raise _wrong(str(given), f"no such file, and no folder with files *{', *'.join(SUFFIXES)}")
    return files


def chat_ids(tokenizer: Tokenizer, message: str, limit: int = MAX_PROMPT) -> tuple[int, ...]:
    """Ids of a conversation of this one message, up to where the answer begins; the message is cut until they fit."""
    while True:
        ids = tokenizer.chat([{"role": "user", "content": message}])
        if len(ids) <= limit or len(message) < 16:
            return ids[-limit:]
        message = message[: min(len(message) - 8, int(len(message) * limit / len(ids)))]


class _Seen:
    """Which messages were there before, whatever spaces or one-line instruction stand before them."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def double(self, message: str) -> bool:
        """Whether this one was seen; from now on it was."""
        whole = " ".join(message.split())
        # MoA's HumanEval has a line of instruction where HumanEval has an import, or nothing.
        below = " ".join(message.strip().partition("\n")[2].split())
        known = bool({whole, below} & self._known)
        self._known |= {whole, below} if len(below) >= LONG else {whole}
        return known


def _messages(path: Path) -> Iterator[tuple[str, str]]:
    """(category, user message) of a file's rows."""
    rows = list(numbered_rows(path))
    stem = path.name.partition(".")[0]
    kinds = {str(row.get("category", "")) for _, row in rows}
    for line, row in rows:
        category = str(row.get("category", ""))
        try:
            message = user_turn(row)
        except ValueError as error:
            raise _wrong(f"{path}:{line}", str(error)) from error
        if not message.strip():
            raise _wrong(f"{path}:{line}", "the user's message is empty")
        if len(kinds) > 1 and stem != MT_BENCH:
            yield (MT_BENCH if category in MT_BENCH_CATEGORIES else category or stem), message
        else:
            yield stem.lower(), message


def numbered_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of each row of a JSON-lines file, or place and object of a JSON list; gzip by suffix.

    Raises ConfigError ("--prompts") naming file and line.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as stream:
            text = stream.read()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise _wrong(str(path), f"cannot be read: {error}") from error
    if text.lstrip().startswith("["):
        lines = enumerate(_parsed(path, 1, text), start=1)
    else:
        numbered = enumerate(text.split("\n"), start=1)
        lines = ((line, _parsed(path, line, row)) for line, row in numbered if row.strip())  # type: ignore[assignment]
    for line, row in lines:
        if not isinstance(row, dict):
            raise _wrong(f"{path}:{line}", f"expected a JSON object, got {type(row).__name__}")
        yield line, row


def _parsed(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _wrong(f"{path}:{line}", f"not JSON: {error}") from error


def _wrong(where: str, why: str) -> ConfigError:
    return ConfigError(
        "--prompts", f"{where}: {why}", remedy="docs/evaluation.md lists the forms that are read"
    )
