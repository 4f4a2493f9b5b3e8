"""Whatever drafts, the text is the target's own, token for token."""

from __future__ import annotations

import pytest

from outrider.client.drafter import Drafter
from outrider.client.drafters.adversarial import AdversarialDrafter
from outrider.client.drafters.hybrid import HybridDrafter
from outrider.client.drafters.ngram import NgramDrafter
from outrider.client.drafters.noisy import NoisyDrafter
from outrider.client.drafters.oracle import OracleDrafter
from outrider.client.events import Label
from outrider.client.plan import Plan
from outrider.shared.frames import UNLIMITED
from outrider.shared.sampling import Sampling
from tests.device import STREAM, Device, chain, tree
from tests.harness import Handle
from tests.system.conftest import Target

SAMPLINGS = [Sampling(), Sampling(0.8, seed=5), Sampling(1.3, 40, 0.9, seed=6)]
COUNT = 40


def drafter(kind: str, target: Target, truth: tuple[int, ...]) -> Drafter:
    """One of the test drafters, told the truth that it spoils."""
    match kind:
        case "oracle":
            return OracleDrafter(truth)
        case "adversarial":
            return AdversarialDrafter(truth, target.tokenizer.stop_ids, 4, target.vocabulary)
        case "ngram":
            return NgramDrafter()
        case "hybrid":
            return HybridDrafter(NoisyDrafter(truth, 0.4, 3, target.vocabulary))
        case _:
            return NoisyDrafter(truth, float(kind), 3, target.vocabulary)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T0.8", "T1.3-k-p"])
@pytest.mark.parametrize("kind", ["oracle", "0.1", "0.5", "1.0", "adversarial", "ngram", "hybrid"])
@pytest.mark.parametrize(
    "plan", [chain(1), chain(5), chain(16, rounds=3), tree(12, 5), chain(4, run_ahead=3)]
)
def test_any_drafter_gives_the_targets_text(
    target: Target, verifier: Handle, sampling: Sampling, kind: str, plan: Plan
) -> None:
    """Good, noisy and adversarial drafters, chains and trees, pipelined and with run-ahead: one text."""
    prompt = target.prompt()
    alone = target.alone(prompt, COUNT, sampling)
    device = Device(
        address=verifier.address,
        tokenizer=target.tokenizer,
        drafter=drafter(kind, target, (*prompt, *alone)),
        plan=plan,
    )
    answer = device.ask(prompt, COUNT, sampling)
    assert answer.ids == alone
    assert answer.finished is not None and answer.finished.verified


@pytest.mark.parametrize("depth", range(17))
def test_any_draft_length_gives_the_targets_text(target: Target, verifier: Handle, depth: int) -> None:
    """k from 0 (single steps, no run-ahead) to 16."""
    prompt = target.prompt("count")
    alone = target.alone(prompt, 24)
    noisy = NoisyDrafter((*prompt, *alone), 0.3, depth, target.vocabulary)
    answer = Device(
        address=verifier.address, tokenizer=target.tokenizer, drafter=noisy, plan=chain(depth)
    ).ask(prompt, 24)
    assert answer.ids == alone


def test_streaming_is_the_targets_text_and_needs_no_rounds(target: Target, verifier: Handle) -> None:
    """Empty drafts with unlimited run-ahead are plain streaming: every token but a first few is run-ahead."""
    prompt = target.prompt("stream")
    answer = Device(address=verifier.address, tokenizer=target.tokenizer, plan=STREAM).ask(prompt, COUNT)
    assert answer.ids == target.alone(prompt, COUNT)
    assert answer.labels.count(Label.RUN_AHEAD) >= len(answer.ids) - 2


def test_an_oracle_needs_few_rounds(target: Target, verifier: Handle) -> None:
    """A perfect drafter of five brings six tokens a round: drafts really save target passes."""
    prompt = target.prompt("oracle")
    alone = target.alone(prompt, 36)
    oracle = OracleDrafter((*prompt, *alone))
    answer = Device(address=verifier.address, tokenizer=target.tokenizer, drafter=oracle, plan=chain(5)).ask(
        prompt, 36
    )
    assert answer.finished is not None
    assert answer.ids == alone
    assert answer.finished.stats.rounds <= len(alone) / 6 + 2


def test_limits_and_stops_end_exactly_there(target: Target, verifier: Handle) -> None:
    """The token limit and a stop string inside an accepted block end the text there, and counts agree."""
    prompt = target.prompt("limits")
    alone = target.alone(prompt, COUNT)
    oracle = OracleDrafter((*prompt, *alone))
    for limit in (1, 2, 7, 13):
        answer = Device(
            address=verifier.address, tokenizer=target.tokenizer, drafter=oracle, plan=chain(8)
        ).ask(prompt, limit)
        assert answer.ids == alone[:limit]
        assert answer.finished is not None and answer.finished.stats.tokens == len(answer.ids)
        assert answer.reason == ("length" if len(alone) >= limit else "stop")
    text = target.tokenizer.decode(alone)
    for at in (3, len(text) // 2):
        stop = text[at : at + 3]
        answer = Device(
            address=verifier.address, tokenizer=target.tokenizer, drafter=oracle, plan=chain(8), stops=(stop,)
        ).ask(prompt, COUNT)
        assert answer.text == text[: text.find(stop)]
        assert answer.reason == "stop"
        assert alone[: len(answer.ids)] == answer.ids
        assert stop not in target.tokenizer.decode(answer.ids[:-1])


def test_the_context_limit_is_a_clean_end_on_both_sides(target: Target, verifier: Handle) -> None:
    """Generation into the end of the context stops with "context", drafted or streamed."""
    longest = verifier.loaded.description.limits.max_context_tokens
    prompt = (target.tokenizer.encode("a b ") * longest)[: longest - 9]
    for plan in (STREAM, chain(6)):
        answer = Device(
            address=verifier.address, tokenizer=target.tokenizer, drafter=NgramDrafter(), plan=plan
        ).ask(prompt, 64)
        assert answer.reason in ("context", "stop")
        assert len(answer.ids) <= 9


def test_unlimited_is_the_wires_own_word() -> None:
    """The streaming plan asks for what the wire calls no limit."""
    assert STREAM.run_ahead == UNLIMITED == 2**32 - 1
