"""The embedded target with the drafter that comes with the repository, served in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from outrider.client.bundle import Bundle, load_bundle
from outrider.client.drafter import Drafter
from outrider.client.drafters.adversarial import AdversarialDrafter
from outrider.client.drafters.ngram import NgramDrafter
from outrider.client.drafters.noisy import NoisyDrafter
from outrider.client.plan import Plan
from outrider.cloud.config import ServeConfig, shipped_drafter
from outrider.cloud.fetch import fetch_target
from outrider.cloud.generate import generate
from outrider.cloud.load import load
from outrider.shared.errors import ConfigError
from outrider.shared.sampling import Sampling
from outrider.shared.tokenizer import Tokenizer
from tests.device import Device
from tests.harness import Handle, running_verifier


@dataclass(frozen=True, slots=True)
class Real:
    """A verifier of the embedded target, its bundle, and what the target says alone."""

    verifier: Handle
    tokenizer: Tokenizer
    bundle: Bundle
    prompt: tuple[int, ...]
    alone: dict[Sampling, tuple[int, ...]]

    def drafter(self, kind: str, sampling: Sampling) -> Drafter:
        """A drafter for the prompt: "moa", "ngram", "adversarial", or the share of its tokens that are wrong."""
        truth, vocabulary = (*self.prompt, *self.alone[sampling]), self.tokenizer.vocabulary
        match kind:
            case "moa":
                return self.bundle.drafter()
            case "ngram":
                return NgramDrafter()
            case "adversarial":
                return AdversarialDrafter(truth, self.tokenizer.stop_ids, 4, vocabulary)
            case _:
                return NoisyDrafter(truth, float(kind), 3, vocabulary)

    def device(self, kind: str, sampling: Sampling, plan: Plan, address: str = "") -> Device:
        """A device that drafts with it."""
        moa = kind == "moa"
        return Device(
            address=address or self.verifier.address,
            tokenizer=self.tokenizer,
            drafter=self.drafter(kind, sampling),
            plan=plan,
            bundle=self.bundle.sha256 if moa else b"",
            num_planes=len(self.bundle.planes) if moa else 0,
        )


@contextmanager
def real_verifier(samplings: Sequence[Sampling], count: int) -> Iterator[Real]:
    """SmolLM2-135M-Instruct in float32 with the shipped drafter's bundle; the target's text first, then the server.

    Raises ConfigError when the repository holds no drafter.
    """
    weights = shipped_drafter()
    if weights is None:
        raise ConfigError("models/", "holds no drafter")
    loaded = load(ServeConfig(drafters=(weights,), threads=1, kv_budget_mib=256))
    tokenizer = Tokenizer.from_folder(fetch_target())
    prompt = tokenizer.chat([{"role": "user", "content": "Name three colours and say them again."}])
    engine = loaded.engine
    alone = {
        sampling: tuple(generate(engine, prompt, sampling, count, tokenizer.stop_ids))
        for sampling in samplings
    }
    served = loaded.bundles.find(loaded.description.fingerprints.bundle)
    if served is None or served.path is None:
        raise ConfigError("models/", "no bundle was made of it")
    bundle = load_bundle(served.path)
    with running_verifier(loaded=loaded) as verifier:
        yield Real(verifier, tokenizer, bundle, prompt, alone)
