"""The real target and the drafter that comes with the repository, over real gRPC: the main job, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.client.answers import LinkNote
from outrider.client.cache import Cache
from outrider.client.channel import ChannelSettings
from outrider.client.drafters.ngram import NgramDrafter
from outrider.client.prepare import DeviceOptions, prepare
from outrider.client.session import Session
from outrider.netsim.faults import Outage
from outrider.netsim.settings import LinkSettings
from outrider.netsim.threaded import ThreadedProxy
from outrider.shared.errors import FingerprintMismatch
from outrider.shared.frames import Fingerprints
from outrider.shared.sampling import Sampling
from outrider.shared.tokenizer import Tokenizer
from tests.device import Answer, Device, chain, provisional, tree
from tests.real_model import Real, real_verifier
from tests.tiny import write_tokenizer

pytestmark = pytest.mark.model

COUNT = 32
GREEDY, COUPLED = Sampling(), Sampling(0.8, 50, 0.95, seed=5)
PLANS = {"chain": chain(5), "tree": tree(12, 5)}


@pytest.fixture(scope="module")
def real() -> Iterator[Real]:
    """The embedded target, its drafter's bundle, and what it says alone."""
    with real_verifier((GREEDY, COUPLED), COUNT) as made:
        yield made


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", ["moa", "0.3"])
def test_the_text_is_the_targets(real: Real, kind: str, plan: str, sampling: Sampling) -> None:
    """Chain and tree, the trained drafter and a noisy one: token for token what `generate` says."""
    answer = real.device(kind, sampling, PLANS[plan]).ask(real.prompt, COUNT, sampling)
    assert answer.ids == real.alone[sampling]
    assert answer.finished is not None and answer.finished.verified
    assert answer.finished.stats.rounds < len(answer.ids)


def test_an_outage_changes_nothing(real: Real) -> None:
    """Three seconds of stalled radio in the middle: the trained drafter writes on, and the end is the target's own."""
    hit = [False]
    with ThreadedProxy(("127.0.0.1", real.verifier.port), link=LinkSettings.of(rtt_ms=20)) as proxy:
        device = real.device("moa", GREEDY, PLANS["tree"], proxy.address)

        def shown(count: int) -> None:
            if count >= 8 and not hit[0]:
                hit[0] = True
                proxy.trigger(Outage(), 3.0)

        device.on_shown = shown
        answer = device.ask(real.prompt, COUNT)
    assert hit[0] and provisional(answer) > 0
    assert answer.ids == real.alone[GREEDY]
    assert answer.finished is not None and answer.finished.verified


def refused(answer: Answer, which: str) -> None:
    """Nothing was shown, and the message says which fingerprint differs and what to do."""
    error = answer.finished.error if answer.finished else None
    assert isinstance(error, FingerprintMismatch)
    assert answer.ids == () and answer.text == ""
    assert which in error.which and which in str(error)
    assert error.remedy and error.remedy in str(error)


def test_another_tokenizer_is_refused(real: Real, tmp_path: Path) -> None:
    """A device that would read other words into the ids gets a message instead of a first token."""
    write_tokenizer(tmp_path)
    other = Tokenizer.from_folder(tmp_path)
    device = Device(address=real.verifier.address, tokenizer=other, drafter=NgramDrafter(), plan=chain(4))
    refused(device.ask(other.encode("hello"), COUNT), "tokenizer")


def test_another_target_is_refused(real: Real) -> None:
    """A session begun with another target does not go on with this one."""

    async def ask() -> Answer:
        device = real.device("ngram", GREEDY, PLANS["chain"])
        async with asyncio.timeout(60), device.session() as session:
            session.machine.fingerprints = Fingerprints(
                b"another target's law, 32 bytes..", real.tokenizer.sha256
            )
            return await device.turn(session, real.prompt, COUNT)

    refused(asyncio.run(ask()), "law")


def test_a_wrong_bundle_is_replaced_not_refused(real: Real, tmp_path: Path) -> None:
    """The session runs with n-gram drafts, says so, fetches the right bundle and drafts with it from then on."""

    async def run() -> None:
        channel = ChannelSettings(server=real.verifier.address)
        prepared = await prepare(
            DeviceOptions(channel=channel, draft="chain", pacing="edge"), Cache(tmp_path)
        )
        assert any("n-gram" in note for note in prepared.notes)
        wrong = replace(prepared.config, bundle=b"a bundle of another drafter, 32 b", num_planes=1)
        wrong = replace(wrong, bundle=wrong.bundle[:32])
        notes: list[str] = []
        async with asyncio.timeout(120), Session(wrong) as session:
            for _ in range(2):
                async for event in session.generate(real.prompt, keep=0, max_new=COUNT):
                    if isinstance(event, LinkNote):
                        notes.append(event.note)
                transcript = session.transcript
                assert transcript is not None and transcript.ids == real.alone[GREEDY]
                while session.machine.bundle != real.bundle.sha256:  # noqa: ASYNC110 - the machine tells nobody
                    await asyncio.sleep(0.05)
            assert session.machine.num_planes == len(real.bundle.planes)
            assert session.machine.active is not None and session.machine.active.planes
        assert Cache(tmp_path).find_bundle(real.bundle.sha256) is not None

    asyncio.run(run())
