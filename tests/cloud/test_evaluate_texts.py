"""The target's texts of an evaluation: the engine's own, with true states, written once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider.cloud.engine import Engine
from outrider.cloud.evaluate.texts import TextRequest, TextStore
from outrider.cloud.generate import generate
from outrider.cloud.selfcheck import probe_ids
from outrider.cloud.target import load_target
from outrider.cloud.worker import Worker
from outrider.shared.errors import EngineFailed
from outrider.shared.sampling import Sampling
from tests.tiny import END_ID, VOCABULARY, make_target

PROMPT = probe_ids(VOCABULARY, 13)
SAMPLINGS = [Sampling(), Sampling(1.0, seed=3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target."""
    return make_target(tmp_path_factory.mktemp("target") / "llama")


def request(sampling: Sampling, tokens: int = 20, stops: tuple[int, ...] = ()) -> TextRequest:
    """A text of the fixed prompt."""
    return TextRequest(prompt=PROMPT, tokens=tokens, stated=12, sampling=sampling, stop_ids=stops)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_text_is_the_targets_own(folder: Path, tmp_path: Path, sampling: Sampling) -> None:
    """Greedy and drawn with coins: what `generate` says, and with a stop id it ends there."""
    alone = list(generate(Worker(Engine(load_target(folder))), PROMPT, sampling, 20))
    store = TextStore(load_target(folder), tmp_path)
    (text,) = store.get([request(sampling)])
    assert (text.prompt, list(text.answer)) == (len(PROMPT), alone)
    end = alone.index(alone[7]) + 1
    (short,) = store.get([request(sampling, stops=(alone[7],))])
    assert list(short.answer) == alone[:end]


def test_texts_written_together_are_those_written_alone(folder: Path, tmp_path: Path) -> None:
    """Eleven prompts of different lengths, two ends, mixed sampling: in batches of eight each is what it is alone."""
    wanted = [
        TextRequest(probe_ids(VOCABULARY, 5 + 3 * n, n), 8 + n % 5, 4, SAMPLINGS[n % 2], (n,))
        for n in range(11)
    ]
    together = TextStore(load_target(folder), tmp_path / "a").get(wanted)
    alone = TextStore(load_target(folder), tmp_path / "b")
    for one, text in zip(wanted, together, strict=True):
        (single,) = alone.get([one])
        assert single.ids == text.ids and torch.equal(single.final, text.final)
        assert all(torch.equal(a, b) for a, b in zip(single.kv(2), text.kv(2), strict=True))


def test_its_states_are_those_of_one_pass_over_it(folder: Path, tmp_path: Path) -> None:
    """Keys, values, final states and laws are what transformers computes over the whole text at once."""
    store = TextStore(load_target(folder), tmp_path)
    (text,) = store.get([request(Sampling(1.0, seed=3))])
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32, local_files_only=True)
    with torch.no_grad():
        out = model(torch.tensor([text.ids]), use_cache=True, output_hidden_states=True)
    assert text.stated == len(PROMPT) + 12
    for layer, stock in enumerate(out.cache.layers):
        keys, values = text.kv(layer)
        assert torch.allclose(keys, stock.keys[0, :, : text.stated], atol=1e-3)
        assert torch.allclose(values, stock.values[0, :, : text.stated], atol=1e-3)
    assert torch.allclose(text.final, out.hidden_states[-1][0, :-1], atol=1e-3)
    laws = out.logits[0].log_softmax(-1)
    for position in (len(PROMPT), len(PROMPT) + 7, len(text.ids) - 1):
        for token in (3, text.ids[position]):
            got = text.surprise(store.head, position, token)
            assert got == pytest.approx(-float(laws[position - 1, token]), abs=2e-3)


def test_a_line_is_judged_by_the_targets_law_after_its_prefix(folder: Path, tmp_path: Path) -> None:
    """Prefixes that share a beginning, grow or shrink: always the law of a fresh pass over prefix and line."""
    store = TextStore(load_target(folder), tmp_path)
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32, local_files_only=True)
    long = probe_ids(VOCABULARY, 300, 2)
    for prefix, line in (
        (PROMPT, (5, 6, 7)),
        ((*PROMPT, 9, 9), (4,)),
        (PROMPT[:6], (1, 2, 3, 4)),
        (long, (8, 9)),
        (long, (9,)),
    ):
        with torch.no_grad():
            laws = model(torch.tensor([[*prefix, *line]])).logits[0].log_softmax(-1)
        expected = [-float(laws[len(prefix) - 1 + place, token]) for place, token in enumerate(line)]
        assert store.judge(prefix, line) == pytest.approx(expected, abs=2e-3)


def test_a_text_is_written_once(folder: Path, tmp_path: Path) -> None:
    """A second store on the folder makes no engine; other tokens, seed or stop ids are other texts."""
    first = TextStore(load_target(folder), tmp_path)
    first.get([request(Sampling()), request(Sampling()), request(Sampling(1.0, seed=3))])
    assert first.written == 2
    again = TextStore(load_target(folder), tmp_path)
    again.get([request(Sampling()), request(Sampling(1.0, seed=3))])
    assert again.written == 0 and again._engine is None
    again.get(
        [
            request(Sampling(), tokens=19),
            request(Sampling(1.0, seed=4)),
            request(Sampling(), stops=(END_ID,)),
        ]
    )
    assert again.written == 3 and not list(tmp_path.glob("*.partial"))


def test_a_prompt_beyond_the_context_is_an_error(folder: Path, tmp_path: Path) -> None:
    """The target cannot write it: EngineFailed, and nothing is left in the folder."""
    store = TextStore(load_target(folder), tmp_path)
    with pytest.raises(EngineFailed):
        store.get([TextRequest(probe_ids(VOCABULARY, 2047), 8, 8, Sampling(), ())])
    assert list(tmp_path.iterdir()) == [] and store.engine.kv.bytes_in_use == 0
