"""Reading evaluation prompts: categories, doubles, and complaints that name file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from outrider.cloud.evaluate.prompts import MAX_PROMPT, PromptSet, chat_ids, read_sets
from outrider.shared.errors import ConfigError
from outrider.shared.tokenizer import Tokenizer
from tests.tiny import write_tokenizer

TASK = (
    "def half(x: int) -> int:\n"
    + '    """Half of x, rounded towards zero, whatever its sign; raises nothing."""\n'
)


def write(path: Path, rows: list[Any]) -> Path:
    """A JSON-lines file, gzip by suffix."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_folders_files_and_forms_are_read_by_category(tmp_path: Path) -> None:
    """A file of one kind is a category by its name; a mixed one by its rows, MT-bench's eight as one."""
    write(tmp_path / "moa/alpaca.jsonl", [{"question_id": 1, "category": "alpaca", "turns": ["Hello?"]}])
    write(
        tmp_path / "spec.jsonl",
        [
            {"category": "writing", "turns": ["Write a post.", "Again."]},
            {"category": "coding", "turns": ["Write a loop."]},
            {"category": "rag", "turns": ["Who?"]},
        ],
    )
    write(tmp_path / "HumanEval.jsonl.gz", [{"task_id": "HumanEval/0", "prompt": TASK}])
    listed = tmp_path / "tasks.json"
    listed.write_text(json.dumps([{"instruction": "Add.", "input": "1 2"}]), encoding="utf-8")
    paths = [tmp_path / "moa", tmp_path / "spec.jsonl", tmp_path / "HumanEval.jsonl.gz", listed]
    found = {one.category: one.prompts for one in read_sets(paths)}
    assert found == {
        "alpaca": ("Hello?",),
        "mt_bench": ("Write a post.", "Write a loop."),
        "rag": ("Who?",),
        "humaneval": (TASK,),
        "tasks": ("Add.\n\n1 2",),
    }


def test_no_prompt_counts_twice(tmp_path: Path) -> None:
    """The same message in a second file, with other spaces or another first line, is left out and counted as such."""
    write(tmp_path / "qa.jsonl", [{"turns": ["Who wrote it?"]}, {"turns": ["Who wrote  it? "]}])
    write(tmp_path / "code.jsonl", [{"turns": ["Complete the code I provided.\n" + TASK]}])
    mixed = write(
        tmp_path / "zz/mixed.jsonl",
        [
            {"category": "qa", "turns": ["Who wrote it?"]},
            {"category": "humaneval", "turns": ["from typing import List\n" + TASK]},
            {"category": "humaneval", "turns": [TASK]},
            {"category": "qa", "turns": ["Who else wrote it?"]},
        ],
    )
    found = read_sets([tmp_path, mixed])
    assert {one.category: (len(one.prompts), one.doubles) for one in found} == {
        "code": (1, 0),
        "qa": (2, 2),
        "humaneval": (0, 2),
    }


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (['{"prompt": "a"}', "", "{"], "bad.jsonl:3: not JSON"),
        (['{"prompt": "a"}', "[1]"], "bad.jsonl:2: expected a JSON object, got list"),
        (['{"prompt": "a"}', '{"text": "b"}'], "bad.jsonl:2: a prompt row needs"),
        (['{"turns": ["a"]}', '{"turns": [" "]}'], "bad.jsonl:2: the user's message is empty"),
        ([""], "no prompts there"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, lines: list[str], expected: str) -> None:
    """Where a row cannot be a prompt, the error says which row of which file."""
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError, match="--prompts") as raised:
        read_sets([path])
    assert expected in str(raised.value)


def test_unreadable_paths_are_refused(tmp_path: Path) -> None:
    """No such file, a folder without prompts, a damaged gzip file, bytes that are no text."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.jsonl.gz").write_bytes(b"no gzip")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    for name in ("missing", "empty", "broken.jsonl.gz", "latin.jsonl"):
        with pytest.raises(ConfigError, match=name):
            read_sets([tmp_path / name])


def test_prompts_are_taken_at_even_distances() -> None:
    """Three of ten are the first, fourth and seventh; more than there are is all."""
    one = PromptSet("x", tuple("abcdefghij"))
    assert one.spread(3) == ("a", "d", "g") and one.spread(99) == one.prompts


def test_long_messages_are_cut_and_keep_the_assistants_header(tmp_path: Path) -> None:
    """A prompt never exceeds its limit, and ends where the answer begins."""
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    short, long = chat_ids(tokenizer, "Hello"), chat_ids(tokenizer, "many words " * 400)
    assert len(short) < 60 and len(long) <= MAX_PROMPT
    assert len(long) > MAX_PROMPT - 20 and long[-10:] == short[-10:] and long[:5] == short[:5]
