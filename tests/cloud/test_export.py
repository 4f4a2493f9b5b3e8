"""The exported graph is the torch device half, in float32 to 1e-4; the int8 file keeps most best tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from outrider.cloud.export.vocabulary import byte_alphabet, choose_vocabulary, required_ids, resize_vocabulary
from outrider.cloud.moa.device_half import DeviceHalf
from outrider.cloud.moa.graph import build_graph
from outrider.cloud.moa.server_half import row_planes
from tests.tiny_drafter import (
    GRID,
    MAX_POSITION,
    GraphHalf,
    feeds,
    open_session,
    random_drafter,
    random_step,
    tiny_settings,
    trained_and_merged,
)

SHAPES = [(1, 0, 0), (1, 9, 0), (1, 9, 8), (5, 0, 0), (6, 9, 8), (4, 3, 7), (3, 0, 5)]


@pytest.mark.parametrize("name", GRID)
def test_graph_equals_torch(name: str) -> None:
    """Scores, ids, normaliser and new K/V agree with the torch device half for every emptiness and tree mask."""
    settings = tiny_settings(**GRID[name])
    drafter, _, merged = trained_and_merged(settings)
    session = open_session(build_graph(drafter, merged, MAX_POSITION, {}, int8=False).SerializeToString())
    inputs = {tensor.name for tensor in session.get_inputs()}
    planes = [plane.width for plane in row_planes(settings)]
    noise = np.random.default_rng(5).gumbel(size=32).astype(np.float32)
    warmth, kappa, k = 0.8, 1.3, 5
    names = [output.name for output in session.get_outputs()]
    for n, t, c in SHAPES:
        step = random_step(settings, planes, n, t, c, seed=n + t + c, missing=1.0 if n == 3 else 0.3)
        given = feeds(step, inputs, noise, warmth, kappa, k)
        found = dict(zip(names, session.run(None, given), strict=True))
        wanted = DeviceHalf(drafter, merged).step(step)
        scores = wanted.logits / warmth + torch.from_numpy(noise)
        best, places = scores.topk(k)
        assert_close(found["scores"], best)
        np.testing.assert_array_equal(
            found["token_ids"], torch.tensor(settings.draft_vocabulary)[places].numpy()
        )
        assert_close(found["logsumexp"], torch.logsumexp(scores / kappa, -1))
        for part, values in (("new_k", wanted.new_k), ("new_v", wanted.new_v)):
            for layer, value in enumerate(values):
                assert_close(found[f"{part}.{layer}"], value)


def assert_close(found: NDArray[np.float32], wanted: torch.Tensor) -> None:
    """Equal to 1e-4."""
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", GRID)
def test_int8_stays_near_float32(name: str) -> None:
    """The quantised graph's scores are off by less than a tenth of their spread, even with random weights."""
    settings = tiny_settings(**GRID[name])
    drafter, _, merged = trained_and_merged(settings)
    planes = [plane.width for plane in row_planes(settings)]
    quantised, exact = GraphHalf(drafter, merged, int8=True), DeviceHalf(drafter, merged)
    errors, agreed = [], []
    for seed in range(20):
        step = random_step(settings, planes, 1, 9, 8, seed)
        found, wanted = quantised.step(step).logits, exact.step(step).logits
        errors.append(((found - wanted).square().mean().sqrt() / wanted.std()).item())
        agreed.append(bool((found.argmax(-1) == wanted.argmax(-1)).all()))
    assert np.mean(errors) < 0.1
    assert np.mean(agreed) >= 0.8


def test_metadata_is_kept() -> None:
    """Whatever metadata the exporter gives is in the file."""
    drafter, frozen = random_drafter(tiny_settings(0))
    model = build_graph(drafter, frozen, MAX_POSITION, {"outrider.kind": "moa"}, int8=True)
    meta = open_session(model.SerializeToString()).get_modelmeta().custom_metadata_map
    assert meta["outrider.kind"] == "moa"


def test_vocabulary_keeps_what_a_device_needs() -> None:
    """Required ids come first, then the frequent ones in order; coverage counts tokens."""
    answers = [np.array([7] * 3 + [9] * 5 + [11], dtype=np.int32)]
    chosen, coverage = choose_vocabulary(answers, {0, 2, 40}, 5)
    assert chosen == (0, 2, 40, 9, 7)
    assert coverage == pytest.approx(8 / 9)
    with pytest.raises(ValueError, match="required"):
        choose_vocabulary(answers, {0, 2, 40}, 2)


def test_a_vocabulary_of_another_size_is_a_prefix_or_an_extension() -> None:
    """Smaller is the beginning of larger, whatever the size asked for; more than the target has is refused."""
    answers = [np.random.default_rng(1).zipf(1.5, 400).clip(0, 199).astype(np.int32)]
    required = {0, 2, 150}
    whole, _ = choose_vocabulary(answers, required, 60)
    for size in (3, 10, 59):
        assert resize_vocabulary(whole, required, size, 200) == whole[:size]
        assert choose_vocabulary(answers, required, size)[0] == whole[:size]
    larger = resize_vocabulary(whole, required, 200, 200)
    assert larger[:60] == whole and sorted(larger) == list(range(200))
    for size in (2, 201):
        with pytest.raises(ValueError, match="draft vocabulary"):
            resize_vocabulary(whole, required, size, 200)


def test_required_ids_can_spell_every_byte() -> None:
    """All 256 byte tokens, specials and stop ids are required."""
    vocab = {symbol: i + 3 for i, symbol in enumerate(byte_alphabet())}
    tokenizer = {"model": {"vocab": {**vocab, "word": 300}}, "added_tokens": [{"id": 0, "special": True}]}
    assert required_ids(tokenizer, [2]) == {0, 2, *range(3, 259)}
    assert len(set(byte_alphabet())) == 256


def test_bundle_of_a_tiny_target(tmp_path: Path) -> None:
    """An export joins a weights folder and a target folder into one file with complete metadata."""
    from outrider.cloud.export.bundle import export_bundle
    from outrider.cloud.moa.weights import save_drafter
    from outrider.cloud.train.command import fresh_drafter
    from tests.tiny import make_target

    target = make_target(tmp_path / "target")
    drafter = fresh_drafter(target, [np.arange(3, 280, dtype=np.int32)], vocabulary_size=280, seed=1)
    save_drafter(drafter, drafter.settings, tmp_path / "weights", torch.bfloat16)
    report = export_bundle(tmp_path / "weights", target, tmp_path / "drafter.onnx")
    meta = open_session(report.path.read_bytes()).get_modelmeta().custom_metadata_map
    wanted = "format kind settings planes own_layers own_width tli_layers vocabulary weights tokenizer_sha256 tokenizer"
    wanted += " stop_ids training_step kappa max_position state"
    assert {f"outrider.{name}" for name in wanted.split()} <= set(meta)
    assert report.vocabulary_size == 280
