"""Cached states, losses, block mixes, order of texts, Muon, and the fast forms of linear layers and attention."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.cloud.kinds.fast import fast_attend, fast_linear, forget
from outrider.cloud.kinds.layers import attend
from outrider.cloud.train.blocks import SPANS, BlockMix, draw_rows
from outrider.cloud.train.command import cache_names
from outrider.cloud.train.corpus import Example
from outrider.cloud.train.losses import LossOptions, distill
from outrider.cloud.train.optimiser import BatchedMuon
from outrider.cloud.train.order import batches
from outrider.cloud.train.plan import TrainingPlan
from outrider.cloud.train.states import CorpusStates, StateCache, StateShape
from outrider.cloud.train.validate import summarise
from tests.tiny import make_target


def make_examples(count: int, seed: int = 0) -> list[Example]:
    """Short random texts."""
    generator = np.random.default_rng(seed)
    found: list[Example] = []
    for number in range(count):
        prompt, answer = (
            generator.integers(3, 200, int(generator.integers(*span))) for span in ((3, 7), (8, 15))
        )
        found.append(Example(prompt.astype(np.int32), answer.astype(np.int32), float(number % 2)))
    return found


# ------------------------------------------------------------------------------------------------ cached states


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target folder."""
    return make_target(tmp_path_factory.mktemp("target"))


def config(target: Path) -> object:
    """Its transformers config."""
    return AutoConfig.from_pretrained(target)


def test_states_are_the_targets(tmp_path: Path, target: Path) -> None:
    """Cached states equal a forward pass of each text alone, up to bfloat16 batching noise."""
    examples = make_examples(5)
    extra = StateShape.of(config(target), (0,), (1,))
    cache = StateCache(tmp_path, examples, (1, 3), 2, config(target), extra=extra)
    with pytest.raises(KeyError):
        cache.get(0)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    cache.fill(range(5), model, batch_tokens=40)
    assert cache.missing(range(5)) == []
    for row in range(5):
        states = cache.get(row)
        ids = torch.from_numpy(examples[row].ids.astype(np.int64))[None]
        with torch.no_grad():
            out = model.model(input_ids=ids, use_cache=True, output_hidden_states=True)
        keys = out.cache.layers[3].keys[0].transpose(0, 1).flatten(1)
        assert states.stream is not None
        torch.testing.assert_close(states.kv[:, 1, 0].float(), keys, atol=0.05, rtol=0.02)
        torch.testing.assert_close(states.stream.float(), out.hidden_states[2][0], atol=0.5, rtol=0.02)
        torch.testing.assert_close(states.final.float(), out.last_hidden_state[0], atol=0.05, rtol=0.02)


def test_states_of_other_text_are_refused(tmp_path: Path, target: Path) -> None:
    """A cache belongs to one corpus and one target; fewer layers of it may be read, others not."""
    StateCache(tmp_path, make_examples(4), (1, 3), 2, config(target), target="a")
    StateCache(tmp_path, make_examples(4), (3,), None, config(target), target="a")
    for examples, layers, stream, name in (
        (make_examples(4, seed=1), (3,), 2, "a"),
        (make_examples(4), (2,), 2, "a"),
        (make_examples(4), (3,), 1, "a"),
        (make_examples(4), (3,), 2, "b"),
    ):
        with pytest.raises(ValueError, match="another folder"):
            StateCache(tmp_path, examples, layers, stream, config(target), target=name)


