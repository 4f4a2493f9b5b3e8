"""What the target says to a prompt, and its states along it: computed once, then read from a folder.

The text is the engine's own (`outrider.cloud.generate` with empty drafts: what every served session ends up with),
greedy, or above temperature 0 drawn with the shared coins of a seed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from outrider.cloud.engine import Engine, Request
from outrider.cloud.events import Verified, Verify
from outrider.cloud.fetch import cache_dir
from outrider.cloud.local import no_verdict
from outrider.cloud.target import Target
from outrider.cloud.worker import Worker
from outrider.shared import frames
from outrider.shared.draft import Draft
from outrider.shared.errors import EngineFailed
from outrider.shared.sampling import Sampling

_VERSION = 1
_KV_BYTES = 1 << 30
BATCH = 8
"""Texts written together: the engine pads a pass to eight rows anyway."""
_keys = itertools.count(-2_000_002, -1)


def default_folder() -> Path:
    """Where texts are kept unless said otherwise."""
    return cache_dir() / "evaluate" / "texts"


@dataclass(frozen=True, slots=True)
class TextRequest:
    """What to write."""

    prompt: tuple[int, ...]
    tokens: int
    """Tokens of the answer at most."""
    stated: int
    """Of them, tokens whose keys and values are kept: state rows are never needed further on."""
    sampling: Sampling
    stop_ids: tuple[int, ...]


@dataclass(slots=True)
class _Writing:
    """A text on its way."""

    request: TextRequest
    path: Path
    key: int
    ids: list[int] = field(default_factory=list)
    start: int = 0
    """Positions the target has read."""

    @property
    def done(self) -> bool:
        return len(self.ids) >= self.request.tokens or bool(
            self.ids and self.ids[-1] in self.request.stop_ids
        )

    def work(self) -> Verify:
        """The next step: everything not read yet, and no draft."""
        sampling = self.request.sampling
        rule = frames.Rule("greedy" if sampling.greedy else "coupled")
        pending = (self.ids[-1],) if self.ids else self.request.prompt
        return Verify(self.key, self.start, pending, Draft.chain(()), sampling, rule, final=True)

    def add(self, token: int) -> None:
        """A step was made."""
        self.start += 1 if self.ids else len(self.request.prompt)
        self.ids.append(token)


class TargetText:
    """A prompt, the target's answer, and the states it left (read from the file when asked for)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with safe_open(path, framework="pt") as file:
            found = file.metadata()
            ids: Tensor = file.get_tensor("ids")
            self.log_sum: NDArray[np.float32] = file.get_tensor("log_sum").numpy()
            self.final: Tensor = file.get_tensor("final")
        self.ids: tuple[int, ...] = tuple(ids.tolist())
        """Prompt and answer."""
        self.prompt = int(found["prompt"])
        """Tokens of the prompt."""
        self.stated = int(found["stated"])
        """Positions whose keys and values are here."""

    @property
    def answer(self) -> tuple[int, ...]:
        """The target's own tokens."""
        return self.ids[self.prompt :]

    def kv(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys (rotated) and values of one layer, each [kv_heads, stated, head_dim]."""
        with safe_open(self.path, framework="pt") as file:
            both: Tensor = file.get_tensor(f"kv.{layer}")
        return both[0], both[1]

    def surprise(self, head: Tensor, position: int, token: int) -> float:
        """-log law(token at ``position``) after the text before it, nats, law at temperature 1.

        ``head``: [vocabulary, hidden]. Positions from the prompt's end on.
        """
        score = float(self.final[position - 1].float() @ head[token].float())
        return float(self.log_sum[position - self.prompt]) - score


class TextStore:
    """Target texts in a folder. The engine is only made when one is missing or something is to be judged."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target = target
        self.folder = folder
        self.written = 0
        """Texts that were not in the folder."""
        model: Any = target.model
        self.head: Tensor = model.get_output_embeddings().weight.detach()
        """[vocabulary, hidden]: what turns a final hidden state into logits. Taken before the engine packs it."""
        self._engine: Engine | None = None
        self._judged: tuple[int, tuple[int, ...]] = (next(_keys), ())

    @property
    def engine(self) -> Engine:
        """The target's engine; takes over `target.model`."""
        if self._engine is None:
            self._engine = Engine(self.target, _KV_BYTES)
        return self._engine

    def get(self, requests: Sequence[TextRequest]) -> list[TargetText]:
        """The texts, those written now that the folder lacks. Raises `EngineFailed` if the target cannot write one."""
        paths = [self.folder / f"{self._name(request)}.safetensors" for request in requests]
        missing = {path: one for path, one in zip(paths, requests, strict=True) if not path.is_file()}
        waiting = [_Writing(one, path, next(_keys)) for path, one in missing.items()]
        for first in range(0, len(waiting), BATCH):
            self._write(waiting[first : first + BATCH])
        self.written += len(waiting)
        return [TargetText(path) for path in paths]

    def _name(self, request: TextRequest) -> str:
        digest = hashlib.sha256(bytes([_VERSION]) + self.target.law)
        digest.update(np.asarray(request.prompt, np.int64).tobytes())
        s = request.sampling
        rest = (request.tokens, request.stated, s.temperature, s.top_k, s.top_p, s.seed, request.stop_ids)
        digest.update(json.dumps(rest).encode())
        return digest.hexdigest()[:32]

    def _write(self, batch: Sequence[_Writing]) -> None:
        try:
            self._answer(batch)
            for one in batch:
                self._save(one)
        finally:
            for one in batch:
                self.engine.evict(one.key)

    def _answer(self, batch: Sequence[_Writing]) -> None:
        """`generate` for all of them, one packed pass per token; final states kept, the sessions left in the engine.

        The engine's rows do not depend on what else is in a pass, so each text is that of its prompt alone.
        """
        worker = Worker(self.engine)
        while going := [one for one in batch if not one.done]:
            outcomes = worker.run([one.work() for one in going])
            for one, outcome in zip(going, outcomes, strict=True):
                if not isinstance(outcome, Verified):
                    raise no_verdict(outcome)
                one.add(outcome.next_id)

    def _save(self, one: _Writing) -> None:
        request, prompt = one.request, len(one.request.prompt)
        ids = [*request.prompt, *one.ids]
        seen = len(ids) - 1  # the last token was never read by the target
        stated = min(prompt + request.stated, seen)
        layers = range(self.target.kv_shape.layers)
        kv = self.engine.states(one.key, layers, 0, stated)
        final = self.engine.final(one.key, 0, seen)
        if kv is None or final is None:
            raise EngineFailed("the target kept no states of its own text")
        tensors = {f"kv.{layer}": kv[layer].contiguous() for layer in layers}
        tensors |= {"ids": torch.tensor(ids, dtype=torch.int32), "final": final}
        tensors["log_sum"] = self._log_sums(final[prompt - 1 :])
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = one.path.with_suffix(".partial")
        save_file(tensors, partial, {"prompt": str(prompt), "stated": str(stated)})
        partial.replace(one.path)

    @torch.inference_mode()
    def _log_sums(self, final: Tensor) -> Tensor:
        """log of the sum of exp(logits) at each of these final states, float32."""
        head = self.head.float()
        pieces = [(piece.float() @ head.T).logsumexp(-1) for piece in final.split(32)]
        return torch.cat(pieces)

    def judge(self, prefix: Sequence[int], line: Sequence[int]) -> list[float]:
        """-log law of each token of ``line`` after ``prefix`` and those before it, nats, law at temperature 1."""
        laws = self.logits(prefix, line)[:-1].log_softmax(-1)
        return (-laws[torch.arange(len(line)), torch.tensor(list(line))]).tolist()

    def logits(self, prefix: Sequence[int], line: Sequence[int]) -> Tensor:
        """What the target says after ``prefix``, and after each token of ``line`` behind it: [line + 1, vocabulary]."""
        key, held = self._judged
        common = next(
            (i for i, (a, b) in enumerate(zip(held, prefix, strict=False)) if a != b),
            min(len(held), len(prefix)),
        )
        start = min(common, len(prefix) - 1)
        self.engine.truncate(key, start)
        while len(prefix) - start > 256:
            self.engine.forward([Request(key, start, tuple(prefix[start : start + 256]))])
            self.engine.keep(key, start + 256)
            start += 256
        draft = Draft.chain(tuple(line))
        (rows,) = self.engine.forward([Request(key, start, tuple(prefix[start:]), draft)])
        self.engine.keep(key, len(prefix))
        self._judged = (key, tuple(prefix))
        if rows is None:
            raise EngineFailed("the target gave no logits")
        return rows.logits
