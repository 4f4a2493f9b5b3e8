"""Rows from answers that exist: what is read, what is left out, and that a seed decides everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.cloud.train.given import Exchange, extracts, from_file, functions, rows

LIBRARY = '''
def area(width, height):
    """Area of a rectangle.

    Both in metres.
    """
    if width < 0 or height < 0:
        raise ValueError("negative")
    product = width * height
    return product


def short():
    """Too short to be worth completing."""
    return 1
'''


class Words:
    """A tokenizer whose tokens are words."""

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}

    def apply_chat_template(self, conversation: list[dict[str, str]], **options: Any) -> list[int]:
        return [len(word) for word in conversation[0]["content"].split()]


def test_every_form_of_answer_is_read(tmp_path: Path) -> None:
    """`response`, `output`, `answer` and Self-Instruct's instances; calculator notes go."""
    found = [
        {"instruction": "a", "input": "b", "response": "r"},
        {"instruction": "a", "output": "o"},
        {"question": "q", "answer": "2<<1+1=2>> #### 2"},
        {"instruction": "i", "instances": [{"input": "x", "output": "y"}, {"input": "", "output": "z"}]},
    ]
    path = tmp_path / "set-one.jsonl"
    path.write_text("\n".join(map(json.dumps, found)), encoding="utf-8")
    exchanges = list(from_file(path))
    assert [(e.prompt, e.answer) for e in exchanges] == [
        ("a\n\nb", "r"),
        ("a", "o"),
        ("q", "2 The answer is 2"),
        ("i\n\nx", "y"),
        ("i", "z"),
    ]
    assert {e.source for e in exchanges} == {"given-set"}


def test_a_row_without_an_answer_is_named(tmp_path: Path) -> None:
    """File and row stand in the complaint."""
    path = tmp_path / "bare.jsonl"
    path.write_text('{"prompt": "p", "response": "r"}\n{"prompt": "p"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"bare.jsonl: row 2 has no answer"):
        list(from_file(path))


def test_functions_are_completed_from_signature_and_docstring(tmp_path: Path) -> None:
    """The prompt ends with the docstring, the answer holds the whole function; short ones and tests are no rows."""
    (tmp_path / "one.py").write_text(LIBRARY, encoding="utf-8")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "two.py").write_text(LIBRARY, encoding="utf-8")
    (tmp_path / "broken.py").write_text("def (", encoding="utf-8")
    (exchange,) = functions(1, tmp_path)
    assert '"""Area of a rectangle.' in exchange.prompt and "product" not in exchange.prompt
    assert LIBRARY.strip().split("\n\n\ndef short")[0] in exchange.answer
    assert list(functions(1, tmp_path)) == list(functions(1, tmp_path))


def test_extracts_are_sentences_of_their_text() -> None:
    """All three, in the text's order; texts with too few sentences give nothing."""
    texts = [
        " ".join(f"Sentence number {n} of text {t} says something of its own." for n in range(6))
        for t in range(20)
    ]
    found = list(extracts(texts, 3))
    assert len(found) == 20 and found == list(extracts(texts, 3)) and found != list(extracts(texts, 4))
    for exchange in found:
        said = exchange.answer.split(": ")[-1]
        places = [exchange.prompt.index(part.strip(".")) for part in said.split(". ") if part]
        assert places == sorted(places) and len(places) == 3
    assert list(extracts(["Too short."], 3)) == []


def test_rows_end_with_the_stop_id_unless_they_are_cut() -> None:
    """Short answers are left out, long ones cut without an end token, prompts keep to their room."""
    exchanges = [
        Exchange("p", "a " * 10, "s"),
        Exchange("p", "a " * 11, "s"),
        Exchange("p", "a " * 12, "s"),
        Exchange("word " * 99, "a " * 20, "s", most_tokens=14),
    ]
    found = list(rows(exchanges, Words(), 0, 40))
    assert [(len(row["answer_ids"]), row["answer_ids"][-1]) for row in found] == [(12, 0), (13, 0), (14, 1)]
    assert len(found[2]["prompt_ids"]) <= 40 and all(row["temperature"] > 0 for row in found)
