"""Faults on the way: the text stays the target's own, and nothing verified is ever lost or changed."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from outrider.client.answers import Finished, SessionEvent
from outrider.client.commands import outcome, watch
from outrider.client.drafters.noisy import NoisyDrafter
from outrider.client.machine_settings import Offline, Reconcile
from outrider.client.views import PipeView
from outrider.netsim.faults import Blackhole, Cut, Outage, Reset
from outrider.netsim.settings import LinkSettings
from outrider.netsim.threaded import ThreadedProxy
from outrider.shared.errors import ExitCode
from outrider.shared.sampling import Sampling
from tests.device import STREAM, Answer, Device, chain, provisional, tree
from tests.harness import Handle, running_verifier
from tests.system.conftest import Target

COUNT = 48
SAMPLING = Sampling(0.9, seed=11)


def noisy(target: Target, prompt: tuple[int, ...], alone: tuple[int, ...], rate: float = 0.2) -> NoisyDrafter:
    """Right four times out of five."""
    return NoisyDrafter((*prompt, *alone), rate, 8, target.vocabulary)


def through(
    proxy: ThreadedProxy, target: Target, prompt: tuple[int, ...], alone: tuple[int, ...], **options: object
) -> Device:
    """A device behind the proxy that tells it how many tokens are on display."""
    return Device(
        address=proxy.address,
        tokenizer=target.tokenizer,
        drafter=noisy(target, prompt, alone),
        plan=chain(4),
        on_shown=proxy.on_token,
        **options,  # type: ignore[arg-type]
    )


def upstream(verifier: Handle) -> tuple[str, int]:
    """Where the proxy forwards to."""
    return "127.0.0.1", verifier.port


def check(answer: Answer, alone: tuple[int, ...]) -> None:
    """The target's own text, all of it verified."""
    assert answer.ids == alone
    assert answer.finished is not None and answer.finished.verified


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLING], ids=["greedy", "coupled"])
def test_an_outage_changes_nothing(target: Target, verifier: Handle, sampling: Sampling) -> None:
    """Three seconds without the link: provisional text flows on, is reconciled, and the end is the target's own."""
    prompt = target.prompt("outage")
    alone = target.alone(prompt, COUNT, sampling)
    with ThreadedProxy(upstream(verifier), link=LinkSettings.of(rtt_ms=20)) as proxy:
        device = through(proxy, target, prompt, alone)
        seen = [False]

        def shown(count: int) -> None:
            if count >= 10 and not seen[0]:
                seen[0] = True
                proxy.trigger(Outage(), 3.0)

        device.on_shown = shown
        answer = device.ask(prompt, COUNT, sampling)
    check(answer, alone)
    assert provisional(answer) >= 10


@pytest.mark.parametrize("fault", [Blackhole(), Reset()], ids=["blackhole", "reset"])
@pytest.mark.parametrize("plan", [chain(4), tree(10, 4), STREAM], ids=["chain", "tree", "stream"])
def test_a_broken_connection_changes_nothing(
    target: Target, verifier: Handle, fault: Blackhole | Reset, plan: object
) -> None:
    """Bytes swallowed until a reset, or a reset at once, in the middle of the text."""
    prompt = target.prompt("broken")
    alone = target.alone(prompt, COUNT)
    with ThreadedProxy(upstream(verifier), link=LinkSettings.of(rtt_ms=10)) as proxy:
        device = through(proxy, target, prompt, alone)
        device.plan = plan  # type: ignore[assignment]
        hit = [False]

        def shown(count: int) -> None:
            if count >= 12 and not hit[0]:
                hit[0] = True
                proxy.trigger(fault, None if isinstance(fault, Reset) else 1.5)

        device.on_shown = shown
        answer = device.ask(prompt, COUNT)
    check(answer, alone)


def cut_everywhere(target: Target, verifier: Handle, direction: str, offsets: range) -> int:
    """One session per offset, the connection reset after exactly that many bytes; how many sessions were cut."""
    prompt = target.prompt("cut")
    alone = target.alone(prompt, 12)
    cuts = 0
    for offset in offsets:
        with ThreadedProxy(upstream(verifier)) as proxy:
            proxy.trigger(Cut(direction, offset, "reset"))  # type: ignore[arg-type]
            device = through(proxy, target, prompt, alone)
            check(device.ask(prompt, 12), alone)
            cuts += proxy.stats.connections > 1
    return cuts


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_cut_at_any_byte_changes_nothing(target: Target, verifier: Handle, direction: str) -> None:
    """Every 37th byte of what a short session sends and receives; `test_long_cuts` takes every single one."""
    assert cut_everywhere(target, verifier, direction, range(1, 1400, 37)) > 10


def test_a_verifier_killed_and_restarted_changes_nothing(target: Target) -> None:
    """KV, log and ids are lost with the first one; the device goes on from its own ids on the second."""
    prompt = target.prompt("restart")
    alone = target.alone(prompt, COUNT)
    verifiers = ExitStack()
    port = verifiers.enter_context(running_verifier(target_dir=target.folder)).port
    hit = threading.Event()

    def restart() -> None:
        hit.wait()
        verifiers.close()
        verifiers.enter_context(running_verifier(target_dir=target.folder, port=port))

    thread = threading.Thread(target=restart)
    thread.start()
    device = Device(
        address=f"127.0.0.1:{port}", tokenizer=target.tokenizer, drafter=noisy(target, prompt, alone), plan=chain(4),
        on_shown=lambda count: hit.set() if count >= 12 else None,
    )  # fmt: skip
    answer = device.ask(prompt, COUNT)
    thread.join()
    verifiers.close()
    check(answer, alone)


