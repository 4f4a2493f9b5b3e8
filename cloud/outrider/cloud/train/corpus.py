"""Training text: readers of JSON-lines corpora, prompt hold-out, and weights against repetition."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt and what the target answered, as target ids."""

    prompt_ids: NDArray[np.int32]
    """Chat template applied, up to and including the assistant header; [prompt_length]."""
    answer_ids: NDArray[np.int32]
    """The target's own text, end token included where it came; [answer_length]."""
    temperature: float = 0.0
    """Temperature the answer was sampled at; 0 is greedy."""

    @property
    def ids(self) -> NDArray[np.int32]:
        """Whole text, [prompt_length + answer_length]."""
        return np.concatenate((self.prompt_ids, self.answer_ids))

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.answer_ids)


class ChatTokenizer(Protocol):
    """The one call of a transformers tokenizer that corpora need."""

    def apply_chat_template(self, conversation: list[dict[str, str]], **options: Any) -> Any:
        """Render messages."""


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file, or of a file holding one JSON list; gzip by suffix.

    Raises ValueError naming file and line where a row is not a JSON object.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as stream:
        text = stream.read()
    if text.lstrip().startswith("["):
        yield from json.loads(text)
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number}: expected a JSON object, got {type(row).__name__}")
        yield row


def read_examples(path: Path, max_length: int) -> list[Example]:
    """Ready rows (`prompt_ids`, `answer_ids`), answers cut so that no text exceeds `max_length` tokens.

    Rows whose prompt alone is too long, or whose answer is shorter than two tokens, are left out.
    """
    examples: list[Example] = []
    for row in read_json_lines(path):
        if "prompt_ids" not in row or "answer_ids" not in row:
            raise ValueError(
                f"{path}: a row has no prompt_ids/answer_ids; let the target answer the prompts first"
            )
        prompt = np.asarray(row["prompt_ids"], dtype=np.int32)
        answer = np.asarray(row["answer_ids"], dtype=np.int32)[: max(0, max_length - len(prompt))]
        if len(prompt) and len(answer) >= 2:
            examples.append(Example(prompt, answer, float(row.get("temperature", 0.0))))
    return examples


def user_turn(row: dict[str, Any]) -> str:
    """First user message of a prompt row: `prompt`, `turns`, `question`, or `instruction` with `input`."""
    if isinstance(row.get("prompt"), str):
        return str(row["prompt"])
    if isinstance(row.get("turns"), list) and row["turns"]:
        return str(row["turns"][0])
    if isinstance(row.get("question"), str):
        return str(row["question"])
    if isinstance(row.get("instruction"), str):
        extra = str(row.get("input") or "")
        return f"{row['instruction']}\n\n{extra}" if extra else str(row["instruction"])
    raise ValueError(f"a prompt row needs prompt, turns, question or instruction; it has {sorted(row)}")


def read_prompts(path: Path, tokenizer: ChatTokenizer, max_length: int) -> list[NDArray[np.int32]]:
    """Prompt ids of a file of prompts in any of the forms `user_turn` knows, cut to `max_length` tokens.

    Long ones lose the middle of the user turn's text, never the assistant header.
    """
    prompts: list[NDArray[np.int32]] = []
    for row in read_json_lines(path):
        if "prompt_ids" in row:
            prompts.append(np.asarray(row["prompt_ids"], dtype=np.int32))
            continue
        prompts.append(render_prompt(tokenizer, user_turn(row), max_length))
    return prompts


def render_prompt(tokenizer: ChatTokenizer, text: str, max_length: int) -> NDArray[np.int32]:
    """Chat template around one user turn, ids [<= max_length]; the text is shortened until it fits."""
    while True:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        if len(ids) <= max_length or len(text) < 16:
            return np.asarray(ids[-max_length:], dtype=np.int32)
        text = text[: min(len(text) - 8, int(len(text) * max_length / len(ids)))]


def hold_out(examples: Sequence[Example], count: int) -> tuple[list[int], list[int]]:
    """Split into (training, validation) row numbers by prompt: no prompt is in both.

    Validation takes the greedy rows with the smallest prompt hashes, so it does not depend on row order.
    """
    digests = [hashlib.sha256(example.prompt_ids.tobytes()).digest() for example in examples]
    greedy = sorted((digests[i], i) for i in range(len(examples)) if examples[i].temperature == 0)
    chosen = {digest for digest, _ in greedy[:count]}
    validation = [i for _, i in greedy[:count]]
    return [i for i in range(len(examples)) if digests[i] not in chosen], validation


def distinct_fraction(ids: NDArray[np.int32], order: int = 4) -> float:
    """Distinct n-grams over n-grams: 1 for text without repetition, near 0 for a loop."""
    total = len(ids) - order + 1
    if total <= 0:
        return 1.0
    grams = np.lib.stride_tricks.sliding_window_view(ids, order)
    return len({gram.tobytes() for gram in grams}) / total


def corpus_fingerprint(examples: Sequence[Example]) -> str:
    """Hash over all ids in order; a run that began on one corpus is not resumed on another."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(np.int64(len(example.prompt_ids)).tobytes() + example.ids.tobytes())
    return digest.hexdigest()
