"""The exported graph is the torch device half, in float32 to 1e-4; the int8 file keeps most best tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from outrider.cloud.export.vocabulary import byte_alphabet, choose_vocabulary, required_ids, resize_vocabulary
from outrider.cloud.moa.device_half import DeviceHalf, DeviceStep
from outrider.cloud.moa.graph import build_graph
from tests.tiny_drafter import random_drafter, tiny_settings

MAX_POSITION = 64


def random_step(n: int, t: int, c: int, seed: int, planes: int = 3, own_layers: int = 4) -> DeviceStep:
    """n new tokens after t slots under a random tree-like mask, c row positions of which some are missing."""
    g = torch.Generator().manual_seed(seed)
    own = torch.rand(n, t + n, generator=g) < 0.7
    own[:, t:] &= torch.ones(n, n, dtype=torch.bool).tril()
    own[:, t:] |= torch.eye(n, dtype=torch.bool)
    valid = torch.rand(c, generator=g) < 0.7
    tli = own.clone()
    tli[:, : min(c, t)] &= ~valid[: min(c, t)]
    tensors = [torch.randn(t, 16, generator=g) for _ in range(2 * own_layers)]
    return DeviceStep(
        ids=torch.randint(64, (n,), generator=g),
        positions=torch.randint(MAX_POSITION, (n,), generator=g),
        own_mask=own,
        tli_mask=tli,
        own_k=tensors[:own_layers],
        own_v=tensors[own_layers:],
        rows=[torch.randn(c, 32, generator=g) for _ in range(planes)],
        row_valid=valid,
        select=torch.randperm(n, generator=g)[: max(1, n // 2)],
    )


def feeds(
    step: DeviceStep, noise: NDArray[np.float32], warmth: float, kappa: float, k: int
) -> dict[str, object]:
    """The graph's inputs for a step."""
    named = {
        name: getattr(step, name).numpy() for name in ("ids", "positions", "own_mask", "row_valid", "select")
    }
    if len(step.rows) > 1:
        named["tli_mask"] = step.tli_mask.numpy()
    for part in ("own_k", "own_v", "rows"):
        named.update({f"{part}.{i}": value.numpy() for i, value in enumerate(getattr(step, part))})
    one = np.ones(1, dtype=np.float32)
    return {
        **named,
        "noise": noise,
        "inv_temperature": one / warmth,
        "inv_kappa": one / kappa,
        "k": np.array([k]),
    }


def open_session(content: bytes) -> onnxruntime.InferenceSession:
    """A one-threaded session."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("num_tli", [0, 2])
@pytest.mark.parametrize(
    ("n", "t", "c"), [(1, 0, 0), (1, 9, 0), (1, 9, 8), (5, 0, 0), (6, 9, 8), (4, 3, 7), (3, 0, 5)]
)
def test_graph_equals_torch(num_tli: int, n: int, t: int, c: int) -> None:
    """Scores, ids, normaliser and new K/V agree with the torch device half for every emptiness and tree mask."""
    drafter, frozen = random_drafter(tiny_settings(num_tli))
    session = open_session(build_graph(drafter, frozen, MAX_POSITION, {}, int8=False).SerializeToString())
    step = random_step(n, t, c, seed=n + t + c, planes=1 + num_tli, own_layers=2 + num_tli)
    noise = np.random.default_rng(5).gumbel(size=32).astype(np.float32)
    warmth, kappa, k = 0.8, 1.3, 5
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, feeds(step, noise, warmth, kappa, k)), strict=True))
    wanted = DeviceHalf(drafter, frozen).step(step)
    scores = wanted.logits / warmth + torch.from_numpy(noise)
    best, places = scores.topk(k)
    np.testing.assert_allclose(found["scores"], best.numpy(), atol=1e-4, rtol=1e-4)
    np.testing.assert_array_equal(
        found["token_ids"], torch.tensor(drafter.settings.draft_vocabulary)[places].numpy()
    )
    np.testing.assert_allclose(
        found["logsumexp"], torch.logsumexp(scores / kappa, -1).numpy(), atol=1e-4, rtol=1e-4
    )
    for part, values in (("new_k", wanted.new_k), ("new_v", wanted.new_v)):
        for layer, value in enumerate(values):
            np.testing.assert_allclose(found[f"{part}.{layer}"], value.numpy(), atol=1e-4, rtol=1e-4)


def test_int8_keeps_most_best_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """The quantised graph agrees with float32 on nearly all best tokens even with random weights."""
    drafter, frozen = random_drafter(tiny_settings())
    session = open_session(build_graph(drafter, frozen, MAX_POSITION, {}, int8=True).SerializeToString())
    noise = np.zeros(32, dtype=np.float32)
    agreed = []
    for seed in range(40):
        step = random_step(1, 9, 8, seed)
        found = session.run(["token_ids"], feeds(step, noise, 1.0, 1.0, 1))[0][0, 0]
        wanted = int(DeviceHalf(drafter, frozen).step(step).logits.argmax())
        agreed.append(found == drafter.settings.draft_vocabulary[wanted])
    with capsys.disabled():
        print(f"\nint8 best-token agreement on random tiny weights: {np.mean(agreed):.2f}")
    assert np.mean(agreed) > 0.7


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
