"""A real target with a drafter, over the wire: rows are the server half's, and the bundle is the one they belong to."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from outrider.cloud.config import ServeConfig
from outrider.cloud.drafters import load_half
from outrider.cloud.events import Prefill
from outrider.cloud.load import load
from outrider.cloud.serve import Loaded
from outrider.shared.codec import decode_rows
from outrider.shared.errors import ConfigError
from outrider.shared.frames import Feature, Fingerprints, RowEncoding, RowPlane, Rows, RowsWanted
from outrider.v1 import verifier_pb2 as pb
from outrider.v1 import verifier_pb2_grpc
from tests.harness import Handle, running_verifier
from tests.raw_device import RawDevice, channel_to, connected
from tests.tiny import make_target
from tests.tiny_weights import make_weights

PROMPT = tuple((17 * i + 5) % 280 for i in range(70))
LENGTH = 12
PLANES = 3
"""Cross-attention K/V of the default drafter's two blocks, and K/V of its one target layer."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A tiny target and random drafter weights for it, with a cache of their own."""
    base = tmp_path_factory.mktemp("drafters")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_CACHE", str(base / "cache"))
        target = make_target(base / "target")
        yield target, make_weights(base / "weights", target)


@pytest.fixture(scope="module")
def loaded(folders: tuple[Path, Path]) -> Loaded:
    """Loaded once; a verifier is started on it per test."""
    return load(ServeConfig(target=str(folders[0]), drafters=(folders[1],), threads=1, kv_budget_mib=64))


def expected_rows(handle: Handle, weights: Path, ids: list[int]) -> list[NDArray[np.float32]]:
    """Rows of all but the last id, computed in one piece from the engine's own KV."""
    worker = handle.engine
    half = load_half(weights, worker.engine.target)
    key, count = -7, len(ids) - 1
    worker.run((Prefill(key, 0, tuple(ids[:-1])),))
    states = worker.engine.states(key, half.needed_layers, 0, count)
    kv = {layer: (states[i, 0], states[i, 1]) for i, layer in enumerate(half.needed_layers)}
    rows = half.rows(kv, None, torch.arange(count))
    worker.evict(key)
    return [values.numpy() for values in rows]


async def drafted_with_rows(handle: Handle, encoding: RowEncoding) -> RawDevice:
    """Draft until the end of the turn and wait for all rows."""
    prints = handle.loaded.description.fingerprints
    async with connected(handle.address) as device:
        await device.open(
            PROMPT, LENGTH,
            rows=RowsWanted(encoding=encoding, bulk_window_bytes=1 << 20),
            fingerprints=Fingerprints(prints.law, prints.tokenizer, prints.bundle),
        )  # fmt: skip
        while len(device.held.ids) < len(PROMPT) + LENGTH:
            await device.propose([5, 6, 7])
        while device.opened and covered(device.rows, device.opened.planes) < len(device.held.ids) - 1:
            await device.until(Rows)
        return device


def covered(frames: list[Rows], planes: tuple[RowPlane, ...]) -> int:
    """Positions for which every plane's row has come."""
    positions = [
        {p for f in frames if f.plane == plane.plane for p in range(f.start, f.start + f.count)}
        for plane in planes
    ]
    return len(set.intersection(*positions))


@pytest.mark.parametrize(
    ("encoding", "tolerance"), [(RowEncoding.F32, 1e-5), (RowEncoding.F16, 2e-3), (RowEncoding.INT8, 1e-2)]
)
def test_rows_over_the_wire_are_the_server_halfs(
    loaded: Loaded, folders: tuple[Path, Path], encoding: RowEncoding, tolerance: float
) -> None:
    """Made piecewise while drafting goes on, in any encoding: the rows of one computation over the whole text."""
    with running_verifier(loaded=loaded) as handle:
        device = asyncio.run(drafted_with_rows(handle, encoding))
        planes = device.opened.planes if device.opened else ()
        expected = handle.run(lambda _: asyncio.to_thread(expected_rows, handle, folders[1], device.held.ids))
        assert len(planes) == len(expected) == PLANES
        for frame in device.rows:
            plane = planes[frame.plane]
            assert plane.encoding is encoding
            got = decode_rows(frame.data, frame.count, plane)
            want = expected[frame.plane][frame.start : frame.start + frame.count]
            assert np.abs(got - want).max() <= tolerance * max(1.0, float(np.abs(want).max()))


