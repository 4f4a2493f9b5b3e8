"""Laws of corpus making: plans are functions of their seed, files can be resumed, loops are counted."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from outrider.cloud.cli import app
from outrider.cloud.train import words
from outrider.cloud.train.answers import Writer, ready_corpus
from outrider.cloud.train.corpus import read_examples, read_json_lines
from outrider.cloud.train.prompts import DEFAULT_SHARES, Lengths, Plan, Script, fill
from outrider.cloud.train.repetition import compressed_bytes, corpus_statistics
from outrider.shared.errors import ConfigError
from tests.tiny import END_ID, make_target

LENGTHS = Lengths(answer=10, document_answer=8, turn=6, document=30, prompt=400)
PROMPTS = [np.arange(3, 3 + length, dtype=np.int32) for length in (5, 9, 14)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target folder."""
    return make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def writer(target: Path) -> Writer:
    """A writer on the tiny target, float32."""
    return Writer(target, LENGTHS, seed=4, slots=6, dtype=torch.float32)


def play(
    script: Script, answer: list[int]
) -> tuple[list[list[int]], list[tuple[list[int], list[int], float, str]]]:
    """Everything a script asks when each ask gets one answer, and its rows."""
    asked: list[list[int]] = []
    try:
        asks = next(script)
        while True:
            asked += [[*ask.prompt.tolist(), ask.max_tokens, int(10 * ask.temperature)] for ask in asks]
            asks = script.send([answer for _ in asks])
    except StopIteration as end:
        return asked, [(row.prompt.tolist(), row.answer, row.temperature, row.source) for row in end.value]


def test_scripts_are_functions_of_seed_and_number(writer: Writer) -> None:
    """The same plan asks the same, in any order of scripts; another seed asks something else."""
    plans = [Plan(writer.frame, PROMPTS, seed=seed, lengths=LENGTHS) for seed in (1, 1, 2)]
    said = writer.frame.encode("a word or two.")
    first = [play(plans[0].script(i), said) for i in range(60)]
    again = [play(plans[1].script(i), said) for i in reversed(range(60))][::-1]
    other = [play(plans[2].script(i), said) for i in range(60)]
    assert first == again
    assert sum(one == two for one, two in zip(first, other, strict=True)) < 6
    assert plans[0].fingerprint() == plans[1].fingerprint() != plans[2].fingerprint()