def test_states_survive_the_growth_of_a_corpus(tmp_path: Path, target: Path) -> None:
    """Texts added to a file get states; those of the old texts are not computed again and stay the same."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16).eval()
    small = StateCache(tmp_path, make_examples(3), (1,), None, config(target))
    small.fill(range(3), model)
    before = [small.get(row) for row in range(3)]
    grown = StateCache(tmp_path, make_examples(6), (1,), None, config(target))
    assert grown.missing(range(6)) == [3, 4, 5]
    grown.fill(range(6), model)
    for row, states in enumerate(before):
        assert torch.equal(grown.get(row).kv, states.kv)
        assert torch.equal(grown.get(row).final, states.final)
    assert StateCache(tmp_path, make_examples(3), (1,), None, config(target)).missing(range(3)) == []


def test_files_of_one_name_do_not_share_a_folder(tmp_path: Path, target: Path) -> None:
    """Two files of one name are refused, both named, in one command and over two; cuts and old folders stay apart."""
    one, other = tmp_path / "a" / "train.jsonl", tmp_path / "b" / "train.jsonl.gz"
    with pytest.raises(ValueError, match=rf"{one} and {other}"):
        cache_names([one, tmp_path / "given.jsonl", other], 960)
    assert cache_names([one, tmp_path / "given.v2.jsonl"], 960) == ["train-960", "given-960"]
    folder = tmp_path / "train-960"
    StateCache(folder, make_examples(4), (1,), None, config(target), source=one)
    with pytest.raises(ValueError, match=rf"\({one}\) than {other}"):
        StateCache(folder, make_examples(4, seed=1), (1,), None, config(target), source=other)
    shape = json.loads((folder / "states.json").read_text(encoding="utf-8"))
    del shape["source"]  # as older versions wrote it
    (folder / "states.json").write_text(json.dumps(shape), encoding="utf-8")
    assert StateCache(folder, make_examples(6), (1,), None, config(target), source=one).missing([5]) == [5]
    with pytest.raises(ValueError, match=rf"other texts than {other}"):
        StateCache(folder, make_examples(4, seed=1), (1,), None, config(target), source=other)


def test_several_files_are_one_corpus(tmp_path: Path, target: Path) -> None:
    """Rows are numbered through all files, and each file's cache holds its own."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16).eval()
    files = [make_examples(2), make_examples(3, seed=1)]
    caches = [StateCache(tmp_path / str(i), f, (1,), None, config(target)) for i, f in enumerate(files)]
    states = CorpusStates(caches, [2, 3])
    states.fill([1, 3], model)
    assert states.missing(range(5)) == [0, 2, 4]
    assert torch.equal(states.get(3).kv, caches[1].get(1).kv)
    assert states.size_bytes == sum(len(e) for f in files for e in f) * 2 * (2 * 32 + 64)


# ------------------------------------------------------------------------------------------------ losses


