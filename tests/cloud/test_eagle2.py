"""EAGLE-2: blocks are drafting from every start, training is its own recipe, the graph is the torch device half."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from outrider.cloud.eagle2.device_half import DeviceHalf, DeviceStep
from outrider.cloud.eagle2.kind import KIND
from outrider.cloud.eagle2.settings import Eagle2Settings
from outrider.cloud.export.builder import quantise_rows
from outrider.cloud.kinds.registry import find_kind
from outrider.cloud.kinds.target import TargetWeights
from outrider.cloud.kinds.weights import load_drafter, save_drafter
from outrider.cloud.train.losses import LossOptions, Teachers
from tests.tiny import make_target
from tests.tiny_features import (
    HIDDEN,
    VOCABULARY,
    Device,
    eagle2_settings,
    feature_text,
    random_eagle2,
    random_features,
)

LENGTH, PROMPT, MAX_POSITION = 12, 4, 64
IDS = torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("depth", [1, 4, LENGTH])
def test_blocks_are_drafting_from_every_start(num_layers: int, depth: int) -> None:
    """One parallel pass gives at every depth after every last row what the device computes token by token."""
    drafter, frozen = random_eagle2(eagle2_settings(num_layers))
    features = random_features(LENGTH)
    for offset in range(min(depth, LENGTH - PROMPT)):
        begins = sorted({PROMPT, *range(PROMPT + offset, LENGTH, depth)})
        text = feature_text(IDS, features, begins)
        with torch.no_grad():
            parallel = frozen.head(drafter([text], frozen).final)
        for begin in begins:
            device = Device(DeviceHalf(drafter, frozen), features, begin)
            device.feed(IDS[:begin])
            block = [i for i in range(PROMPT, LENGTH) if text.rows[i - PROMPT] == begin]
            drafted = device.feed(IDS[block[0] : block[-1] + 1])
            seen = parallel[block[0] - PROMPT : block[-1] - PROMPT + 1]
            torch.testing.assert_close(seen, drafted, atol=1e-4, rtol=1e-4)


def test_withheld_rows_are_a_device_without_rows() -> None:
    """A text without any true feature is finite and equals a device that goes on from its own from the first token."""
    drafter, frozen = random_eagle2(eagle2_settings())
    features = random_features(LENGTH)
    with torch.no_grad():
        parallel = frozen.head(drafter([feature_text(IDS, features, [0])], frozen).final)
    device = Device(DeviceHalf(drafter, frozen), features, 0)
    torch.testing.assert_close(parallel, device.feed(IDS), atol=1e-4, rtol=1e-4)
    assert torch.isfinite(parallel).all()


def test_queries_may_begin_inside_a_block_and_texts_do_not_touch_each_other() -> None:
    """Queries that start later are the same queries, and a batch of ragged texts gives what each gives alone."""
    drafter, frozen = random_eagle2(eagle2_settings())
    texts = [feature_text(IDS[:n], random_features(n, n), [3, 7], 5) for n in (9, 12, 11)]
    texts.append(feature_text(IDS[:6], random_features(6), [0]))
    whole = feature_text(IDS, random_features(12, 12), [3, 7])
    with torch.no_grad():
        together = drafter(texts, frozen).final
        alone = torch.cat([drafter([text], frozen).final for text in texts])
        later = drafter([whole], frozen).final[2:]
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(drafter([texts[1]], frozen).final, later)


def test_training_pass_without_noise_is_inference_at_depth_0() -> None:
    """With noise 0 the shifted pass at each position equals a block that begins there: the shift is by exactly one."""
    drafter, frozen = random_eagle2(eagle2_settings(feature_noise=0.0))
    features = random_features(LENGTH)
    text = feature_text(IDS, features, list(range(PROMPT, LENGTH)))
    before = torch.cat((drafter.start, features[:-1]))
    with torch.no_grad():
        trained = drafter.shifted_pass([text], [before], frozen)
        drafted = drafter([text], frozen).final
    torch.testing.assert_close(trained, drafted, atol=1e-5, rtol=1e-5)
    losses = drafter.training_loss([text], _teachers(features), frozen, LossOptions(features=1.0))
    by_hand = torch.nn.functional.smooth_l1_loss(drafted[:-1], features[PROMPT:-1])
    assert losses.feature.item() == pytest.approx(0.1 * by_hand.item(), rel=1e-4)


def test_trap_b7_noise_leaves_teachers_and_states_untouched() -> None:
    """Trap B7: the noise of training is on a copy: ids, states and teachers keep their bits, also through backward."""
    drafter, frozen = random_eagle2(eagle2_settings(feature_noise=0.5))
    features = random_features(LENGTH)
    text, teachers = feature_text(IDS, features, [PROMPT]), _teachers(features)
    kept = [tensor.clone() for tensor in (text.ids, features, teachers.final, teachers.weights)]
    drafter.requires_grad_(True)
    drafter.training_loss([text], teachers, frozen, LossOptions(features=1.0)).total.backward()
    for before, after in zip(kept, (text.ids, features, teachers.final, teachers.weights), strict=True):
        assert torch.equal(before, after)
    assert drafter.from_feature.weight.grad is not None


def test_trap_b7_validation_is_free_of_noise() -> None:
    """Trap B7: the inference condition has no noise, whatever training uses; training with a seed repeats itself."""
    features = random_features(LENGTH)
    text = feature_text(IDS, features, [PROMPT, 9])
    loud, frozen = random_eagle2(eagle2_settings(feature_noise=5.0))
    quiet, _ = random_eagle2(eagle2_settings(feature_noise=0.0))
    assert torch.equal(loud([text], frozen).final, quiet([text], frozen).final)
    losses = [
        [
            d.training_loss([text], _teachers(features), frozen, LossOptions(seed=n)).total.item()
            for n in (1, 1, 2)
        ]
        for d in (loud, quiet)
    ]
    assert losses[0][0] == losses[0][1] != losses[0][2]
    assert len({*losses[1]}) == 1


def test_a_text_without_rows_trains_without_features() -> None:
    """Where rows are withheld altogether, the training pass does not look at the target's states either."""
    drafter, frozen = random_eagle2(eagle2_settings())
    losses = []
    for seed in (1, 2):
        text = feature_text(IDS, random_features(LENGTH, seed), [0])
        teachers = Teachers(random_features(LENGTH), torch.full((LENGTH,), 1 / LENGTH))
        losses.append(drafter.training_loss([text], teachers, frozen, LossOptions()).total.item())
    assert losses[0] == losses[1]


