"""Every kind of drafter on one verifier: the device names one, fetches it, and the text is the target's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from outrider.client.answers import Finished
from outrider.client.cache import Cache
from outrider.client.channel import ChannelSettings
from outrider.client.choice import AUTO, HYBRID, NGRAM
from outrider.client.fetching import Fetcher
from outrider.client.machine_settings import Offline
from outrider.client.prepare import DeviceOptions, Prepared, prepare
from outrider.client.session import Session
from outrider.cloud.config import ServeConfig
from outrider.cloud.kinds.registry import KINDS, find_kind
from outrider.cloud.kinds.target import TargetWeights
from outrider.cloud.kinds.weights import save_drafter
from outrider.cloud.load import load
from outrider.shared.errors import ConfigError, ExitCode, exit_code
from outrider.shared.sampling import Sampling
from tests.harness import Handle, running_verifier
from tests.system.conftest import Target
from tests.tiny import VOCABULARY, make_target

COUNT = 20
SAMPLED = Sampling(0.8, seed=5)


def make_weights(kind: str, target: Path, folder: Path) -> Path:
    """An untrained drafter of a kind, as it starts from its target."""
    entry = find_kind(kind)
    settings = entry.settings_for(AutoConfig.from_pretrained(str(target), local_files_only=True))
    settings = replace(settings, draft_vocabulary=tuple(range(VOCABULARY)), training_step=3)
    drafter = entry.build(settings)
    entry.initialise(drafter, TargetWeights(target), 1)
    save_drafter(drafter, settings, folder, torch.float32)
    return folder


def make_echo(folder: Path) -> Path:
    """A target whose layers add nothing: it repeats the last token, which an untrained drafter can say as well."""
    make_target(folder, seed=4)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@dataclass(frozen=True)
class World:
    """One target with all kinds of drafter, and a device's cache."""

    target: Target
    handle: Handle
    cache: Cache

    @property
    def server(self) -> str:
        """The verifier's address."""
        return self.handle.address

    def options(self, drafter: str, **changes: object) -> DeviceOptions:
        """A device that always drafts."""
        channel = ChannelSettings(server=self.server)
        return replace(DeviceOptions(channel=channel, pacing="edge", drafter=drafter), **changes)  # type: ignore[arg-type]

    async def fetched(self, drafter: str) -> Prepared:
        """What a device has to go on once the bundle has come."""
        await Fetcher(ChannelSettings(server=self.server), self.cache, drafter=drafter).bundle()
        return await prepare(self.options(drafter), self.cache)

    def digest(self, kind: str) -> bytes:
        """Of the bundle of a kind."""
        return next(i.sha256 for i in self.handle.loaded.description.bundles if i.drafter_kind == kind)


async def ask(
    prepared: Prepared, prompt: tuple[int, ...], sampling: Sampling
) -> tuple[tuple[int, ...], Finished]:
    """One question: the ids of the answer, and how it ended."""
    async with asyncio.timeout(60), Session(prepared.config) as session:
        async for event in session.generate(prompt, max_new=COUNT, sampling=sampling):
            if isinstance(event, Finished) and session.transcript is not None:
                return session.transcript.ids, event
    raise AssertionError("the session ended without a word")


