"""One tiny real target for all tests of the system, what it says alone, and a verifier that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.cloud.generate import Said, generate, say
from outrider.cloud.selfcheck import open_engine
from outrider.cloud.target import load_target
from outrider.cloud.worker import Worker
from outrider.shared.sampling import Sampling
from outrider.shared.tokenizer import Tokenizer
from tests.harness import Handle, running_verifier
from tests.tiny import make_target


class Target:
    """The tiny target: its tokenizer, and its own text as the oracle."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = Tokenizer.from_folder(folder)
        loaded = load_target(folder)
        self.vocabulary = loaded.vocabulary
        self._worker = Worker(open_engine(loaded)[0])
        self._known: dict[tuple[tuple[int, ...], int, Sampling | None], tuple[int, ...]] = {}

    def alone(self, prompt: tuple[int, ...], count: int, sampling: Sampling | None = None) -> tuple[int, ...]:
        """What `outrider-cloud generate` says."""
        key = (prompt, count, sampling)
        if key not in self._known:
            self._known[key] = tuple(generate(self._worker, prompt, sampling, count, self.tokenizer.stop_ids))
        return self._known[key]

    def told(self, prompt: tuple[int, ...], count: int, sampling: Sampling | None = None) -> tuple[Said, ...]:
        """The same with log-probabilities."""
        stops = self.tokenizer.stop_ids
        return tuple(say(self._worker, prompt, sampling, count, stops, log_probs=True))

    def prompt(self, text: str = "hello there, draft me a line") -> tuple[int, ...]:
        """A user's message in the chat format."""
        return self.tokenizer.chat([{"role": "user", "content": text}])


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """The tiny target."""
    return Target(make_target(tmp_path_factory.mktemp("system") / "llama", seed=3))


@pytest.fixture(scope="session")
def verifier(target: Target) -> Iterator[Handle]:
    """A verifier of the tiny target, shared by the tests that do it no harm."""
    with running_verifier(target_dir=target.folder) as handle:
        yield handle