def test_a_killed_device_resumes_from_its_journal(target: Target, verifier: Handle, tmp_path: Path) -> None:
    """The journal, cut at any record or inside one, is enough to end with the target's text."""
    prompt = target.prompt("journal")
    alone = target.alone(prompt, COUNT, SAMPLING)
    whole = tmp_path / "whole"
    device = Device(
        address=verifier.address, tokenizer=target.tokenizer, drafter=noisy(target, prompt, alone), plan=chain(4),
        journal=whole,
    )  # fmt: skip
    check(device.ask(prompt, COUNT, SAMPLING), alone)
    data = whole.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for length in [*ends[3::5], ends[5] + 9, len(data) - 3]:
        path = tmp_path / f"cut-{length}"
        path.write_bytes(data[:length])
        device = Device(
            address=verifier.address, tokenizer=target.tokenizer, drafter=noisy(target, prompt, alone),
            plan=chain(4), journal=path, resume=True,
        )  # fmt: skip
        answer = device.go_on()
        assert answer.ids == alone


def test_an_answer_that_gave_up_on_its_verifier_is_resumed(
    target: Target, verifier: Handle, tmp_path: Path
) -> None:
    """The link goes for good in mid-answer, nobody waits for long: later the journal ends with the target's text."""
    prompt = target.prompt("gave up")
    alone = target.alone(prompt, COUNT)
    journal = tmp_path / "journal"
    with ThreadedProxy(upstream(verifier), link=LinkSettings.of(rtt_ms=10)) as proxy:
        device = through(proxy, target, prompt, alone, journal=journal, offline=Offline.NEVER)

        async def ask() -> Finished:
            async with asyncio.timeout(60), device.session() as session:
                events = session.generate(prompt, max_new=COUNT)

                async def cut() -> AsyncIterator[SessionEvent]:
                    async for event in events:
                        yield event
                        if (
                            session.transcript is not None
                            and len(session.transcript.pieces) >= 10
                            and not hit
                        ):
                            hit.append(proxy.trigger(Outage()))

                return await watch(
                    session, cut(), PipeView(io.StringIO(), io.StringIO()), (2.0, "unreachable")
                )

        hit: list[int] = []
        finished = asyncio.run(ask())
    assert outcome(finished) is ExitCode.UNREACHABLE
    again = Device(
        address=verifier.address, tokenizer=target.tokenizer, drafter=noisy(target, prompt, alone), plan=chain(4),
        journal=journal, resume=True,
    )  # fmt: skip
    answer = again.go_on()
    check(answer, alone)


def test_without_a_link_the_device_writes_alone_and_says_so(target: Target) -> None:
    """Standalone: the drafter's own text, none of it labelled verified, and it ends."""
    prompt = target.prompt("alone")
    alone = target.alone(prompt, COUNT)
    device = Device(
        address="127.0.0.1:1", tokenizer=target.tokenizer, drafter=noisy(target, prompt, alone, 0.0),
        plan=chain(4), offline=Offline.ALWAYS,
    )  # fmt: skip
    answer = device.ask(prompt, COUNT)
    assert answer.ids == alone
    assert not answer.verified_once
    assert answer.finished is not None and not answer.finished.verified


@pytest.mark.parametrize("policy", [Reconcile.KEEP, Reconcile.PAUSE])
def test_policies_do_what_they_say(target: Target, verifier: Handle, policy: Reconcile) -> None:
    """keep: what was shown stays, labelled; pause: nothing unverified is ever shown."""
    prompt = target.prompt("policy")
    alone = target.alone(prompt, COUNT)
    with ThreadedProxy(upstream(verifier), link=LinkSettings.of(rtt_ms=10)) as proxy:
        device = through(proxy, target, prompt, alone, reconcile=policy)
        hit = [False]

        def shown(count: int) -> None:
            if count >= 10 and not hit[0]:
                hit[0] = True
                proxy.trigger(Outage(), 1.5)

        device.on_shown = shown
        answer = device.ask(prompt, COUNT)
    if policy is Reconcile.PAUSE:
        assert provisional(answer) == 0
        check(answer, alone)
    else:
        assert provisional(answer) > 0
        assert len(answer.ids) > 0


@pytest.mark.parametrize(
    ("reason", "code"), [("offline", ExitCode.DONE), ("unreachable", ExitCode.UNREACHABLE)]
)
def test_a_verifier_that_never_comes_ends_the_answer(target: Target, reason: str, code: ExitCode) -> None:
    """Nothing waits for ever: the user is told, then the answer ends with what was drafted alone, and is unverified."""
    prompt = target.prompt("gone")
    device = Device(
        address="127.0.0.1:1", tokenizer=target.tokenizer, plan=chain(4),
        drafter=noisy(target, prompt, target.alone(prompt, COUNT)),
    )  # fmt: skip

    out, err = io.StringIO(), io.StringIO()

    async def ask() -> Finished:
        async with asyncio.timeout(30), device.session() as session:
            events = session.generate(prompt, max_new=COUNT)
            return await watch(session, events, PipeView(out, err), (0.5, reason))

    finished = asyncio.run(ask())
    assert (finished.reason, finished.verified) == (reason, False)
    assert finished.stats.tokens > 0
    assert out.getvalue().strip()
    assert "nothing from the verifier for 0.25 s; the answer ends without it in 0.25 s" in err.getvalue()
    assert outcome(finished) is code