def test_the_bundle_described_is_the_one_fetched(loaded: Loaded) -> None:
    """Describe recommends it, FetchBundle delivers it, its digest is the fingerprint, and its planes are offered."""
    description = loaded.description
    (info,) = description.bundles
    assert description.fingerprints.bundle == info.sha256 and info.drafter_kind == "moa"
    assert info.training_step == 7 and info.draft_vocabulary_size == 288 and len(info.planes) == PLANES
    assert Feature.STATE_ROWS in description.features

    async def fetch(address: str) -> bytes:
        async with channel_to(address) as channel:
            call = verifier_pb2_grpc.VerifierStub(channel).FetchBundle(
                pb.FetchBundleRequest(sha256=info.sha256), timeout=60
            )
            return b"".join([piece.data async for piece in call])

    with running_verifier(loaded=loaded) as handle:
        content = asyncio.run(fetch(handle.address))
    assert hashlib.sha256(content).digest() == info.sha256 and len(content) == info.size_bytes


def test_a_bundle_is_exported_once(folders: tuple[Path, Path], loaded: Loaded) -> None:
    """A second start serves the cached file: the same digest, so that devices keep what they have."""
    target, weights = folders
    again = load(
        ServeConfig(target=str(target), drafters=(weights,), threads=1, kv_budget_mib=64, selfcheck=False)
    )
    assert again.description.bundles == loaded.description.bundles


def test_a_device_with_another_bundle_is_served_without_rows(loaded: Loaded) -> None:
    """A wrong or missing bundle is never refused: Opened says that no rows will come, and the text is the same."""
    with running_verifier(loaded=loaded) as handle:

        async def run(bundle: bytes) -> RawDevice:
            async with connected(handle.address) as device:
                await device.open(PROMPT, LENGTH, rows=RowsWanted(), fingerprints=Fingerprints(bundle=bundle))
                while len(device.held.ids) < len(PROMPT) + LENGTH:
                    await device.propose([])
                return device

        texts = []
        for bundle in (b"", b"x" * 32):
            device = asyncio.run(run(bundle))
            assert device.opened and device.opened.planes == () and device.opened.fingerprints.bundle == b""
            assert device.rows == []
            texts.append(device.held.ids)
        assert texts[0] == texts[1]


def test_weights_and_bundles_that_do_not_fit_are_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Weights of another target, no weights at all, a bundle of other weights, and a file that is no bundle."""
    target, weights = folders
    other_target = make_target(tmp_path / "other", num_hidden_layers=6)
    other = make_weights(tmp_path / "weights", target, seed=1)
    bundle = load(
        ServeConfig(target=str(target), drafters=(other,), threads=1, kv_budget_mib=64, selfcheck=False)
    ).description.fingerprints.bundle
    found = next(
        path for path in (folders[0].parent / "cache" / "bundles").iterdir()
        if hashlib.sha256(path.read_bytes()).digest() == bundle
    )  # fmt: skip
    (tmp_path / "noise").write_bytes(b"\x00\x01no bundle")
    (tmp_path / "empty").mkdir()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"target": str(other_target), "drafters": (weights,)}, "--drafter"),
        ({"target": str(target), "drafters": (tmp_path / "empty",)}, "--drafter"),
        ({"target": str(target), "drafters": (weights,), "bundle": found}, "--bundle"),
        ({"target": str(target), "drafters": (weights,), "bundle": tmp_path / "noise"}, "--bundle"),
    ]
    for settings, named in cases:
        with pytest.raises(ConfigError, match=named):
            load(ServeConfig(**settings, threads=1, kv_budget_mib=64, selfcheck=False))
