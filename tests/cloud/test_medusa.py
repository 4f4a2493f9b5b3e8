"""Medusa: a query is the head as far behind the newest row as it stands, all heads learn at once, the graph agrees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from outrider.cloud.kinds.registry import find_kind
from outrider.cloud.kinds.target import TargetWeights
from outrider.cloud.kinds.weights import load_drafter, save_drafter
from outrider.cloud.medusa.drafter import MedusaDrafter
from outrider.cloud.medusa.kind import KIND
from outrider.cloud.medusa.settings import MedusaSettings
from outrider.cloud.train.losses import LossOptions, Teachers, law_losses
from tests.tiny import make_target
from tests.tiny_features import (
    HIDDEN,
    VOCABULARY,
    feature_text,
    medusa_settings,
    random_features,
    random_medusa,
)

LENGTH, PROMPT, HEADS = 15, 4, 4
IDS = torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("depth", [1, 3, 5, LENGTH])
def test_blocks_are_drafting_from_every_start(depth: int) -> None:
    """At every depth after every last row the parallel pass is that head on that row; beyond the last head nothing."""
    drafter, frozen = random_medusa(medusa_settings())
    features = random_features(LENGTH)
    for offset in range(min(depth, LENGTH - PROMPT)):
        text = feature_text(IDS, features, sorted({PROMPT, *range(PROMPT + offset, LENGTH, depth)}))
        with torch.no_grad():
            out = drafter([text, text], frozen)
        assert out.valid is not None
        for query, begin in enumerate(text.rows.tolist()):
            head = PROMPT + query - begin
            for place in (query, query + text.num_queries):
                assert bool(out.valid[place]) == (head < HEADS)
                if head < HEADS:
                    wanted = drafter.heads[head](features[begin - 1 : begin])[0]
                    torch.testing.assert_close(out.final[place], wanted, atol=1e-5, rtol=1e-5)


def test_without_rows_nothing_is_predicted() -> None:
    """A text without any true state has no valid query, and what stands there is finite."""
    drafter, frozen = random_medusa(medusa_settings())
    out = drafter([feature_text(IDS, random_features(LENGTH), [0])], frozen)
    assert out.valid is not None and not out.valid.any() and torch.isfinite(out.final).all()


def test_all_heads_learn_at_all_positions_with_decaying_weight() -> None:
    """The loss is the sum of each head's own, with weights 0.8^k, from the last prompt token's state on."""
    drafter, frozen = random_medusa(medusa_settings())
    features = random_features(LENGTH)
    text, teachers = feature_text(IDS, features, [PROMPT, 7, 9]), _teachers(features)
    options = LossOptions(features=1.0)
    found = drafter.training_loss([text], teachers, frozen, options)
    total = torch.zeros(())
    for number, head in enumerate(drafter.heads.children()):
        for position in range(PROMPT + number, LENGTH - 1):
            query = position - PROMPT
            one = Teachers(teachers.final[query : query + 1], teachers.weights[query : query + 1])
            drafted = head(features[position - 1 - number : position - number])
            total = total + 0.8**number * law_losses(drafted, one, frozen.head.weight, LossOptions()).law
    assert found.total.item() == pytest.approx(total.item(), rel=1e-4)
    assert found.feature.item() == 0.0
    assert 0.0 <= found.agreed.item() <= 1.0


def test_training_changes_neither_states_nor_teachers_and_reaches_every_head() -> None:
    """Trap B7: states and teachers keep their bits through a step; also the deepest of several texts' heads learn."""
    drafter, frozen = random_medusa(medusa_settings())
    features = random_features(LENGTH)
    texts = [feature_text(IDS, features, [PROMPT]), feature_text(IDS[:6], features[:6], [PROMPT])]
    one = _teachers(features)
    teachers = Teachers(
        torch.cat((one.final, features[PROMPT:6])), torch.cat((one.weights, torch.tensor([0.1, 0.0])))
    )
    kept = [tensor.clone() for tensor in (features, teachers.final, teachers.weights)]
    drafter.training_loss(texts, teachers, frozen, LossOptions(features=1.0)).total.backward()
    for before, after in zip(kept, (features, teachers.final, teachers.weights), strict=True):
        assert torch.equal(before, after)
    assert all(parameter.grad is not None for parameter in drafter.parameters())


