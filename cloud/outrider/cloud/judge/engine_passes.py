"""`Passes` of the real engine: what a served session would compute, with the state before the final norm."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.cloud.engine import Engine, Request
from outrider.cloud.evaluate.contenders import Contender
from outrider.cloud.evaluate.ruled import LiveRows
from outrider.cloud.judge.features import NormTap, States, final_norm
from outrider.cloud.judge.passes import Feed, Rows, Seen
from outrider.cloud.target import Target
from outrider.shared.draft import Draft

_KV_BYTES = 2 << 30


class EnginePasses:
    """Takes over ``target.model`` as any engine does; `close`, or leaving it as a context, takes the tap off it."""

    def __init__(self, target: Target, contender: Contender, kv_bytes: int = _KV_BYTES) -> None:
        """``contender``: whose rows `rows` makes. Raises ConfigError for a target without a final norm."""
        model: Any = target.model
        self._tap = NormTap()
        self._handle = final_norm(model).register_forward_pre_hook(self._tap)
        self._head = model.get_output_embeddings().weight.detach()
        self._engine = Engine(target, kv_bytes)
        self._planes = contender.planes
        self._rows = LiveRows(self._engine, contender)
        self.passes = 0
        """Packed passes made."""

    def __enter__(self) -> EnginePasses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the tap off the model."""
        self._handle.remove()

    def look(self, feeds: Sequence[Feed]) -> list[Seen]:
        """One packed pass. Raises `KvFull` where the texts need more than the KV's bytes."""
        for feed in feeds:
            self._engine.truncate(feed.key, feed.start)
        requests = [
            Request(feed.key, feed.start, feed.ids, Draft.chain(feed.draft), self._rows.final)
            for feed in feeds
        ]
        found = self._engine.forward(requests, hidden=True)
        self.passes += 1
        prenorm = self._tap.states.float().numpy()
        seen, lo = [], 0
        for feed, rows in zip(feeds, found, strict=True):
            if rows is None or rows.hidden is None:
                raise ValueError("the engine gave no states")
            base, lo = lo + len(feed.ids) - 1, lo + len(feed.ids) + len(feed.draft)
            # A chain stands in line, so all of it may stay until the next feed says from where on it is wrong.
            self._engine.keep(feed.key, feed.start + len(feed.ids) + len(feed.draft))
            seen.append(Seen(rows.logits.numpy(), prenorm[base:lo], rows.hidden.float().numpy()))
        return seen

    @torch.inference_mode()
    def logits(self, states: States) -> NDArray[np.float32]:
        """[vocabulary], by the head's own weights on the state after the norm."""
        scores: NDArray[np.float32] = (
            (self._head @ torch.from_numpy(states.postnorm).to(self._head.dtype)).float().numpy()
        )
        return scores

    def rows(self, key: int, start: int, stop: int) -> Rows:
        """State rows through the wire's int8; [] for a drafter without. Raises EngineFailed for positions not held."""
        if start >= stop:
            return [np.zeros((0, plane.width), np.float32) for plane in self._planes]
        return self._rows(key, start, stop)

    def forget(self, key: int) -> None:
        """Drop a text."""
        self._engine.evict(key)
