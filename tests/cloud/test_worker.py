"""Laws of the worker: one pass for all, and nobody's failure is another's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from outrider.cloud.engine import Engine, Request, Rows
from outrider.cloud.events import Prefill, Prefilled, Verified, Verify, WorkFailed
from outrider.cloud.kv import STEP
from outrider.cloud.selfcheck import open_engine, probe_ids
from outrider.cloud.target import load_target
from outrider.cloud.worker import MAX_LINE, Worker
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.frames import Rule, TokenKind
from outrider.shared.laws import SparseLaw
from outrider.shared.sampling import Sampling
from tests.tiny import VOCABULARY, make_target

GREEDY, COUPLED = Rule("greedy"), Rule("coupled")
NOTHING = Draft.chain(())
A, R, B = TokenKind.ACCEPTED, TokenKind.RECOVERED, TokenKind.BONUS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target."""
    return make_target(tmp_path_factory.mktemp("target") / "llama")


@pytest.fixture
def worker(folder: Path) -> Worker:
    """A worker over it."""
    return Worker(open_engine(load_target(folder))[0])


def step(worker: Worker, key: int, start: int, pending: Sequence[int], draft: Draft = NOTHING) -> Verified:
    """One verified work, alone."""
    (outcome,) = worker.run((Verify(key, start, tuple(pending), draft, Sampling(), GREEDY),))
    assert isinstance(outcome, Verified)
    return outcome


