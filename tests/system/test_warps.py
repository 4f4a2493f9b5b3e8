"""All warps at once through the real stack: one text, one set of log-probabilities, one end, however it is drafted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outrider.client.drafters.noisy import NoisyDrafter
from outrider.client.plan import Plan
from outrider.netsim.faults import Reset
from outrider.netsim.settings import LinkSettings
from outrider.netsim.threaded import ThreadedProxy
from outrider.shared.sampling import Sampling
from outrider.shared.stops import cut
from outrider.shared.textstream import StreamDecoder
from tests.device import STREAM, Device, chain, tree
from tests.harness import Handle
from tests.system.conftest import Target

COUNT = 32
BIASES = ((7, 1.5), (20, -3.0), (33, 0.25))
WARM = Sampling(0.9, 60, 0.97, 11, 0.01, 1.25, 0.6, 0.3, 9, BIASES)
COLD = Sampling(0.0, 0, 0.0, 0, 0.0, 1.25, 0.6, 0.3, 9, BIASES)


def stop_of(text: str) -> str:
    """Two characters of one byte each, from the middle: in this target's text they lie across tokens."""
    pairs: list[str] = re.findall("[!-~]{2}", text)
    return pairs[len(pairs) // 2]


def cut_behind(target: Target, ids: Sequence[int], stop: str, least: int) -> str:
    """The text of ``ids`` before the first ``stop`` behind that many tokens."""
    begun = len(StreamDecoder(target.tokenizer).push(ids[:least]))
    return cut(target.tokenizer.decode(ids), (stop,), begun)


@pytest.mark.parametrize("sampling", [COLD, WARM], ids=["greedy", "coupled"])
@pytest.mark.parametrize(
    "plan",
    [STREAM, chain(5, rounds=2), tree(12, 4), chain(4, run_ahead=3)],
    ids=["stream", "chain", "tree", "ahead"],
)
def test_text_log_probs_and_end_are_the_targets_own(
    target: Target, verifier: Handle, sampling: Sampling, plan: Plan
) -> None:
    """With a stop string besides: ids, text and log-probabilities equal those of the target alone, to the bit."""
    prompt = target.prompt("warps")
    alone = target.told(prompt, COUNT, sampling)
    ids = tuple(said.token_id for said in alone)
    text = target.tokenizer.decode(ids)
    stop = stop_of(text)
    device = Device(
        address=verifier.address,
        tokenizer=target.tokenizer,
        drafter=NoisyDrafter((*prompt, *ids), 0.3, 8, target.vocabulary),
        plan=plan,
        stops=(stop, "never said"),
        log_probs=True,
    )
    answer = device.ask(prompt, COUNT, sampling)
    assert answer.text == cut_behind(target, ids, stop, sampling.min_tokens) and answer.reason == "stop"
    assert answer.ids == ids[: len(answer.ids)]
    assert stop in target.tokenizer.decode(answer.ids)
    assert cut_behind(target, answer.ids[:-1], stop, sampling.min_tokens) == target.tokenizer.decode(
        answer.ids[:-1]
    )
    assert answer.log_probs == tuple(said.log_probs for said in alone[: len(answer.ids)])


def test_a_broken_link_and_a_resumed_journal_keep_them_all(
    target: Target, verifier: Handle, tmp_path: Path
) -> None:
    """Cut off in mid-text, then killed and resumed from the journal: warps, stop string and log-probabilities stay."""
    prompt = target.prompt("resumed")
    alone = target.told(prompt, COUNT, WARM)
    ids = tuple(said.token_id for said in alone)
    text = target.tokenizer.decode(ids)
    stop = stop_of(text)
    settings: dict[str, Any] = {
        "tokenizer": target.tokenizer,
        "plan": chain(4),
        "journal": tmp_path / "journal",
    }
    with ThreadedProxy(("127.0.0.1", verifier.port), link=LinkSettings.of(rtt_ms=10)) as proxy:
        hit = [False]

        def shown(count: int) -> None:
            if count >= 6 and not hit[0]:
                hit[0] = True
                proxy.trigger(Reset())

        drafter = NoisyDrafter((*prompt, *ids), 0.3, 8, target.vocabulary)
        device = Device(
            address=proxy.address, drafter=drafter, stops=(stop,), log_probs=True, on_shown=shown, **settings
        )
        whole = device.ask(prompt, COUNT, WARM)
    assert whole.text == cut_behind(target, ids, stop, WARM.min_tokens) and whole.ids == ids[: len(whole.ids)]
    assert whole.log_probs == tuple(said.log_probs for said in alone[: len(whole.ids)])
    lines = (tmp_path / "journal").read_bytes().splitlines(keepends=True)
    middle = next(n for n, line in enumerate(lines) if b'"commit"' in line) + 1
    (tmp_path / "journal").write_bytes(b"".join(lines[:middle]))
    resumed = Device(address=verifier.address, resume=True, **settings).go_on()
    assert (resumed.text, resumed.ids, resumed.log_probs) == (whole.text, whole.ids, whole.log_probs)
    assert resumed.reason == "stop"
