"""Laws of the local loop: any drafter, any budget, the target's own text."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.client.drafter import Budget, Drafter
from outrider.client.drafters.adversarial import AdversarialDrafter
from outrider.client.drafters.noisy import NoisyDrafter
from outrider.client.drafters.oracle import OracleDrafter
from outrider.cloud.generate import generate
from outrider.cloud.local import speculate
from outrider.cloud.selfcheck import open_engine, probe_ids
from outrider.cloud.target import DTYPES, load_target
from outrider.cloud.worker import Worker
from outrider.shared.errors import EngineFailed
from outrider.shared.sampling import Sampling
from tests.tiny import END_ID, VOCABULARY, make_target

SAMPLINGS = [Sampling(), Sampling(1.0, seed=3), Sampling(0.8, 40, 0.9, 2**63)]
PROMPT = probe_ids(VOCABULARY, 11)
NEW = 30


@pytest.fixture(scope="module", params=DTYPES)
def worker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    """A worker over a tiny target, in each dtype."""
    folder = make_target(tmp_path_factory.mktemp("target") / "llama")
    engine, found = open_engine(load_target(folder, request.param))
    return Worker(engine, found.near_tie_bound)


def drafters(truth: list[int]) -> dict[str, Drafter]:
    """Good, noisy at several rates, useless and hostile."""
    text = [*PROMPT, *truth]
    kinds: dict[str, Drafter] = {}
    for rate in (0.1, 0.5, 1.0):
        kinds[f"noisy {rate}"] = NoisyDrafter(text, rate, 5, VOCABULARY)
    kinds["oracle"] = OracleDrafter(text)
    kinds["adversarial"] = AdversarialDrafter(text, (END_ID,), 5, VOCABULARY)
    return kinds


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_drafter_gives_the_targets_own_text(worker: Worker, sampling: Sampling) -> None:
    """Chains and trees of 0 to 16 tokens, by good and bad drafters: token for token the target alone."""
    truth = list(generate(worker, PROMPT, sampling, NEW))
    for name, drafter in drafters(truth).items():
        for depth, tree in ((0, False), (1, False), (5, False), (16, False), (6, True)):
            budget = Budget(max_nodes=16 if tree else depth, max_depth=depth, tree=tree, sampling=sampling)
            run = speculate(worker, drafter, budget, PROMPT, max_new=NEW, sampling=sampling)
            assert run.ids == truth, (name, depth, tree)
    assert worker.kv_bytes() == 0


def test_a_perfect_drafter_saves_passes(worker: Worker) -> None:
    """With the truth as draft every round commits depth + 1 tokens, and the numbers say so."""
    truth = list(generate(worker, PROMPT, Sampling(), NEW))
    before = worker.engine.passes
    run = speculate(worker, OracleDrafter([*PROMPT, *truth]), Budget(4, 4), PROMPT, max_new=NEW)
    assert worker.engine.passes - before == NEW // 5 == len(run.accepted)
    assert run.accepted == [4] * 6 and run.acceptance_length == 5.0


def test_a_stop_id_inside_an_accepted_path_ends_there(worker: Worker) -> None:
    """Every token of the text as the stop id: the run ends with its first occurrence, nothing behind it."""
    truth = list(generate(worker, PROMPT, Sampling(), NEW))
    for stop in sorted(set(truth))[:8]:
        end = truth.index(stop) + 1
        oracle = OracleDrafter([*PROMPT, *truth])
        run = speculate(worker, oracle, Budget(7, 7), PROMPT, max_new=NEW, stop_ids=(stop,))
        assert run.ids == truth[:end]
        assert list(generate(worker, PROMPT, Sampling(), NEW, (stop,))) == truth[:end]


@pytest.mark.parametrize("max_new", [0, 1, 2, 7])
def test_the_token_limit_holds_inside_a_block(worker: Worker, max_new: int) -> None:
    """Never more than max_new tokens, whatever was accepted."""
    truth = list(generate(worker, PROMPT, Sampling(), NEW))
    run = speculate(worker, OracleDrafter([*PROMPT, *truth]), Budget(5, 5), PROMPT, max_new=max_new)
    assert run.ids == truth[:max_new]


class Careless:
    """A drafter that proposes what no verifier takes."""

    def begin(self, ids: Any) -> None:
        """Nothing."""

    def accept(self, ids: Any) -> None:
        """Nothing."""

    def propose(self, budget: None) -> Any:
        """A token outside the vocabulary."""
        from outrider.client.drafter import Proposal

        return Proposal.chain((VOCABULARY,), (0.0,))


def test_a_target_that_cannot_go_on_says_so(worker: Worker) -> None:
    """A broken draft, and a text longer than the context, raise EngineFailed and leave no KV behind."""
    with pytest.raises(EngineFailed, match="outside"):
        speculate(worker, Careless(), None, PROMPT, max_new=4)
    with pytest.raises(EngineFailed, match="2048"):
        list(generate(worker, probe_ids(VOCABULARY, 2046), Sampling(), 8))
    assert worker.kv_bytes() == 0