@pytest.mark.parametrize(("n", "t"), [(1, 0), (1, 9), (5, 0), (6, 9)])
def test_graph_equals_torch(n: int, t: int) -> None:
    """Scores, ids, normaliser, features and new K/V agree with the torch device half, unknown features included."""
    drafter, frozen = random_eagle2(eagle2_settings())
    g = torch.Generator().manual_seed(n + t)
    own = torch.rand(n, t + n, generator=g) < 0.7
    own[:, t:] = own[:, t:].tril() | torch.eye(n, dtype=torch.bool)
    features = random_features(n, n + t)
    features[0] = 0.0
    cached = [torch.randn(t, 16, generator=g) for _ in range(4)]
    step = DeviceStep(
        ids=torch.randint(VOCABULARY, (n,), generator=g),
        positions=torch.randint(MAX_POSITION, (n,), generator=g),
        features=features,
        own_mask=own,
        own_k=cached[:2],
        own_v=cached[2:],
        select=torch.randperm(n, generator=g)[: max(1, n // 2)],
    )
    noise, warmth, kappa, k = np.random.default_rng(5).gumbel(size=32).astype(np.float32), 0.8, 1.3, 5
    found = _run_graph(drafter, frozen, step, noise, warmth, kappa, k)
    wanted = DeviceHalf(drafter, frozen).step(step)
    scores = wanted.logits / warmth + torch.from_numpy(noise)
    best, places = scores.topk(k)
    expected = {
        "scores": best,
        "logsumexp": torch.logsumexp(scores / kappa, -1),
        "new_features": wanted.features,
        **{f"new_k.{layer}": value for layer, value in enumerate(wanted.new_k)},
        **{f"new_v.{layer}": value for layer, value in enumerate(wanted.new_v)},
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value.numpy(), atol=1e-4, rtol=1e-4)
    vocabulary = torch.tensor(drafter.settings.draft_vocabulary)
    np.testing.assert_array_equal(found["token_ids"], vocabulary[places].numpy())


def test_rows_are_the_targets_final_states() -> None:
    """The server half hands over final states, one plane with a scale per 64 values, and nothing without them."""
    drafter, _ = random_eagle2(eagle2_settings())
    half = KIND.server_half(drafter)
    features = random_features(5)
    (rows,) = half.rows({}, features.to(torch.bfloat16), torch.arange(5))
    torch.testing.assert_close(rows, features.to(torch.bfloat16).float(), atol=0, rtol=0)
    (plane,) = half.planes
    assert (plane.plane, plane.width, plane.parts) == (0, HIDDEN, 1)
    wide = KIND.server_half(random_eagle2(replace(eagle2_settings(), draft_vocabulary=()))[0])
    assert wide.fingerprint() == half.fingerprint()
    with pytest.raises(ValueError, match="final states"):
        half.rows({}, None, torch.arange(5))


def test_weights_survive_the_folder(tmp_path: Path) -> None:
    """Saved and loaded drafters predict the same; stored int8 layers quantise to the same values again."""
    drafter, frozen = random_eagle2(eagle2_settings())
    text = feature_text(IDS, random_features(LENGTH), [PROMPT, 8])
    save_drafter(drafter, drafter.settings, tmp_path / "plain", torch.float32)
    again = load_drafter(tmp_path / "plain")
    assert again.settings == drafter.settings
    torch.testing.assert_close(again([text], frozen).final, drafter([text], frozen).final)
    save_drafter(drafter, drafter.settings, tmp_path / "small", torch.float32, int8=True)
    small = load_drafter(tmp_path / "small").state_dict()
    for name in ("layers.0.q_proj.weight", "layers.1.down_proj.weight"):
        kept, _ = quantise_rows(drafter.state_dict()[name].numpy())
        np.testing.assert_array_equal(quantise_rows(small[name].numpy())[0], kept)
    assert torch.equal(small["from_feature.weight"], drafter.state_dict()["from_feature.weight"])


@pytest.mark.parametrize("mlp_size", [None, 64, 128])
def test_a_fresh_drafter_is_made_of_its_target(tmp_path: Path, mlp_size: int | None) -> None:
    """Layers are the target's last ones, also where the MLP is narrower or wider; RMSNorm weights are the target's."""
    from transformers import AutoConfig

    folder = make_target(tmp_path / "target")
    settings = KIND.shape(AutoConfig.from_pretrained(str(folder)), num_layers=2, mlp_size=mlp_size)
    drafter, weights = KIND.build(settings), TargetWeights(folder)
    KIND.initialise(drafter, weights, 1)
    state = drafter.state_dict()
    assert torch.equal(state["norm.weight"], weights.get("model.norm.weight"))
    for number in (0, 1):
        prefix = f"model.layers.{2 + number}"
        assert torch.equal(
            state[f"layers.{number}.q_proj.weight"], weights.get(f"{prefix}.self_attn.q_proj.weight")
        )
        up, theirs = state[f"layers.{number}.up_proj.weight"], weights.get(f"{prefix}.mlp.up_proj.weight")
        shared = min(len(up), len(theirs))
        assert torch.equal(up[:shared], theirs[:shared])
        assert not state[f"layers.{number}.down_proj.weight"][:, shared:].any()


def test_the_kind_is_registered() -> None:
    """The registry finds the kind, and its settings survive JSON."""
    kind = find_kind("eagle2")
    settings = eagle2_settings()
    assert kind.settings_class.from_json(settings.to_json()) == settings
    assert settings.needs_final and settings.needed_layers == () and settings.own_layers == 2


@pytest.mark.parametrize(
    "change", [{"num_layers": 0}, {"num_layers": 7}, {"mlp_size": 0}, {"feature_noise": -1.0}]
)
def test_impossible_settings_are_named(change: dict[str, object]) -> None:
    """Settings that cannot be are refused with the field's name."""
    values = {**{f: getattr(eagle2_settings(), f) for f in Eagle2Settings.__dataclass_fields__}, **change}
    with pytest.raises(ValueError, match=next(iter(change))):
        Eagle2Settings(**values)


def _teachers(features: torch.Tensor) -> Teachers:
    """Equal weights on all answer positions but the last."""
    weights = torch.ones(LENGTH - PROMPT)
    weights[-1] = 0.0
    return Teachers(features[PROMPT:].clone(), weights / weights.sum())


def _run_graph(drafter, frozen, step, noise, warmth, kappa, k):  # type: ignore[no-untyped-def]
    """Outputs by name of the float32 graph."""
    model = KIND.build_graph(drafter, frozen, MAX_POSITION, {}, int8=False).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    one = np.ones(1, dtype=np.float32)
    feeds = {
        name: getattr(step, name).numpy() for name in ("ids", "positions", "features", "own_mask", "select")
    }
    for part in ("own_k", "own_v"):
        feeds.update({f"{part}.{i}": value.numpy() for i, value in enumerate(getattr(step, part))})
    feeds |= {"noise": noise, "inv_temperature": one / warmth, "inv_kappa": one / kappa, "k": np.array([k])}
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True))
