"""Laws of bulk decoding: many rows at once say what each says alone, whatever runs beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from outrider.cloud.train.bulk import BulkDecoder, Job
from outrider.cloud.train.pick import Picker, candidates, uniform
from outrider.cloud.train.repetition import PERIODS, LoopWatch
from tests.tiny import END_ID, make_target


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target folder of each architecture."""
    return make_target(tmp_path_factory.mktemp("target"), request.param)


def load(folder: Path) -> Any:
    """A tiny target, float32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def make_jobs(count: int, heat: float = 0.0) -> list[Job]:
    """Jobs with prompts of 1 to 40 tokens and answers of up to 5 to 24."""
    generator = np.random.default_rng(7)
    return [
        Job(
            100 + i,
            generator.integers(3, 200, int(generator.integers(1, 41))).astype(np.int32),
            int(generator.integers(5, 25)),
            heat,
        )
        for i in range(count)
    ]


def answers(model: Any, jobs: Sequence[Job], slots: int, **options: Any) -> dict[int, list[int]]:
    """Answers by key."""
    decoder = BulkDecoder(model, [END_ID], slots=slots, capacity=80, **options)
    return {job.key: answer for job, answer in decoder.run(jobs)}


def alone(model: Any, job: Job) -> list[int]:
    """Greedy continuation by whole passes of transformers, without any cache, up to an end token or a loop."""
    text = job.prompt.tolist()
    watch, written = LoopWatch(1), np.zeros((1, 80), np.int64)
    for count in range(1, job.max_tokens + 1):
        with torch.no_grad():
            logits = model(torch.tensor([text]), use_cache=False).logits[0, -1]
        text.append(int(logits.argmax()))
        written[0, count - 1] = text[-1]
        keep = int(watch.add(np.zeros(1, np.int64), np.asarray(text[-1:]), written, np.asarray([count]))[0])
        if text[-1] == END_ID or keep:
            return written[0, : keep or count].tolist()
    return text[len(job.prompt) :]


def test_bulk_equals_one_by_one(target: Path) -> None:
    """Greedy rows of any prompt length are, token by token, those of the model alone, for any number of slots."""
    jobs = make_jobs(12)
    plain = load(target)
    expected = {job.key: alone(plain, job) for job in jobs}
    for slots in (1, 3, 11):
        assert answers(load(target), jobs, slots) == expected


def test_order_of_refill_changes_nothing(target: Path) -> None:
    """Jobs in another order, with another prefill budget, give the same rows."""
    jobs = make_jobs(14, heat=0.9)
    one = answers(load(target), jobs, 4)
    other = answers(load(target), jobs[::-1], 9, prefill_tokens=1)
    assert one == other


def test_sampled_rows_depend_on_seed_and_key_only(target: Path) -> None:
    """Each sampled row, run by itself, says what it said among others; another seed says something else."""
    jobs = make_jobs(6, heat=1.3)
    model = load(target)
    together = answers(model, jobs, 6, seed=5)
    assert all(answers(model, [job], 1, seed=5)[job.key] == together[job.key] for job in jobs)
    assert answers(model, jobs, 6, seed=6) != together


def test_a_job_that_does_not_fit_is_refused(target: Path) -> None:
    """Prompt and answer must fit the buffer, and a prompt must not be empty."""
    decoder = BulkDecoder(load(target), [END_ID], slots=1, capacity=16)
    with pytest.raises(ValueError, match="does not fit"):
        list(decoder.run([Job(0, np.arange(3, 13, dtype=np.int32), 8)]))
    with pytest.raises(ValueError, match="does not fit"):
        list(decoder.run([Job(0, np.zeros(0, np.int32), 8)]))


def test_jobs_may_follow_from_answers(target: Path) -> None:
    """A source that has nothing now, because it waits for an answer, is asked again."""
    first, second = make_jobs(2)
    came: list[int] = []

    def source() -> Any:
        yield first
        while not came:
            yield None
        yield second

    for job, _ in BulkDecoder(load(target), [END_ID], slots=2, capacity=80).run(source()):
        came.append(job.key)
    assert came == [first.key, second.key]


def watch_all(tokens: Sequence[int]) -> tuple[int, int]:
    """(tokens read, tokens kept) when a watch calls a text a loop; (length, 0) if it never does."""
    watch, written = LoopWatch(1), np.asarray([tokens], np.int64)
    for count in range(1, len(tokens) + 1):
        keep = watch.add(np.zeros(1, np.int64), written[0, count - 1 : count], written, np.asarray([count]))
        if keep[0]:
            return count, int(keep[0])
    return len(tokens), 0


@settings(max_examples=60, deadline=None)
@given(lead=st.integers(0, 30), period=st.integers(1, PERIODS))
def test_a_loop_is_cut_before_its_third_turn(lead: int, period: int) -> None:
    """Distinct tokens, then a period over and over: kept are the lead and two periods."""
    text = [*range(1000, 1000 + lead), *(list(range(period)) * 30)]
    read, kept = watch_all(text)
    assert kept == lead + 2 * period
    assert read == lead + period + max(2 * period, 20)


def test_text_without_loops_is_left_alone() -> None:
    """Distinct tokens, a phrase said twice, and a short row of equal tokens are no loops."""
    assert watch_all(list(range(300)))[1] == 0
    assert watch_all([*range(40), *range(40), *range(100, 200)])[1] == 0
    assert watch_all([1, 2, *([7] * 18), 3, 4, 5])[1] == 0


def test_a_slot_forgets_its_last_text() -> None:
    """What repeated before a slot was cleared does not count."""
    watch = LoopWatch(2)
    written = np.full((2, 64), 5, np.int64)
    for count in range(1, 21):
        slots = np.arange(2)
        assert not watch.add(slots, np.full(2, 5), written, np.full(2, count)).any()
    watch.clear(1)
    cut = watch.add(np.arange(2), np.full(2, 5), written, np.full(2, 21))
    assert cut[0] > 0 and cut[1] == 0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), chunks=st.integers(2, 60), count=st.integers(1, 40))
def test_candidates_are_the_largest(seed: int, chunks: int, count: int) -> None:
    """Through chunk maxima or directly, the same ids as a sort of the whole row."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.rand(3, chunks * 64, generator=generator)
    found = candidates(logits, count).sort(1).values
    assert torch.equal(found, logits.argsort(1, descending=True)[:, :count].sort(1).values)