def random_case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, teacher's features, head, weights; more queries than one chunk's step."""
    generator = torch.Generator().manual_seed(0)
    x, teacher = (torch.randn(150, 8, generator=generator) for _ in range(2))
    return x, teacher, torch.randn(20, 8, generator=generator), torch.rand(150, generator=generator)


def plain_loss(x: Tensor, teacher: Tensor, head: Tensor, weights: Tensor, options: LossOptions) -> Tensor:
    """The formula, in one line a term."""
    wanted, log_law = teacher @ head.T, (x @ head.T).log_softmax(-1)
    best = F.one_hot(wanted.argmax(-1), head.shape[0])
    law = (1 - options.argmax_share) * wanted.softmax(-1) + options.argmax_share * best
    places = wanted.topk(min(options.top_k, head.shape[0])).indices
    top = wanted.softmax(-1) * torch.zeros_like(wanted).scatter_(1, places, 1.0)
    return -(weights[:, None] * (options.law * law + options.top * top) * log_law).sum()


@pytest.mark.parametrize(
    "options",
    [
        LossOptions(),
        LossOptions(argmax_share=0.0),
        LossOptions(top=0.7, top_k=3),
        LossOptions(law=0.0, top=1.0),
    ],
)
def test_law_loss_and_gradient_are_autograds(options: LossOptions) -> None:
    """Loss and hand-made gradient equal the plain formula and its derivative."""
    x, teacher, head, weights = random_case()
    mine, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss, agreed = distill(mine, teacher, head, weights, options)
    (2.0 * loss).backward()
    straight = plain_loss(plain, teacher, head, weights, options)
    (2.0 * straight).backward()
    torch.testing.assert_close(loss, straight)
    torch.testing.assert_close(mine.grad, plain.grad, atol=1e-5, rtol=1e-4)
    assert agreed.tolist() == ((x @ head.T).argmax(-1) == (teacher @ head.T).argmax(-1)).tolist()


def test_top_loss_over_all_tokens_is_the_law() -> None:
    """With K the whole vocabulary, the top-K loss is the full cross entropy."""
    x, teacher, head, weights = random_case()
    top, _ = distill(x, teacher, head, weights, LossOptions(law=0.0, top=1.0, top_k=20))
    law, _ = distill(x, teacher, head, weights, LossOptions(argmax_share=0.0))
    torch.testing.assert_close(top, law)


def test_losses_follow_the_plan() -> None:
    """Annealed features fall to nothing at their end, on stays, off is off; a plan without a loss is refused."""
    weights = {
        name: [TrainingPlan(minutes=1, features=name).losses(0, share).features for share in (0.0, 0.25, 0.5)]
        for name in ("annealed", "on", "off")
    }
    assert weights == {"annealed": [1.0, 0.5, 0.0], "on": [1.0] * 3, "off": [0.0] * 3}
    with pytest.raises(ValueError, match="law or top"):
        TrainingPlan(minutes=1, law=0.0)
    with pytest.raises(ValueError, match="minutes or tokens"):
        TrainingPlan()


def test_budgets_and_rates() -> None:
    """The budget that ends first counts; the rate warms up, stays, and falls to its last share."""
    plan = TrainingPlan(minutes=10, tokens=1000, warmup_steps=4, constant_share=0.5, final_share=0.1)
    assert plan.spent(60, 500) == 0.5
    assert plan.spent(600, 0) == plan.spent(0, 2000) == 1.0
    assert plan.rate(0, 0.0) == 0.25
    assert plan.rate(10, 0.5) == 1.0
    assert plan.rate(10, 1.0) == pytest.approx(0.1)
    assert TrainingPlan(minutes=1, staircase=True).staircase_share(0.25) == 0.5
    assert TrainingPlan(minutes=1).staircase_share(0.0) == 0.0


# ------------------------------------------------------------------------------------------------ cuts and order


def test_eagle_spans_hide_nothing() -> None:
    """Every query sees rows of all positions before its own."""
    generator = torch.Generator().manual_seed(3)
    first, rows = draw_rows(10, 60, SPANS["eagle"], generator)
    assert torch.equal(rows, torch.arange(first, 60))


def test_spans_can_be_switched_off() -> None:
    """Without whole-answer spans no cut hides the whole answer or the prompt."""
    generator = torch.Generator().manual_seed(3)
    cuts = [draw_rows(10, 150, SPANS["no-whole"], generator) for _ in range(100)]
    assert all(first == 10 and len(rows.unique()) > 1 for first, rows in cuts)
    with pytest.raises(ValueError, match="whole_share"):
        BlockMix(whole_share=1.2)


def test_a_pass_has_every_text_once_and_batches_of_like_length() -> None:
    """Batches partition the corpus, keep to their size, and differ by turn and seed but not by process."""
    generator = np.random.default_rng(0)
    answers = generator.integers(2, 200, 500).tolist()
    lengths = [a + int(generator.integers(5, 100)) for a in answers]
    rows = list(range(3, 500))
    found = batches(rows, lengths, answers, 1000, 1, 0)
    assert Counter(row for batch in found for row in batch) == Counter(rows)
    sizes = [sum(answers[row] for row in batch) for batch in found]
    assert max(sizes) <= 1000
    assert np.mean(sizes) > 800
    spread = np.mean([np.std([lengths[row] for row in batch]) for batch in found])
    assert spread < 0.3 * np.std(lengths)
    assert found == batches(rows, lengths, answers, 1000, 1, 0)
    assert found != batches(rows, lengths, answers, 1000, 1, 1)
    assert found != batches(rows, lengths, answers, 1000, 2, 0)


def test_offline_agreement_by_depth() -> None:
    """Each offline depth counts in its own bucket; buckets no text reaches are not numbers."""
    matches = torch.zeros(70, dtype=torch.bool)
    matches[:19] = True  # depths 1..19
    matches[63:] = True  # depths 64..70
    quality = summarise([torch.full((70, 8), 4)], [matches])
    assert quality.alone[:3] == (1.0, 0.0, 1.0)
    assert np.isnan(quality.alone[3])
    assert quality.texts == 1


# ------------------------------------------------------------------------------------------------ arithmetic


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 3)])
def test_muon_is_torchs(shape: tuple[int, int]) -> None:
    """Batched Muon moves parameters as torch.optim.Muon does, up to bfloat16 noise in the iteration."""
    generator = torch.Generator().manual_seed(1)
    first = [torch.randn(16 * shape[0], 16 * shape[1], generator=generator) for _ in range(3)]
    mine, theirs = ([torch.nn.Parameter(value.clone()) for value in first] for _ in range(2))
    batched = BatchedMuon(mine, 0.05)
    reference = torch.optim.Muon(theirs, lr=0.05, weight_decay=0.01)
    for _ in range(3):
        gradients = [torch.randn(value.shape, generator=generator) for value in first]
        for optimiser, parameters in ((batched, mine), (reference, theirs)):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            optimiser.step()
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=0.01, rtol=0.0)


def gradient(tensor: Tensor) -> Tensor:
    """Its gradient, which must be there."""
    assert tensor.grad is not None
    return tensor.grad


@pytest.mark.parametrize(("rows", "inside", "outside"), [(1, 8, 24), (256, 24, 8), (300, 8, 8)])
def test_fast_linear_is_linear(rows: int, inside: int, outside: int) -> None:
    """Output and all gradients are those of a linear layer on the same bfloat16 numbers."""
    generator = torch.Generator().manual_seed(2)
    x, given = (torch.randn(rows, n, generator=generator).bfloat16().float() for n in (inside, outside))
    weight = torch.randn(outside, inside, generator=generator).bfloat16().float()
    bias = torch.randn(outside, generator=generator).bfloat16().float()
    fast, plain = ([part.clone().requires_grad_() for part in (x, weight, bias)] for _ in range(2))
    forget()
    for function, parts in ((fast_linear, fast), (F.linear, plain)):
        out = function(*parts)
        out.backward(given.to(out.dtype))
    torch.testing.assert_close(fast_linear(*fast).float(), F.linear(*plain), atol=0.3, rtol=0.02)
    for one, other in zip(map(gradient, fast), map(gradient, plain), strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(one / scale, other / scale, atol=0.01, rtol=0.0)


@pytest.mark.parametrize("kind", ["causal", "band", "rows and block"])
def test_fast_attention_is_attention(kind: str) -> None:
    """Output and all gradients are those of masked softmax attention, whatever keys a query sees."""
    generator = torch.Generator().manual_seed(3)
    n = 300
    m = n if kind != "rows and block" else 2 * n
    place = torch.arange(n)
    mask: Tensor | None = None
    if kind == "band":
        mask = (place[None, :] <= place[:, None]) & (place[None, :] >= place[:, None] // 7 * 7)
    elif kind == "rows and block":
        begins = place[:, None] // 11 * 11
        own = (place[None, :] <= place[:, None]) & (place[None, :] >= begins)
        mask = torch.cat((place[None, :] < begins, own), dim=1)
    sizes = ((n, 4, 8), (m, 2, 8), (m, 2, 8))
    parts = [torch.randn(size, generator=generator) for size in sizes]
    given = torch.randn(n, 32, generator=generator)
    fast, plain = ([part.clone().requires_grad_() for part in parts] for _ in range(2))
    out, wanted = (f(q, k, v, mask) for f, (q, k, v) in ((fast_attend, fast), (attend, plain)))
    out.backward(given)
    wanted.backward(given)
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-4)
    for one, other in zip(fast, plain, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-4)