def text_of(worker: Worker, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The target alone."""
    start, pending = 0, prompt
    text: list[int] = []
    for _ in range(count):
        outcome = step(worker, 77, start, pending)
        start, pending = start + len(pending), (outcome.next_id,)
        text.append(outcome.next_id)
    worker.evict(77)
    return tuple(text)


def test_mixed_work_is_one_pass_with_everybodys_own_result(worker: Worker) -> None:
    """Prefill, a step, a right draft and a wrong one, packed: each gets what it gets alone, in one forward."""
    prompts = {key: probe_ids(VOCABULARY, 9 + key, key) for key in range(4)}
    truth = {key: text_of(worker, prompt, 4) for key, prompt in prompts.items()}
    before = worker.engine.passes
    wrong = Draft.chain((truth[3][0], (truth[3][1] + 1) % VOCABULARY, 5))
    outcomes = worker.run(
        (
            Prefill(0, 0, prompts[0]),
            Verify(1, 0, prompts[1], NOTHING, Sampling(), GREEDY),
            Verify(2, 0, prompts[2], Draft.chain(truth[2][:3]), Sampling(), GREEDY),
            Verify(3, 0, prompts[3], wrong, Sampling(0.0), COUPLED),
        )
    )
    assert worker.engine.passes == before + 1
    assert outcomes == (
        Prefilled(0),
        Verified(1, (), truth[1][0], kinds=(B,)),
        Verified(2, (0, 1, 2), truth[2][3], kinds=(A, A, A, B)),
        Verified(3, (0,), truth[3][1], kinds=(A, R)),
    )
    assert [worker.engine.length(key) for key in range(4)] == [9, 10, 14, 13]
    assert step(worker, 3, 13, (truth[3][1],)).next_id == truth[3][2]


def test_a_long_context_goes_in_pieces_with_the_same_result(worker: Worker) -> None:
    """A verification with hundreds of pending ids takes several passes and ends as one behind prefills would."""
    prompt = probe_ids(VOCABULARY, 2 * MAX_LINE + 90)
    whole = step(worker, 1, 0, prompt)
    for start in range(0, len(prompt) - 1, 100):
        piece = prompt[start : min(start + 100, len(prompt) - 1)]
        assert worker.run((Prefill(2, start, piece),)) == (Prefilled(2),)
    assert step(worker, 2, len(prompt) - 1, prompt[-1:]).next_id == whole.next_id
    assert worker.engine.length(1) == worker.engine.length(2) == len(prompt)


@pytest.mark.parametrize(
    "bad",
    [
        Verify(9, 3, (1,), NOTHING, Sampling(), GREEDY),
        Verify(9, 0, (), NOTHING, Sampling(), GREEDY),
        Verify(9, 0, (VOCABULARY,), NOTHING, Sampling(), GREEDY),
        Verify(9, 0, (1,), Draft((1,), (1,)), Sampling(), GREEDY),
        Verify(9, 0, (1,), Draft((VOCABULARY,), (0,)), Sampling(), GREEDY),
        Verify(9, 0, (1,), NOTHING, Sampling(), Rule("judge")),
        Verify(9, 0, (1,), NOTHING, Sampling(0.5), GREEDY),
        Prefill(9, 0, (-1,)),
        Prefill(9, 0, (1,) * 2049),
    ],
)
def test_bad_work_fails_alone(worker: Worker, bad: Verify | Prefill) -> None:
    """Work that does not fit the KV, the vocabulary, the context or any rule is one WorkFailed beside good work."""
    prompt = probe_ids(VOCABULARY, 12)
    expected = text_of(worker, prompt, 1)
    failed, good = worker.run((bad, Verify(1, 0, prompt, NOTHING, Sampling(), GREEDY)))
    assert isinstance(failed, WorkFailed) and failed.key == 9 and failed.why and not failed.no_room
    assert good == Verified(1, (), expected[0], kinds=(B,))
    assert worker.engine.length(9) == 0


def test_no_room_is_said_so(folder: Path) -> None:
    """Work the KV budget does not allow fails with no_room; the others, and the bytes in use, are unaffected."""
    target = load_target(folder)
    worker = Worker(Engine(target, kv_bytes=STEP * target.kv_shape.position_bytes))
    good, failed = worker.run((Prefill(1, 0, (1, 2, 3)), Prefill(2, 0, (1, 2, 3))))
    assert good == Prefilled(1)
    assert isinstance(failed, WorkFailed) and failed.no_room
    assert worker.kv_bytes() == STEP * target.kv_shape.position_bytes
    worker.evict(1)
    assert worker.run((Prefill(2, 0, (1, 2, 3)),)) == (Prefilled(2),)


class Poisoned(Engine):
    """An engine in which one session's logits are not numbers, or break the pass it is in."""

    poison = -1
    breaks = False

    def forward(self, requests: Sequence[Request], *, hidden: bool = False) -> list[Rows | None]:
        """The pass, spoiled."""
        if self.breaks and any(request.key == self.poison for request in requests):
            raise RuntimeError("out of luck")
        results = super().forward(requests, hidden=hidden)
        with torch.inference_mode():
            for request, rows in zip(requests, results, strict=True):
                if request.key == self.poison and rows is not None:
                    rows.logits[:, 3] = torch.nan
        return results


@pytest.mark.parametrize("breaks", [False, True])
def test_a_session_that_breaks_the_pass_breaks_only_itself(folder: Path, breaks: bool) -> None:
    """NaN logits, or an exception in a packed pass, fail the culprit; the others' verdicts are right."""
    engine = Poisoned(load_target(folder))
    worker = Worker(engine)
    prompts = {key: probe_ids(VOCABULARY, 12, key) for key in range(3)}
    expected = {key: text_of(worker, prompt, 2) for key, prompt in prompts.items()}
    engine.poison, engine.breaks = 1, breaks
    works = [Verify(key, 0, prompt, NOTHING, Sampling(), GREEDY) for key, prompt in prompts.items()]
    first, failed, third = worker.run(works)
    assert first == Verified(0, (), expected[0][0], kinds=(B,))
    assert third == Verified(2, (), expected[2][0], kinds=(B,))
    assert isinstance(failed, WorkFailed) and engine.length(1) == 0
    assert step(worker, 0, 12, expected[0][:1]).next_id == expected[0][1]


def test_coupled_verdicts_do_not_depend_on_the_company(worker: Worker) -> None:
    """A sampled session's text is the same alone and beside others, draft or none."""
    sampling = Sampling(1.0, 20, 0.95, seed=2**60)
    prompt = probe_ids(VOCABULARY, 15)
    texts = []
    for company in ((), tuple(Prefill(key, 0, probe_ids(VOCABULARY, 5 * key, key)) for key in (2, 3))):
        start, pending = 0, prompt
        text: list[int] = []
        for _ in range(8):
            works: tuple[Verify | Prefill, ...] = (
                Verify(1, start, pending, NOTHING, sampling, COUPLED),
                *company,
            )
            (outcome, *_) = worker.run(works)
            assert isinstance(outcome, Verified)
            start, pending = start + len(pending), (outcome.next_id,)
            text.append(outcome.next_id)
            for work in company:
                worker.evict(work.key)
        worker.evict(1)
        texts.append(text)
    assert texts[0] == texts[1]


def test_rules_that_compare_laws_get_laws_and_coins(worker: Worker) -> None:
    """The same key gives the same verdict and audit; without a key, or with chosen tokens, the work fails alone."""
    prompt, law = probe_ids(VOCABULARY, 9, 1), SparseLaw(2, (1, 2, 3, 4), (1, 1, 1, 1))
    drawn = Draft.chain((2, 4), DraftKind.SAMPLED, (law, law))

    def judged(draft: Draft, key: bytes) -> object:
        (outcome,) = worker.run((Verify(5, 0, prompt, draft, Sampling(1.0), Rule("residual"), coin_key=key),))
        worker.evict(5)
        return outcome

    verdicts = [judged(drawn, bytes((key,))) for key in (0, 0, 1, 2, 3, 4)]
    assert verdicts[0] == verdicts[1] and len(set(verdicts)) > 1
    for verdict in verdicts:
        assert isinstance(verdict, Verified) and verdict.audit is not None
        assert verdict.audit.positions == min(len(verdict.accepted) + 1, 2) and verdict.audit.gap == 0
    lost = judged(drawn, b"")
    assert isinstance(lost, WorkFailed) and lost.refused is None and "coins" in lost.why
    refused = judged(Draft.chain((2, 4)), b"k")
    assert isinstance(refused, WorkFailed) and refused.refused is not None
    assert refused.refused.field == "draft.kind"
