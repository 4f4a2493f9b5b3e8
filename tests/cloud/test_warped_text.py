"""Laws of the local loop under every warp: the target's own text and log-probabilities, whatever was drafted."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.client.drafter import Budget, Drafter
from outrider.client.drafters.adversarial import AdversarialDrafter
from outrider.client.drafters.noisy import NoisyDrafter
from outrider.client.drafters.oracle import OracleDrafter
from outrider.cloud.events import Verify, WorkFailed
from outrider.cloud.generate import generate, say
from outrider.cloud.local import speculate
from outrider.cloud.selfcheck import open_engine, probe_ids
from outrider.cloud.target import load_target
from outrider.cloud.worker import Worker
from outrider.shared.draft import Draft
from outrider.shared.frames import Rule
from outrider.shared.sampling import History, Sampling
from tests.tiny import END_ID, VOCABULARY, make_target

PROMPT = probe_ids(VOCABULARY, 11)
NEW = 16
BASE: dict[str, Any] = {"logit_bias": ((5, 3.0), (9, 2.5))}
"""Two ids that come often, so that there is something to penalise."""
EACH: dict[str, dict[str, Any]] = {
    "bias": {"logit_bias": ((5, 3.0), (9, 2.5), (12, 4.0))},
    "repetition": {"repetition_penalty": 1.5},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.2},
    "least length": {"min_tokens": 12},
    "min_p": {"min_p": 0.2},
}
ALL = {name: value for dials in EACH.values() for name, value in dials.items()}
GREEDY = [Sampling(**{**BASE, **dials}) for dials in EACH.values()] + [Sampling(**ALL)]
WARM = [Sampling(0.9, seed=4, **{**BASE, **dials}) for dials in EACH.values()]
WARM += [Sampling(0.9, 40, 0.95, 7, **ALL)]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Worker:
    """A worker over a tiny target."""
    folder = make_target(tmp_path_factory.mktemp("target") / "llama")
    engine, found = open_engine(load_target(folder, "float32"))
    return Worker(engine, found.near_tie_bound)


def drafters(truth: list[int]) -> list[Drafter]:
    """Right, and wrong now and then."""
    text = [*PROMPT, *truth]
    return [OracleDrafter(text), NoisyDrafter(text, 0.4, 5, VOCABULARY)]


@pytest.mark.parametrize("sampling", GREEDY + WARM)
def test_every_drafter_gives_the_targets_own_text(worker: Worker, sampling: Sampling) -> None:
    """Chains and trees: ids and log-probabilities are, bit for bit, those of the target alone."""
    alone = list(say(worker, PROMPT, sampling, NEW, log_probs=True))
    truth = [said.token_id for said in alone]
    chain, tree = Budget(5, 5, sampling=sampling), Budget(12, 4, tree=True, sampling=sampling)
    kept = 0
    for drafter in drafters(truth):
        for budget, told in ((chain, True), (tree, True), (tree, False)):
            run = speculate(worker, drafter, budget, PROMPT, max_new=NEW, sampling=sampling, log_probs=told)
            assert run.ids == truth
            assert run.log_probs == ([said.log_probs for said in alone] if told else [])
            kept += sum(run.accepted)
    assert kept > 3 * NEW


def test_a_hostile_drafter_gives_it_too(worker: Worker) -> None:
    """Special ids, repeated and far-off tokens at every node, under all warps at once."""
    for sampling in (GREEDY[-1], WARM[-1]):
        truth = list(generate(worker, PROMPT, sampling, NEW))
        hostile = AdversarialDrafter([*PROMPT, *truth], (END_ID,), 5, VOCABULARY)
        run = speculate(worker, hostile, Budget(5, 5), PROMPT, max_new=NEW, sampling=sampling)
        assert run.ids == truth


def test_each_warp_changes_the_text(worker: Worker) -> None:
    """None of the settings tried above is without effect on this target, greedy or sampled."""
    for plain, warped in ((Sampling(**BASE), GREEDY), (Sampling(0.9, seed=4, **BASE), WARM)):
        usual = list(generate(worker, PROMPT, plain, NEW))
        for name, sampling in zip(EACH, warped, strict=False):
            if name == "min_p" and sampling.greedy:
                continue
            stops = (usual[3],) if name == "least length" else ()
            ended = usual[: usual.index(usual[3]) + 1] if stops else usual
            assert list(generate(worker, PROMPT, sampling, NEW, stops)) != ended, name


def test_least_length_holds_and_then_the_text_may_end(worker: Worker) -> None:
    """No stop id among the first min_tokens, with and without drafting; without the setting the text ends earlier."""
    usual = list(generate(worker, PROMPT, Sampling(), NEW))
    stops = tuple(sorted(set(usual)))
    assert len(list(generate(worker, PROMPT, Sampling(), NEW, stops))) == 1
    for least in (1, 5, 9):
        sampling = Sampling(min_tokens=least)
        text = list(generate(worker, PROMPT, sampling, NEW, stops))
        assert not set(text[:least]) & set(stops)
        for drafter in drafters(text):
            run = speculate(
                worker, drafter, Budget(6, 6), PROMPT, max_new=NEW, sampling=sampling, stop_ids=stops
            )
            assert run.ids == text


def test_a_work_without_its_text_is_refused(worker: Worker) -> None:
    """A penalty without a history, a history of another length, and a bias outside the vocabulary fail that work."""
    penalised, biased = Sampling(presence_penalty=1.0), Sampling(logit_bias=((VOCABULARY, 1.0),))
    for sampling, history, why in (
        (penalised, None, "work.history"),
        (penalised, History((1, 2), 0), "work.history"),
        (biased, None, "sampling.logit_bias"),
    ):
        work = Verify(7, 0, (1, 2, 3), Draft.chain(()), sampling, Rule(), history=history)
        (outcome,) = worker.run((work,))
        assert isinstance(outcome, WorkFailed) and outcome.why.startswith(why)
