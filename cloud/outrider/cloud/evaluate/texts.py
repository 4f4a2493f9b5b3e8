"""What the target says to a prompt, and its states along it: computed once, then read from a folder.

The text is the engine's own (`outrider.cloud.generate` with empty drafts: what every served session ends up with),
greedy, or above temperature 0 drawn with the shared coins of a seed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
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

    def get(self, request: TextRequest) -> TargetText:
        """The text, written now if the folder lacks it. Raises `EngineFailed` if the target cannot write it."""
        path = self.folder / f"{self._name(request)}.safetensors"
        if not path.is_file():
            self.written += 1
            self._write(request, path)
        return TargetText(path)

    def _name(self, request: TextRequest) -> str:
        digest = hashlib.sha256(bytes([_VERSION]) + self.target.law)
        digest.update(np.asarray(request.prompt, np.int64).tobytes())
        s = request.sampling
        rest = (request.tokens, request.stated, s.temperature, s.top_k, s.top_p, s.seed, request.stop_ids)
        digest.update(json.dumps(rest).encode())
        return digest.hexdigest()[:32]

    def _write(self, request: TextRequest, path: Path) -> None:
        engine, key = self.engine, next(_keys)
        try:
            ids = [*request.prompt, *self._answer(request, key)]
            seen = len(ids) - 1  # the last token was never read by the target
            stated = min(len(request.prompt) + request.stated, seen)
            layers = range(self.target.kv_shape.layers)
            kv, final = engine.states(key, layers, 0, stated), engine.final(key, 0, seen)
        finally:
            engine.evict(key)
        if kv is None or final is None:
            raise EngineFailed("the target kept no states of its own text")
        tensors = {f"kv.{layer}": kv[layer].contiguous() for layer in layers}
        tensors |= {"ids": torch.tensor(ids, dtype=torch.int32), "final": final}
        tensors["log_sum"] = self._log_sums(final[len(request.prompt) - 1 :])
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        save_file(tensors, partial, {"prompt": str(len(request.prompt)), "stated": str(stated)})
        partial.replace(path)

    def _answer(self, request: TextRequest, key: int) -> list[int]:
        """`generate`, with final hidden states kept and the session left in the engine."""
        worker = Worker(self.engine)
        rule = frames.Rule("greedy" if request.sampling.greedy else "coupled")
        start, pending = 0, request.prompt
        ids: list[int] = []
        while len(ids) < request.tokens and not (ids and ids[-1] in request.stop_ids):
            work = Verify(key, start, pending, Draft.chain(()), request.sampling, rule, final=True)
            (outcome,) = worker.run((work,))
            if not isinstance(outcome, Verified):
                raise no_verdict(outcome)
            start += len(pending)
            pending = (outcome.next_id,)
            ids.append(outcome.next_id)
        return ids

    @torch.inference_mode()
    def _log_sums(self, final: Tensor) -> Tensor:
        """log of the sum of exp(logits) at each of these final states, float32."""
        head = self.head.float()
        pieces = [(piece.float() @ head.T).logsumexp(-1) for piece in final.split(32)]
        return torch.cat(pieces)

    def judge(self, prefix: Sequence[int], line: Sequence[int]) -> list[float]:
        """-log law of each token of ``line`` after ``prefix`` and those before it, nats, law at temperature 1."""
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
        laws = rows.logits[:-1].log_softmax(-1)
        return (-laws[torch.arange(len(line)), torch.tensor(list(line))]).tolist()
