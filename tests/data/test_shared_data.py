"""The shared prompts and corpora are fit for training and evaluation, and the shipped drafter is worth having."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outrider.client.bundle import load_bundle
from outrider.client.drafter import Budget, Drafter
from outrider.client.drafters.ngram import NgramDrafter
from outrider.cloud.config import shipped_drafter
from outrider.cloud.engine import Request
from outrider.cloud.export.bundle import export_bundle
from outrider.cloud.local import speculate
from outrider.cloud.selfcheck import open_engine
from outrider.cloud.target import Target, load_target
from outrider.cloud.train.corpus import read_examples, read_json_lines, user_turn
from outrider.cloud.worker import Worker
from outrider.shared.draft import Draft
from outrider.shared.tokenizer import Tokenizer

pytestmark = [pytest.mark.data, pytest.mark.model]
CORPUS = "distill/smollm2-135m-instruct.jsonl.gz"


@pytest.fixture(scope="module")
def target() -> Target:
    """The embedded target."""
    return load_target(threads=1)


@pytest.fixture(scope="module")
def worker(target: Target) -> Worker:
    """Its engine."""
    return Worker(open_engine(target)[0])


def test_every_prompt_file_is_read(shared_data: Path) -> None:
    """Each row of every prompt file, JSON lines or one list, plain or gzip, gives a user's message."""
    files = [
        p
        for p in sorted((shared_data / "prompts").glob("*/*"))
        if p.name.endswith((".jsonl", ".json.gz", ".jsonl.gz"))
    ]
    assert len(files) >= 15
    for path in files:
        turns = [user_turn(row) for row in read_json_lines(path)]
        assert turns and all(turn.strip() for turn in turns), path.name


def test_the_corpus_is_the_embedded_targets_own(shared_data: Path, target: Target, worker: Worker) -> None:
    """Greedy answers of the corpus are what the target says, but for rounding (they were written in bfloat16)."""
    rows = [row for row in read_json_lines(shared_data / CORPUS) if row["temperature"] == 0]
    examples = read_examples(shared_data / CORPUS, 512)
    assert len(examples) > 5_000
    assert max(int(example.answer_ids.max()) for example in examples) < target.vocabulary
    same = total = 0
    for key, row in enumerate(rows[:400:100]):
        prompt, answer = row["prompt_ids"], row["answer_ids"][:48]
        ids = (*prompt, *answer)
        (rows_out,) = worker.engine.forward([Request(-key - 1, 0, tuple(prompt), Draft.chain(tuple(answer)))])
        assert rows_out is not None
        said = rows_out.logits.argmax(-1).numpy()[: len(answer)]
        same += int(np.sum(said == np.array(ids[len(prompt) :])))
        total += len(answer)
    assert same >= 0.95 * total


def test_the_shipped_drafter_beats_copying_on_held_out_prompts(
    shared_data: Path, target: Target, worker: Worker, tmp_path: Path
) -> None:
    """Without any state rows, the shipped drafter brings more tokens a round than prompt lookup, on GSM8K questions."""
    weights = shipped_drafter()
    assert weights is not None
    bundle = tmp_path / "drafter.onnx"
    export_bundle(weights, target.folder, bundle)
    drafters: dict[str, Drafter] = {"moa": load_bundle(bundle).drafter(), "ngram": NgramDrafter()}
    tokenizer = Tokenizer.from_folder(target.folder)
    questions = [user_turn(row) for row in read_json_lines(shared_data / "prompts/moa-eval/gsm8k.jsonl")][:3]
    tokens, rounds = dict.fromkeys(drafters, 0), dict.fromkeys(drafters, 0)
    for question in questions:
        prompt = tokenizer.chat([{"role": "user", "content": question}])
        texts = []
        for name, drafter in drafters.items():
            run = speculate(worker, drafter, Budget(6, 6), prompt, max_new=32, stop_ids=target.stop_ids)
            tokens[name] += len(run.ids)
            rounds[name] += len(run.accepted)
            texts.append(tuple(run.ids))
        assert texts[0] == texts[1]
    assert tokens["moa"] / rounds["moa"] > tokens["ngram"] / rounds["ngram"]
