"""Targets of other families than the embedded one: train, export, serve, draft; the text is the target's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from outrider.client.bundle import load_bundle
from outrider.client.drafter import Drafter
from outrider.client.drafters.hybrid import HybridDrafter
from outrider.cloud.cli import app
from outrider.shared.sampling import Sampling
from tests.device import Device, chain, tree
from tests.harness import running_verifier
from tests.system.conftest import Target
from tests.tiny import END_ID, VOCABULARY, make_target

ANSWER = 28
LETTERS = 24
FIRST = 68
"""Id of the letter that stands for 0 (byte tokens begin behind the three specials)."""


@cache
def walk() -> torch.Tensor:
    """The toy language: the next letter, given the last one and whether the one before was even, [LETTERS, 2]."""
    generator = torch.Generator().manual_seed(11)
    return torch.randint(LETTERS, (LETTERS, 2), generator=generator)


def spoken(start: int, count: int) -> list[int]:
    """A sentence of the toy language: ids that follow the letter ``start``."""
    letters = [0, start]
    for _ in range(count):
        letters.append(int(walk()[letters[-1], letters[-2] % 2]))
    return [FIRST + letter for letter in letters[2:]]


def words() -> list[str]:
    """Questions of one length in tokens, so that they make one batch; the last letter decides the answer."""
    return ["".join(chr(65 + n) for n in (m // LETTERS, m * 7 % 26, m % LETTERS)) for m in range(72)]


def speaking_target(folder: Path, family: str) -> Path:
    """A tiny target that has learnt the toy language in some seconds; biases, where it has them, are large."""
    make_target(folder, family, seed=4)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if name.endswith("bias"):
                parameter.normal_(0.0, 1.0)
            elif parameter.ndim == 2:
                parameter.mul_(0.25)
    ids = torch.tensor([[*asked(folder, word), *spoken(ord(word[-1]) - 65, ANSWER)] for word in words()])
    optimiser = torch.optim.AdamW(model.parameters(), 4e-3)
    for step in range(70):
        rows = torch.randperm(len(ids), generator=torch.Generator().manual_seed(step))[:24]
        optimiser.zero_grad()
        logits = model(ids[rows]).logits[:, -ANSWER - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[rows, -ANSWER:].flatten())
        loss.backward()
        optimiser.step()
    model.save_pretrained(folder)
    return folder


def asked(folder: Path, word: str) -> tuple[int, ...]:
    """A question in the chat format."""
    return tokenizer(folder).chat([{"role": "user", "content": word}])


@cache
def tokenizer(folder: Path) -> Any:
    """The target's."""
    from outrider.shared.tokenizer import Tokenizer

    return Tokenizer.from_folder(folder)


@torch.no_grad()
def write_corpus(folder: Path, path: Path) -> None:
    """What the target answers to every question, greedily, as ready rows."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = torch.tensor([asked(folder, word) for word in words()])
    ids = prompts
    for _ in range(ANSWER):
        ids = torch.cat((ids, model(ids).logits[:, -1:].argmax(-1)), dim=1)
    rows = []
    for prompt, answer in zip(prompts.tolist(), ids[:, prompts.shape[1] :].tolist(), strict=True):
        end = answer.index(END_ID) + 1 if END_ID in answer else len(answer)
        rows.append({"prompt_ids": prompt, "answer_ids": answer[:end], "temperature": 0.0})
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


@dataclass(frozen=True)
class Made:
    """What two commands made of a target."""

    target: Path
    weights: Path
    bundle: Path


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a family's target and its corpus, made once."""

    @cache
    def make(family: str) -> Path:
        folder = speaking_target(tmp_path_factory.mktemp(family), family)
        write_corpus(folder, folder / "corpus.jsonl")
        return folder

    return make


def train_and_export(target: Path, folder: Path, kind: str) -> Made:
    """`outrider-cloud train KIND` for three seconds, then `export`."""
    made = Made(target, folder / "weights", folder / "drafter.onnx")
    words = ["train", kind, str(target / "corpus.jsonl"), "--out", str(made.weights)]
    words += ["--target", str(made.target), "--minutes", "0.05", "--vocabulary", str(VOCABULARY)]
    words += ["--batch-tokens", "220", "--max-length", "96", "--held-out", "12", "--no-compile"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    words = ["export", str(made.weights), str(made.bundle), "--target", str(made.target)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return made


@pytest.mark.parametrize(
    ("family", "kind"), [("qwen2", "moa"), ("mistral", "glide"), ("qwen2", "independent")]
)
def test_another_family_from_training_to_its_own_text(
    targets: Callable[[str], Path], family: str, kind: str, tmp_path: Path
) -> None:
    """Chains and trees, greedy and sampled, of the model alone and with copies: the target's text, drafts accepted."""
    made = train_and_export(targets(family), tmp_path, kind)
    target = Target(made.target)
    bundle = load_bundle(made.bundle)
    prompt = asked(made.target, words()[40])
    with running_verifier(made.target, made.bundle, drafter=made.weights) as verifier:
        for hybrid, plan, sampling in (
            (False, chain(4), None),
            (True, tree(10, 4), None),
            (False, tree(10, 4), Sampling(0.9, seed=5)),
        ):
            model: Drafter = bundle.drafter()
            device = Device(
                address=verifier.address,
                tokenizer=target.tokenizer,
                drafter=HybridDrafter(model) if hybrid else model,
                plan=plan,
                bundle=bundle.sha256,
                num_planes=len(bundle.planes),
            )
            answer = device.ask(prompt, 24, sampling)
            assert answer.ids == target.alone(prompt, 24, sampling)
            assert answer.finished is not None and answer.finished.verified
            stats = answer.finished.stats
            assert stats.accepted > 0
            assert (model.counters.rows > 0) == bool(bundle.planes)