@pytest.fixture(scope="module", params=["llama", "echo"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A random target, whose text no untrained drafter guesses, and one that repeats itself."""
    base = tmp_path_factory.mktemp(request.param)
    folder = make_echo(base / "target") if request.param == "echo" else make_target(base / "target", seed=3)
    folders = tuple(make_weights(kind, folder, base / kind) for kind in KINDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_CACHE", str(base / "cloud"))
        config = ServeConfig(
            target=str(folder), drafters=folders, threads=1, kv_budget_mib=64, selfcheck=False
        )
        loaded = load(config)
    with running_verifier(loaded=loaded) as handle:
        yield World(Target(folder), handle, Cache(base / "device"))


@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_gives_the_targets_text(world: World, kind: str) -> None:
    """Weights, export, Describe, fetch, Open, rows, drafts: greedy and sampled; what can be guessed is accepted."""
    prompt = world.target.prompt()
    for sampling in (Sampling(), SAMPLED):
        prepared = asyncio.run(world.fetched(kind))
        config = prepared.config
        assert config.bundle == world.digest(kind) and config.drafter is not None
        assert config.num_planes == len(next(
            info.planes for info in world.handle.loaded.description.bundles if info.drafter_kind == kind
        ))  # fmt: skip
        ids, finished = asyncio.run(ask(prepared, prompt, sampling))
        assert ids == world.target.alone(prompt, COUNT, sampling)
        assert finished.stats.rounds > 0 and finished.stats.drafted > 0
        assert (config.drafter.counters.rows > 0) == (kind != "independent")
        if "echo" in world.target.folder.parent.name and sampling.greedy:
            assert finished.stats.accepted >= COUNT // 2


def test_copying_needs_no_bundle_and_goes_with_any(world: World) -> None:
    """`ngram` drafts without the bundle that is there, `hybrid` (the default) with it; the text is the same."""
    prompt = world.target.prompt()
    for name, kind in ((NGRAM, NGRAM), (HYBRID, HYBRID), (AUTO, HYBRID)):
        prepared = asyncio.run(world.fetched(name))
        assert prepared.config.drafter is not None and prepared.config.drafter.kind == kind
        assert bool(prepared.config.bundle) is (kind == HYBRID)
        ids, _ = asyncio.run(ask(prepared, prompt, Sampling()))
        assert ids == world.target.alone(prompt, COUNT, Sampling())


def test_the_device_remembers_what_it_used(world: World, tmp_path: Path) -> None:
    """Nothing known: the recommended kind. Afterwards: what was used last with this address, or the kind asked for."""
    fresh = replace(world, cache=Cache(tmp_path))
    fetcher = Fetcher(ChannelSettings(server=world.server), fresh.cache)
    assert asyncio.run(fetcher.bundle()).kind == KINDS[0]
    for kind in ("eagle2", "independent"):
        asyncio.run(fresh.fetched(kind))
        assert asyncio.run(prepare(fresh.options("auto"), fresh.cache)).config.bundle == world.digest(kind)
    assert asyncio.run(prepare(fresh.options("eagle2"), fresh.cache)).config.bundle == world.digest("eagle2")
    alone = fresh.options("independent", channel=None, offline=Offline.ALWAYS)
    assert asyncio.run(prepare(alone, fresh.cache)).config.bundle == world.digest("independent")
    with pytest.raises(ConfigError, match="no 'medusa' bundle"):
        asyncio.run(prepare(replace(alone, drafter="medusa"), fresh.cache))


def test_a_kind_that_is_not_offered_is_an_error_that_says_what_is(world: World) -> None:
    """The message lists the server's kinds; the exit code is that of a wrong setting."""
    with pytest.raises(ConfigError, match="offers moa, eagle2, glide, medusa, independent") as caught:
        asyncio.run(prepare(world.options("hydra"), world.cache))
    assert caught.value.setting == "--drafter" and exit_code(caught.value) is ExitCode.CONFIG


def test_a_bundle_file_of_another_kind_is_refused(world: World) -> None:
    """`--bundle` and `--drafter` must agree."""
    asyncio.run(world.fetched("glide"))
    path = world.cache.find_bundle(world.digest("glide"))
    with pytest.raises(ConfigError, match="holds a 'glide' drafter, not 'moa'"):
        asyncio.run(prepare(world.options("moa", bundle=path), world.cache))


def test_what_is_missing_is_fetched_while_text_streams(world: World, tmp_path: Path) -> None:
    """The kind asked for is fetched and used in the session that found it missing, rows or no rows."""

    async def run(kind: str) -> tuple[tuple[int, ...], bytes]:
        cache = Cache(tmp_path / kind)
        prepared = await prepare(world.options(kind), cache)
        assert prepared.config.bundle == b"" and any("n-gram" in note for note in prepared.notes)
        prompt = world.target.prompt()
        async with asyncio.timeout(60), Session(prepared.config) as session:
            async for _ in session.generate(prompt, max_new=COUNT):
                pass
            ids = session.transcript.ids if session.transcript else ()
            for _ in range(2000):
                if session.machine.bundle:
                    break
                await asyncio.sleep(0.02)
            return ids, session.machine.bundle

    for kind in ("medusa", "independent"):
        ids, bundle = asyncio.run(run(kind))
        assert ids == world.target.alone(world.target.prompt(), COUNT, None)
        assert bundle == world.digest(kind)
