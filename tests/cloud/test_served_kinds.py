"""Several drafters on one verifier: each session gets its own one's rows, and pays for what it uses."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig

from outrider.cloud.bundles import BundleStore
from outrider.cloud.config import ServeConfig
from outrider.cloud.drafters import (
    MAX_ROW_WIDTH,
    RowsByBundle,
    ServedDrafter,
    check_planes,
    load_half,
    serve_half,
)
from outrider.cloud.engine import Engine
from outrider.cloud.events import MakeRows, Prefill, RunRows, RunStep
from outrider.cloud.kinds.server import KeyValue, RowPlaneSpec
from outrider.cloud.kinds.settings import DrafterSettings, target_shape
from outrider.cloud.load import assemble
from outrider.cloud.serve import Loaded
from outrider.cloud.table_state import RowSource, Served
from outrider.cloud.target import load_target
from outrider.cloud.worker import Worker
from outrider.netsim.world.toy import PLANE
from outrider.shared.codec import decode_rows
from outrider.shared.errors import ConfigError
from outrider.shared.frames import (
    Attach,
    Feature,
    Fingerprints,
    Numerics,
    Opened,
    RowEncoding,
    RowPlane,
    Rows,
    RowsWanted,
)
from outrider.shared.tokenizer import Tokenizer
from outrider.v1 import verifier_pb2 as pb
from outrider.v1 import verifier_pb2_grpc
from tests.cloud.table_bench import PRINTS, ROWS, SERVED, Bench, draft, opening, turn
from tests.harness import Handle, running_verifier
from tests.raw_device import RawDevice, channel_to, connected
from tests.tiny import make_target
from tests.tiny_weights import make_weights

PROMPT = tuple((17 * i + 5) % 280 for i in range(70))
LENGTH = 10


class FakeHalf:
    """Rows that show what they were made of, in planes of different widths."""

    def __init__(
        self, config: Any, kind: str, layers: tuple[int, ...] = (), final: bool = False, parts: int = 1
    ) -> None:
        shape = target_shape(config)
        self.settings = DrafterSettings(kind=kind, **shape, draft_vocabulary=(2, 3), training_step=len(kind))
        self.needed_layers = layers
        self.needs_final = final
        widths = [2 * self.settings.kv_width for _ in layers] + [self.settings.hidden_size] * final
        self.planes = tuple(
            RowPlaneSpec(plane, width, parts, f"{kind}.{plane}") for plane, width in enumerate(widths)
        )

    def rows(self, kv: Mapping[int, KeyValue], final: Tensor | None, positions: Tensor) -> list[Tensor]:
        """Keys and values of each layer, then the final states."""
        assert set(kv) == set(self.needed_layers) and (final is not None) is self.needs_final
        made = [
            torch.cat([part.transpose(0, 1).flatten(1) for part in kv[layer]], dim=1).float()
            for layer in self.needed_layers
        ]
        assert all(len(rows) == len(positions) for rows in made)
        return made if final is None else [*made, final.float()]

    def fingerprint(self) -> str:
        """There are no weights."""
        return self.settings.kind


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target."""
    return make_target(tmp_path_factory.mktemp("kinds") / "target")