def test_draws_follow_the_law() -> None:
    """Over many keys, sampled ids come as often as top-k 40, top-p 0.95 says, and greedy rows take the best id."""
    logits = torch.tensor([3.0, 2.5, 2.0, 1.0, -1.0, -9.0])
    head = torch.nn.Linear(1, 6, bias=False)
    head.weight.data[:, 0] = logits
    rows = 20_000
    hidden, keys = torch.ones(rows, 1), np.arange(rows, dtype=np.uint64)
    with torch.no_grad():
        drawn = Picker(head, 3)(hidden, np.ones(rows, np.float32), keys, np.zeros(rows, np.int64))
        best = Picker(head, 3)(hidden, np.zeros(rows, np.float32), keys, np.zeros(rows, np.int64))
    law = logits.softmax(0)
    law[(law.cumsum(0) - law) >= 0.95] = 0
    law /= law.sum()
    counts = np.bincount(drawn, minlength=6) / rows
    np.testing.assert_allclose(counts, law.numpy(), atol=0.012)
    assert not best.any()


def test_noise_is_flat_and_addressed() -> None:
    """The darts are uniform, and differ by seed, key and step."""
    keys, steps = np.arange(4000, dtype=np.uint64), np.zeros(4000, np.int64)
    one = uniform(np.uint64(1), keys, steps)
    assert 0 <= one.min() and one.max() < 1
    np.testing.assert_allclose(np.histogram(one, 10, (0, 1))[0], 400, atol=80)
    for other in (uniform(np.uint64(2), keys, steps), uniform(np.uint64(1), keys, steps + 1)):
        assert abs(float(np.corrcoef(one, other)[0, 1])) < 0.05