def test_a_fresh_drafter_drafts_what_the_targets_head_says(tmp_path: Path) -> None:
    """Every block starts without effect, as upstream, and still learns from the first step."""
    from transformers import AutoConfig

    folder = make_target(tmp_path / "target")
    settings = KIND.shape(AutoConfig.from_pretrained(str(folder)), num_medusa_heads=2, num_blocks=3)
    drafter = MedusaDrafter(settings)
    KIND.initialise(drafter, TargetWeights(folder), 1)
    states = torch.randn(5, settings.hidden_size)
    for head in drafter.heads:
        assert torch.equal(head(states), states)
        head(states).square().sum().backward()
    assert all(bool(parameter.grad.any()) for parameter in drafter.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("warm", [False, True])
def test_graph_equals_torch(warm: bool) -> None:
    """Scores, ids and normaliser of every head agree with torch, each head under the noise of its own position."""
    drafter, frozen = random_medusa(medusa_settings())
    model = KIND.build_graph(drafter, frozen, 64, {"outrider.kind": "medusa"}, int8=False).SerializeToString()
    noise = np.random.default_rng(5).gumbel(size=(HEADS, 32)).astype(np.float32) * warm
    feature, warmth, kappa, k = random_features(1), 0.8 if warm else 1.0, 1.3, 5
    found = _run(model, feature, noise, warmth, kappa, k)
    with torch.no_grad():
        drafted = torch.cat([head(feature) for head in drafter.heads])
        scores = frozen.head(drafted) / warmth + torch.from_numpy(noise)
    best, places = scores.topk(k)
    np.testing.assert_allclose(found["scores"], best.numpy(), atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(
        found["logsumexp"], torch.logsumexp(scores / kappa, -1).numpy(), atol=1e-4, rtol=1e-4
    )
    vocabulary = torch.tensor(drafter.settings.draft_vocabulary)
    np.testing.assert_array_equal(found["token_ids"], vocabulary[places].numpy())


def test_int8_keeps_most_best_tokens() -> None:
    """The quantised graph agrees with torch on nearly all best tokens even with random weights."""
    drafter, frozen = random_medusa(medusa_settings())
    model = KIND.build_graph(drafter, frozen, 64, {}, int8=True).SerializeToString()
    agreed = []
    for seed in range(20):
        feature = random_features(1, seed)
        found = _run(model, feature, np.zeros((HEADS, 32), np.float32), 1.0, 1.0, 1)["token_ids"][:, 0]
        with torch.no_grad():
            wanted = frozen.head(torch.cat([head(feature) for head in drafter.heads])).argmax(-1)
        agreed.append((found == np.array(drafter.settings.draft_vocabulary)[wanted.numpy()]).mean())
    assert np.mean(agreed) > 0.7


def test_weights_survive_the_folder(tmp_path: Path) -> None:
    """Saved and loaded drafters predict the same, in float32 and to int8 precision."""
    drafter, frozen = random_medusa(medusa_settings())
    text = feature_text(IDS, random_features(LENGTH), [PROMPT, 8])
    save_drafter(drafter, drafter.settings, tmp_path, torch.float32)
    again = load_drafter(tmp_path)
    assert again.settings == drafter.settings
    torch.testing.assert_close(again([text], frozen).final, drafter([text], frozen).final)
    save_drafter(drafter, drafter.settings, tmp_path, torch.float32, int8=True)
    kept, stored = drafter.state_dict(), load_drafter(tmp_path).state_dict()
    for name, value in kept.items():
        torch.testing.assert_close(stored[name], value, atol=0.01, rtol=0)


def test_the_kind_is_registered_and_reads_final_states() -> None:
    """The registry finds the kind, its settings survive JSON, and its server half hands over final states."""
    kind = find_kind("medusa")
    settings = medusa_settings()
    assert kind.settings_class.from_json(settings.to_json()) == settings
    assert settings.needs_final and settings.needed_layers == () and settings.own_layers == 0
    half = kind.server_half(random_medusa(settings)[0])
    states = random_features(3)
    assert torch.equal(half.rows({}, states, torch.arange(3))[0], states)
    assert [plane.width for plane in half.planes] == [HIDDEN]


@pytest.mark.parametrize("change", [{"num_medusa_heads": 0}, {"num_blocks": 65}, {"head_decay": 0.0}])
def test_impossible_settings_are_named(change: dict[str, object]) -> None:
    """Settings that cannot be are refused with the field's name."""
    values = {**{f: getattr(medusa_settings(), f) for f in MedusaSettings.__dataclass_fields__}, **change}
    with pytest.raises(ValueError, match=next(iter(change))):
        MedusaSettings(**values)


def _teachers(features: torch.Tensor) -> Teachers:
    """Equal weights on all answer positions but the last."""
    weights = torch.ones(LENGTH - PROMPT)
    weights[-1] = 0.0
    return Teachers(features[PROMPT:].clone(), weights / weights.sum())


def _run(
    model: bytes, feature: torch.Tensor, noise: np.ndarray, warmth: float, kappa: float, k: int
) -> dict[str, np.ndarray]:
    """Outputs by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    one = np.ones(1, dtype=np.float32)
    feeds = {
        "feature": feature.numpy(),
        "noise": noise,
        "inv_temperature": one / warmth,
        "inv_kappa": one / kappa,
        "k": np.array([k]),
    }
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True))