@pytest.fixture(scope="module")
def loaded(target_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A verifier with three drafters: one reads layers, one final states, one nothing."""
    target = load_target(target_dir)
    worker = Worker(Engine(target, 64 << 20))
    config, store = target.model.config, BundleStore()
    tokenizer = Tokenizer.from_folder(target_dir)
    store.add_bytes(tokenizer.artefact)
    halves = [
        FakeHalf(config, "layers", (1, 3), parts=2), FakeHalf(config, "final", final=True), FakeHalf(config, "plain")
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("bundles")
    drafters: list[ServedDrafter] = []
    for half in halves:
        path = folder / half.settings.kind
        path.write_bytes(half.settings.kind.encode() * 1000)
        drafters.append(serve_half(half, path, worker.engine, store))
    settings = ServeConfig(target=str(target_dir), kv_budget_mib=64)
    return assemble(settings, worker, Numerics(True, 1e-4), tokenizer, drafters, store)


@pytest.fixture
def verifier(loaded: Loaded) -> Iterator[Handle]:
    """It, listening."""
    with running_verifier(loaded=loaded) as handle:
        yield handle


def bundle_of(loaded: Loaded, kind: str) -> bytes:
    """The digest under which a kind is served."""
    return next(info.sha256 for info in loaded.description.bundles if info.drafter_kind == kind)


async def drafted(handle: Handle, bundle: bytes, offset: int = 0) -> RawDevice:
    """A session with a bundle, to the end of its turn and of its rows."""
    prompt = tuple(token + offset for token in PROMPT)
    async with connected(handle.address) as device:
        await device.open(
            prompt, LENGTH,
            rows=RowsWanted(encoding=RowEncoding.F32, bulk_window_bytes=1 << 20),
            fingerprints=Fingerprints(bundle=bundle),
        )  # fmt: skip
        while len(device.held.ids) < len(prompt) + LENGTH:
            await device.propose([5, 6, 7, 8], [0, 0, 1, 2])
        planes = device.opened.planes if device.opened else ()
        while planes and min(map(len, rows_by_plane(device, planes).values())) < len(device.held.ids) - 1:
            await device.until(Rows)
        return device


def rows_by_plane(device: RawDevice, planes: Sequence[RowPlane]) -> dict[int, dict[int, Any]]:
    """Rows received, by plane and position."""
    found: dict[int, dict[int, Any]] = {plane.plane: {} for plane in planes}
    for frame in device.rows:
        values = decode_rows(frame.data, frame.count, planes[frame.plane])
        found[frame.plane].update(zip(range(frame.start, frame.start + frame.count), values, strict=True))
    return found


def expected(handle: Handle, half: FakeHalf, ids: list[int]) -> list[Tensor]:
    """The half's rows of all but the last id, in one piece."""
    engine, key, count = handle.engine.engine, -7, len(ids) - 1
    handle.engine.run((Prefill(key, 0, tuple(ids[:-1]), final=True),))
    states = engine.states(key, half.needed_layers, 0, count)
    kv = {layer: (states[i, 0], states[i, 1]) for i, layer in enumerate(half.needed_layers)}
    final = engine.final(key, 0, count) if half.needs_final else None
    rows = half.rows(kv, final, torch.arange(count))
    engine.evict(key)
    return rows


def test_two_sessions_at_once_get_the_rows_of_their_own_drafters(verifier: Handle, loaded: Loaded) -> None:
    """Planes, widths and values are those of the bundle a session opened with, made piecewise while others draft."""
    config = verifier.engine.engine.target.model.config
    halves = {
        "layers": FakeHalf(config, "layers", (1, 3), parts=2),
        "final": FakeHalf(config, "final", final=True),
    }

    async def both() -> list[RawDevice]:
        return await asyncio.gather(*(
            drafted(verifier, bundle_of(loaded, kind), offset) for offset, kind in enumerate(halves)
        ))  # fmt: skip

    for device, (kind, half) in zip(asyncio.run(both()), halves.items(), strict=True):
        opened = device.opened
        assert opened is not None and opened.fingerprints.bundle == bundle_of(loaded, kind)
        assert [(p.width, p.parts, p.content) for p in opened.planes] == [
            (p.width, p.parts, p.content) for p in half.planes
        ]
        rows = expected(verifier, half, device.held.ids)
        found = rows_by_plane(device, opened.planes)
        for plane, want in enumerate(rows):
            got = np.stack([found[plane][position] for position in range(len(want))])
            assert np.abs(got - want.numpy()).max() <= 1e-4 * max(1.0, float(want.abs().max()))


def test_a_drafter_that_reads_nothing_gets_no_rows(verifier: Handle, loaded: Loaded) -> None:
    """Its bundle is served and listed; Opened says that no rows will come, and none do. So for unknown bundles."""
    texts = []
    for bundle in (bundle_of(loaded, "plain"), b"x" * 32, b""):
        device = asyncio.run(drafted(verifier, bundle))
        assert device.opened and device.opened.planes == () and device.opened.fingerprints.bundle == b""
        assert device.rows == []
        texts.append(device.held.ids)
    assert texts[0] == texts[1] == texts[2]


def test_every_bundle_is_described_and_can_be_fetched(verifier: Handle, loaded: Loaded) -> None:
    """One entry per drafter, the recommended one first, each with its planes; the files are the ones listed."""
    description = loaded.description
    assert [info.drafter_kind for info in description.bundles] == ["layers", "final", "plain"]
    assert [len(info.planes) for info in description.bundles] == [2, 1, 0]
    assert [info.training_step for info in description.bundles] == [6, 5, 5]
    assert description.fingerprints.bundle == description.bundles[0].sha256
    assert Feature.STATE_ROWS in description.features

    async def fetch(sha256: bytes) -> bytes:
        async with channel_to(verifier.address) as channel:
            stub = verifier_pb2_grpc.VerifierStub(channel)
            call = stub.FetchBundle(pb.FetchBundleRequest(sha256=sha256), timeout=60)
            return b"".join([piece.data async for piece in call])

    for info in description.bundles:
        content = asyncio.run(fetch(info.sha256))
        assert hashlib.sha256(content).digest() == info.sha256 and len(content) == info.size_bytes


def test_only_the_session_that_needs_final_states_pays_for_them(loaded: Loaded, target_dir: Path) -> None:
    """What the engine holds of a session depends on the bundle it opened with."""
    engine = loaded.engine.engine  # type: ignore[attr-defined]
    held: dict[str, bool] = {}

    async def look(handle: Handle, kind: str) -> None:
        async with connected(handle.address) as device:
            bundle = bundle_of(loaded, kind)
            await device.open(PROMPT, LENGTH, rows=RowsWanted(), fingerprints=Fingerprints(bundle=bundle))
            await device.propose([5])
            held[kind] = any(slot.final is not None for slot in engine.kv.slots.values())

    with running_verifier(loaded=loaded) as handle:
        asyncio.run(look(handle, "layers"))
        asyncio.run(look(handle, "plain"))
        asyncio.run(look(handle, "final"))
    assert held == {"layers": False, "plain": False, "final": True}


# ----------------------------------------------------------------------------------------------- the table's part

OTHER = RowPlane(0, 6, RowEncoding.INT8, "other.rows", 1)
BOTH = replace(
    SERVED,
    sources=(
        RowSource(PRINTS.bundle, (PLANE,)),
        RowSource(b"F" * 32, (OTHER, replace(OTHER, plane=1)), True),
    ),
    kv_bytes_per_token=10,
    final_bytes_per_token=5,
)
FINAL = Fingerprints(PRINTS.law, PRINTS.tokenizer, b"F" * 32)


def works(bench: Bench) -> list[Any]:
    """Works of all passes so far, which are then forgotten."""
    made = [work for step in bench.steps for work in step.works]
    bench.steps.clear()
    return made


def test_a_session_that_changes_to_final_states_is_built_anew() -> None:
    """Resumed with another drafter: the KV without states is dropped and prefilled with them, and costs more."""
    bench = Bench(BOTH)
    bench.open(opening(rows=ROWS))
    bench.up(draft(1, (3, 14, 15, 92, 65)))
    made = works(bench)
    assert made and not any(work.final for work in made)
    (session,) = bench.table.sessions.values()
    assert bench.table.kv_bytes() == 10 * len(session.kv)
    bench.lose()
    bench.evicted.clear()
    bench.open(opening(epoch=2, rows=ROWS, fingerprints=FINAL), stream=2)
    opened = bench.one(Opened, 2)
    assert opened.attach is Attach.REBUILD and opened.fingerprints.bundle == b"F" * 32
    assert [plane.plane for plane in opened.planes] == [0, 1]
    assert bench.evicted == [session.key]
    made = works(bench)
    assert made and made[0].start == 0 and all(work.final for work in made)
    assert bench.table.kv_bytes() == 15 * len(session.kv)
    # Back to the first drafter: nothing needs to be built, and the states are neither kept nor counted any more.
    bench.lose(2)
    bench.open(opening(epoch=3, rows=ROWS), stream=3)
    assert bench.one(Opened, 3).attach is Attach.LIVE
    assert not session.final and bench.table.kv_bytes() == 10 * len(session.kv) > 0
    bench.table.evict(session)
    assert not session.final


def test_a_pass_under_way_ends_before_the_kv_is_dropped() -> None:
    """A device that comes back with another drafter in the middle of a pass: no rows are asked of the old KV."""
    bench = Bench(BOTH)
    bench.open(opening(rows=ROWS))
    bench.hold = True
    bench.up(draft(1, (3, 14, 15, 92, 65)))
    assert any(session.running for session in bench.table.sessions.values())
    bench.open(opening(epoch=2, rows=ROWS, fingerprints=FINAL), stream=2)
    assert bench.evicted == []
    held = [action for action in bench.held if not hasattr(action, "works")]
    bench.held = [action for action in bench.held if hasattr(action, "works")]
    bench.steps.clear()
    bench.release()
    under_way, *later = works(bench)
    assert not under_way.final and len(bench.evicted) == 1
    assert later and later[0].start == 0 and all(work.final for work in later)
    assert all(action.work.bundle == PRINTS.bundle for action in held)  # type: ignore[union-attr]


class NotingBench(Bench):
    """Notes whose rows were asked for."""

    def __init__(self, served: Served) -> None:
        super().__init__(served)
        self.bundles: list[tuple[int, bytes]] = []

    def _run(self, action: RunStep | RunRows) -> None:
        if isinstance(action, RunRows):
            self.bundles.append((action.work.key, action.work.bundle))
        super()._run(action)


def test_rows_are_asked_for_by_bundle() -> None:
    """Each job says whose rows it wants."""
    bench = NotingBench(BOTH)
    bench.open(opening(rows=ROWS, fingerprints=FINAL))
    bench.open(opening(rows=ROWS, session_id=b"t" * 16), stream=2, principal="q")
    assert set(bench.bundles) == {(1, b"F" * 32), (2, PRINTS.bundle)}


def test_the_context_limit_allows_for_final_states() -> None:
    """The longest session must fit the budget with any drafter served; without such a drafter nothing is set aside."""
    assert Bench(replace(BOTH, kv_budget_bytes=1500)).table.longest == 100
    only = replace(BOTH, sources=BOTH.sources[:1], kv_budget_bytes=1500)
    assert Bench(only).table.longest == 150


def test_sessions_with_final_states_make_room_by_their_own_price() -> None:
    """The budget holds in bytes while sessions of both prices evict each other."""
    served = replace(BOTH, kv_budget_bytes=15 * 90)
    bench = Bench(served)
    long = tuple(range(1, 61))
    for number, prints in enumerate((PRINTS, FINAL, PRINTS, FINAL), start=1):
        bench.open(
            opening(turn=turn(ids=long), session_id=bytes([number] * 16), fingerprints=prints, rows=ROWS),
            stream=number,
        )
        bench.up(draft(1, long), stream=number)
        assert bench.table.kv_bytes() <= served.kv_budget_bytes
    assert bench.evicted


# ------------------------------------------------------------------------------------------------- weights folders


class FakeRows:
    """Says which maker was asked."""

    def __init__(self, name: bytes) -> None:
        self.name = name

    def make(self, work: MakeRows) -> tuple[bytes, ...]:
        """Its name."""
        return (self.name,)


def test_rows_come_from_the_maker_of_the_bundle() -> None:
    """Another drafter's rows are never made in its place; for a bundle that is not served there are none."""
    rows = RowsByBundle({b"a": FakeRows(b"A"), b"b": FakeRows(b"B")})
    job = MakeRows(1, 1, 0, 1, False, RowEncoding.F32)
    made = [rows.make(replace(job, bundle=bundle)) for bundle in (b"a", b"b", b"c", b"")]
    assert made == [(b"A",), (b"B",), (), ()]


def test_weights_of_another_target_are_named_by_field(target_dir: Path, tmp_path: Path) -> None:
    """The first field that differs is in the message."""
    weights = make_weights(tmp_path / "weights", target_dir)
    other = load_target(make_target(tmp_path / "other", intermediate_size=128))
    with pytest.raises(ConfigError, match="intermediate_size 96, here it is 128"):
        load_half(weights, other)


def test_rows_too_wide_for_the_wire_are_refused_at_the_start() -> None:
    """A row must fit a frame even as float32."""
    config = AutoConfig.for_model("llama", hidden_size=MAX_ROW_WIDTH + 32, num_attention_heads=16)
    half = FakeHalf(config, "wide", final=True)
    with pytest.raises(ValueError, match="4128"):
        check_planes(half)
