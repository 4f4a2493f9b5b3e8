"""The grid on the real model: drafters × plans × samplings × faults. An hour or so on one core."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from outrider.netsim.faults import Blackhole, Fault, Outage, Reset
from outrider.netsim.settings import LinkSettings
from outrider.netsim.threaded import ThreadedProxy
from outrider.shared.sampling import Sampling
from tests import device
from tests.device import STREAM, Answer, chain, provisional, tree
from tests.real_model import Real, real_verifier

pytestmark = [pytest.mark.model, pytest.mark.long]

COUNT = 32
SAMPLINGS = {"greedy": Sampling(), "T0.8": Sampling(0.8, seed=5), "T1.3-k-p": Sampling(1.3, 40, 0.9, seed=6)}
PLANS = {
    "chain": chain(5),
    "tree": tree(16, 6),
    "pipelined": chain(16, rounds=3),
    "run-ahead": chain(4, run_ahead=3),
    "stream": STREAM,
}
KINDS = ("moa", "ngram", "0.0", "0.5", "1.0", "adversarial")
FAULTS: dict[str, tuple[Fault, float | None]] = {
    "outage": (Outage(), 3.0),
    "blackhole": (Blackhole(), 1.5),
    "reset": (Reset(), None),
}


@pytest.fixture(scope="module")
def real() -> Iterator[Real]:
    """The embedded target, its drafter's bundle, and what it says alone."""
    with real_verifier(tuple(SAMPLINGS.values()), COUNT) as made:
        yield made


def check(real: Real, answer: Answer, sampling: Sampling) -> None:
    """The target's own text, all of it verified."""
    assert answer.ids == real.alone[sampling]
    assert answer.finished is not None and answer.finished.verified


def once(proxy: ThreadedProxy, at: int, fault: Fault, for_s: float | None) -> Callable[[int], None]:
    """Strikes when so many tokens are on display."""
    hit: list[int] = []

    def shown(count: int) -> None:
        if count >= at and not hit:
            hit.append(proxy.trigger(fault, for_s))

    return shown


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_drafter_and_plan(real: Real, kind: str, plan: str, sampling: str) -> None:
    """Without faults: one text."""
    wanted = SAMPLINGS[sampling]
    check(real, real.device(kind, wanted, PLANS[plan]).ask(real.prompt, COUNT, wanted), wanted)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_drafter_and_plan_under_faults(
    real: Real, kind: str, plan: str, sampling: str, fault: str
) -> None:
    """An outage, a blackhole or a reset after the eighth token: the same text."""
    wanted = SAMPLINGS[sampling]
    with ThreadedProxy(("127.0.0.1", real.verifier.port), link=LinkSettings.of(rtt_ms=20)) as proxy:
        one = real.device(kind, wanted, PLANS[plan], proxy.address)
        one.on_shown = once(proxy, 8, *FAULTS[fault])
        check(real, one.ask(real.prompt, COUNT, wanted), wanted)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("plan", PLANS)
def test_a_minute_without_the_link(
    real: Real, plan: str, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty seconds: the device drafts to the end of its limit, waits, and ends with the target's own text."""
    monkeypatch.setattr(device, "PATIENCE_S", 180.0)
    wanted = SAMPLINGS[sampling]
    with ThreadedProxy(("127.0.0.1", real.verifier.port), link=LinkSettings.of(rtt_ms=20)) as proxy:
        one = real.device("moa", wanted, PLANS[plan], proxy.address)
        one.on_shown = once(proxy, 8, Outage(), 60.0)
        answer = one.ask(real.prompt, COUNT, wanted)
    check(real, answer, wanted)
    assert provisional(answer) > 0