def test_every_stretch_of_a_plan_is_a_mix(writer: Writer) -> None:
    """Each cycle holds the shares exactly, each half of it about half of them, and files are used once each."""
    plan = Plan(writer.frame, PROMPTS * 4, seed=1, lengths=LENGTHS)
    size = len(plan.cycle)
    assert Counter(plan.kind(i) for i in range(size)) == DEFAULT_SHARES
    half = Counter(plan.kind(i) for i in range(size // 2))
    assert all(abs(half[kind] - share / 2) <= 1 for kind, share in DEFAULT_SHARES.items())
    kinds = Counter(plan.kind(i) for i in range(20 * size))
    assert kinds["file"] == 12 and sum(kinds.values()) == 20 * size


def test_scripts_keep_to_their_lengths(writer: Writer) -> None:
    """No ask and no row is longer than allowed, for long answers, empty ones and ended ones."""
    for lengths in (LENGTHS, Lengths(answer=10, document_answer=8, turn=60, document=90, prompt=100)):
        plan = Plan(writer.frame, PROMPTS, seed=2, lengths=lengths)
        for said in ([], [END_ID], [70] * 90):
            for index in range(60):
                asked, rows = play(plan.script(index), said)
                assert all(len(ask) - 2 + ask[-2] <= lengths.longest for ask in asked)
                assert all(1 <= ask[-2] for ask in asked)
                assert all(len(prompt) <= lengths.prompt for prompt, *_ in rows)


def test_plans_refuse_what_they_cannot_do(writer: Writer) -> None:
    """Unknown kinds, and plans without a single prompt."""
    with pytest.raises(ValueError, match="unknown kind"):
        Plan(writer.frame, PROMPTS, {"gossip": 1})
    with pytest.raises(ValueError, match="no prompts"):
        Plan(writer.frame, [], {"file": 1})


def test_the_chat_frame_is_the_template(writer: Writer) -> None:
    """Pieces put together are what the template renders, for one turn and for two."""
    frame, tokenizer = writer.frame, writer.tokenizer
    talk = [{"role": "user", "content": "Who?"}]
    options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    one = frame.prompt(frame.encode("Who?"))
    assert one.tolist() == list(tokenizer.apply_chat_template(talk, **options))
    talk += [{"role": "assistant", "content": "He."}, {"role": "user", "content": "When?"}]
    before = [*one.tolist(), *frame.encode("He."), *frame.between]
    two = frame.prompt(frame.encode("When?"), before)
    assert two.tolist() == list(tokenizer.apply_chat_template(talk, **options))


def test_every_frame_can_be_filled() -> None:
    """Every name in braces is a list of words, and no list is empty or says a word twice."""
    for frames in (words.QUESTIONS, words.INSTRUCTIONS, words.TALKS, words.ARTICLES, words.ARTICLE_REQUESTS):
        for frame in frames:
            names = {part.partition("}")[0].removesuffix("_title") for part in frame.split("{")[1:]}
            assert names <= {*words.LISTS, "opening"}, frame
    assert all(len(set(given)) == len(given) > 0 for given in words.LISTS.values())
    assert len(set(words.OPENINGS)) == len(words.OPENINGS) > 200


@pytest.mark.data
def test_frames_say_nothing_of_an_evaluation_set(shared_data: Path) -> None:
    """No filled frame holds a message of a set that drafters are evaluated on."""
    sets = sorted(shared_data.glob("prompts/moa-eval/*.jsonl")) + [
        shared_data / "prompts/spec-bench/question.jsonl"
    ]
    turns = {
        " ".join(turn.lower().split())
        for path in sets
        for row in read_json_lines(path)
        for turn in row["turns"]
    }
    rng = random.Random(0)
    frames = (*words.QUESTIONS, *words.INSTRUCTIONS, *words.TALKS, *words.ARTICLES, *words.ARTICLE_REQUESTS)
    filled = {" ".join(fill(frame, rng).lower().split()) for frame in frames for _ in range(40)}
    assert len(turns) > 500
    assert not [one for one in filled for turn in turns if len(turn) >= 12 and turn in one]
    assert not filled & turns


def test_a_resumed_file_equals_an_uninterrupted_one(writer: Writer, tmp_path: Path) -> None:
    """Stopped in between and torn at any byte, then resumed: the same bytes as one run."""
    shares = {"self": 2, "talk": 1, "document": 1, "code": 1, "file": 1}
    whole = tmp_path / "whole.jsonl"
    writer.harvest(whole, shares, PROMPTS).run(scripts=12)
    data = whole.read_bytes()
    rows = [json.loads(line) for line in data.splitlines()]
    assert {row["source"] for row in rows} >= {"self", "talk", "document", "code", "file"}
    assert [row["place"] for row in rows] == sorted(row["place"] for row in rows)
    for cut in (0, len(data) // 3, len(data) // 2, len(data) - 1):
        part = tmp_path / "part.jsonl"
        part.write_bytes(data[:cut])
        harvest = writer.harvest(part, shares, PROMPTS)
        progress = harvest.run(scripts=12)
        assert part.read_bytes() == data
        assert (progress.rows, progress.tokens) == (len(rows), sum(len(row["answer_ids"]) for row in rows))


def test_scripts_begun_by_another_plan_are_refused(writer: Writer, tmp_path: Path) -> None:
    """A file is only gone on with under the plan it was begun with, and only if its rows say so."""
    out = tmp_path / "rows.jsonl"
    writer.harvest(out, {"self": 1}).run(scripts=2)
    with pytest.raises(ValueError, match="other prompts, shares"):
        writer.harvest(out, {"question": 1})
    out.write_text('{"prompt_ids": [1], "answer_ids": [2]}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.jsonl:1"):
        writer.harvest(out, {"self": 1})


def test_limits_end_a_run(writer: Writer, tmp_path: Path) -> None:
    """Answer tokens and time end a run; files alone end with their last prompt, each answered once."""
    progress = writer.harvest(tmp_path / "t.jsonl", {"self": 1}).run(tokens=40)
    assert 40 <= progress.tokens <= 40 + 60 * LENGTHS.answer
    assert writer.harvest(tmp_path / "s.jsonl", {"self": 1}).run(seconds=0.0).rows <= 1
    out = tmp_path / "f.jsonl"
    assert writer.harvest(out, {"file": 1}, PROMPTS).run().rows == 3
    answered = {tuple(row["prompt_ids"]) for row in read_json_lines(out)}
    assert answered == {tuple(prompt.tolist()) for prompt in PROMPTS}


def test_training_files_are_answered_once(target: Path, tmp_path: Path) -> None:
    """Files with answers are taken as they are; bare ones are answered in the work folder, and not again."""
    bare = tmp_path / "bare.jsonl"
    bare.write_text("\n".join(json.dumps({"prompt": f"say {i}"}) for i in range(4)), encoding="utf-8")
    lines: list[str] = []
    files = ready_corpus([bare], target, tmp_path / "work", 8, 90, 3, 1, lines.append)
    stamps = [path.read_bytes() for path in files]
    assert [len(read_examples(path, 90)) for path in files] <= [4, 3]
    assert len(files) == 2 and lines
    again = ready_corpus([bare], target, tmp_path / "work", 8, 90, 3, 1, lines.append)
    assert [path.read_bytes() for path in again] == stamps
    assert ready_corpus(files, target, tmp_path / "none", 8, 90, 0, 1, lines.append) == files
    with pytest.raises(ValueError, match="no room"):
        ready_corpus([bare], target, tmp_path / "work", 90, 90, 0, 1, lines.append)


def test_statistics_count_loops(tmp_path: Path) -> None:
    """A source of loops is all looping and compresses well; one of random ids is neither; "all" is both."""
    generator = np.random.default_rng(0)
    rows = [
        {"prompt_ids": [1, 2], "answer_ids": [5, 6] * 40, "temperature": 0.0, "source": "loop"},
        *(
            {
                "prompt_ids": [1] * 4,
                "answer_ids": generator.integers(0, 40_000, 80).tolist(),
                "temperature": 1.0,
                "source": "fresh",
            }
            for _ in range(3)
        ),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    fresh, loop, every = corpus_statistics(path)
    assert (fresh.looping, loop.looping, every.looping) == (0.0, 1.0, 0.25)
    assert (every.rows, every.answer_tokens, every.prompt_tokens) == (4, 320, 3.5)
    assert (every.greedy, every.looping_tokens) == (0.25, 0.25)
    assert loop.bytes_per_token < 0.5 < 1.5 < fresh.bytes_per_token
    large = np.arange(70_000, 70_100, dtype=np.int32)
    assert compressed_bytes([large]) > compressed_bytes([large - 70_000])
    (tmp_path / "bare.jsonl").write_text('{"prompt": "x"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="row 1"):
        corpus_statistics(tmp_path / "bare.jsonl")


def command(*arguments: str) -> Any:
    """A run of `outrider-cloud`."""
    return CliRunner().invoke(app, arguments, catch_exceptions=True)


def test_the_command_writes_resumes_and_counts(target: Path, tmp_path: Path) -> None:
    """`corpus` writes a file that training reads, refuses to overwrite it, goes on with it; `corpus-stats` tells."""
    out, prompts = tmp_path / "new" / "rows.jsonl", tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "say a"}\n{"prompt": "say b"}\n', encoding="utf-8")
    own = (
        "--self-written",
        "0",
        "--questions",
        "1",
        "--instructions",
        "0",
        "--talks",
        "0",
        "--documents",
        "0",
    )
    short = ("--answer-tokens", "8", "--prompt-tokens", "100", "--slots", "2", "--dtype", "float32")
    usual = ("corpus", str(out), str(prompts), "--target", str(target), *own, "--code", "0", *short)
    assert command(*usual, "--tokens", "30").exit_code == 0
    rows = list(read_json_lines(out))
    assert {row["source"] for row in rows} == {"file", "question"}
    refused = command(*usual, "--tokens", "30")
    assert isinstance(refused.exception, ConfigError) and "--resume" in refused.exception.remedy
    assert command(*usual, "--tokens", "160", "--resume").exit_code == 0
    assert len(list(read_json_lines(out))) > len(rows)
    told = command("corpus-stats", str(out))
    assert told.exit_code == 0 and "question" in told.stdout and "all" in told.stdout
    lines = command("corpus-stats", "--json", str(out)).stdout.splitlines()
    assert {json.loads(line)["source"] for line in lines} == {"file", "question", "all"}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("--slots", "0"), "--slots"),
        (("--dtype", "int3"), "--dtype"),
        (("--code", "-1"), "--self-written …"),
        (("--answer-tokens", "1"), "--answer-tokens"),
        (("--target", "nowhere"), "--target"),
    ],
)
def test_the_command_refuses_clearly(tmp_path: Path, options: tuple[str, ...], field: str) -> None:
    """What cannot work is refused by the option's name, before anything is written."""
    out = tmp_path / "rows.jsonl"
    refused = command("corpus", str(out), *options)
    assert isinstance(refused.exception, ConfigError)
    assert refused.exception.setting == field and not out.exists()
