"""A target without a model: the next token is a function of the whole prefix, made from a hash.

Keeps each session's ids as its "KV" and refuses work that does not fit them, so that it also checks what the session
table asks for. `ToyEngine.generate` is its oracle.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.events import MakeRows, Outcome, Prefill, Prefilled, Verified, Verify, Work, WorkFailed
from outrider.shared.codec import encode_rows
from outrider.shared.frames import RowEncoding, RowPlane
from outrider.shared.sampling import History, LogProbs, Sampling, log_probs, pick

VOCABULARY = 64
PLANE = RowPlane(0, 8, RowEncoding.INT8, "toy.prefix", 2)


class ToyEngine:
    """The engine contract over a hash. ``pause_s`` makes a pass take time, so that drafts of other sessions gather."""

    def __init__(self, vocabulary: int = VOCABULARY, pause_s: float = 0.0) -> None:
        self.vocabulary = vocabulary
        self.pause_s = pause_s
        self.kv: dict[int, list[int]] = {}
        self.passes = 0
        self.prefilled = 0
        self.fail_next: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def logits(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        """Scores of the next token after ``prefix``, [vocabulary]."""
        text = np.asarray(prefix, "<u4").tobytes()
        seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
        return np.random.default_rng(seed).normal(0.0, 2.0, self.vocabulary)

    def next_id(self, prefix: Sequence[int], sampling: Sampling, history: History | None = None) -> int:
        """The token that follows ``prefix``; its position is the prefix's length."""
        return pick(self.logits(prefix), sampling, len(prefix), history)

    def told(
        self, ids: Sequence[int], count: int, sampling: Sampling, stop: Sequence[int] = ()
    ) -> list[LogProbs]:
        """Log-probabilities of the last ``count`` of ``ids``, all of them generated, by the target alone."""
        start = len(ids) - count
        return [
            log_probs(
                self.logits(ids[:at]), sampling, ids[at], sampling.history(ids[:at], start, sorted(stop))
            )
            for at in range(start, len(ids))
        ]

    def generate(
        self, ids: Sequence[int], max_new: int, sampling: Sampling | None = None, stop: Sequence[int] = ()
    ) -> list[int]:
        """The target alone: up to ``max_new`` tokens after ``ids``, the stop id included."""
        sequence, sampling = list(ids), sampling or Sampling()
        for _ in range(max_new):
            text = sampling.history(sequence, len(ids), stop)
            sequence.append(self.next_id(sequence, sampling, text))
            if sequence[-1] in stop:
                break
        return sequence[len(ids) :]

    # ---------------------------------------------------------------------------------------- the engine's contract

    def run(self, works: Sequence[Work]) -> Sequence[Outcome]:
        """One pass."""
        self.gate.wait(10)
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        time.sleep(self.pause_s)
        self.passes += 1
        return tuple(self._one(work) for work in works)

    def _one(self, work: Work) -> Outcome:
        kv = self.kv.setdefault(work.key, [])
        if work.start != len(kv):
            return WorkFailed(work.key, f"start {work.start}, but the KV holds {len(kv)}")
        if isinstance(work, Prefill):
            kv.extend(work.ids)
            self.prefilled += len(work.ids)
            return Prefilled(work.key)
        return self._verify(kv, work)

    def _verify(self, kv: list[int], work: Verify) -> Verified:
        kv.extend(work.pending)
        accepted: list[int] = []
        told: list[LogProbs] = []
        parent, text = 0, work.history
        while True:
            chosen = self.next_id(kv, work.sampling, text)
            told += [log_probs(self.logits(kv), work.sampling, chosen, text)] if work.log_probs else []
            text = None if text is None else text.then((chosen,))
            children = (
                i
                for i, (token_id, above) in enumerate(zip(work.draft.ids, work.draft.parents, strict=True))
                if above == parent and token_id == chosen
            )
            node = next(children, None)
            if node is None:
                return Verified(work.key, tuple(accepted), chosen, log_probs=tuple(told))
            accepted.append(node)
            kv.append(chosen)
            parent = node + 1

    def truncate(self, key: int, length: int) -> None:
        """Keep the first positions."""
        if key in self.kv:
            del self.kv[key][length:]

    def evict(self, key: int) -> None:
        """Forget a session."""
        self.kv.pop(key, None)

    def kv_bytes(self) -> int:
        """Four bytes an id."""
        return sum(4 * len(kv) for kv in list(self.kv.values()))


class ToyRows:
    """Rows that name what they were made from: a hash of the prefix that ends at their position."""

    def __init__(self, engine: ToyEngine) -> None:
        self._engine = engine

    def make(self, work: MakeRows) -> tuple[bytes, ...]:
        """Encoded rows of one plane."""
        kv = self._engine.kv.get(work.key, [])
        if work.stop > len(kv):
            return ()
        rows = np.stack([toy_row(kv[: n + 1]) for n in range(work.start, work.stop)])
        return (encode_rows(rows, replace(PLANE, encoding=work.encoding)),)


def toy_row(prefix: Sequence[int]) -> NDArray[np.float32]:
    """The row of the last position of ``prefix``, [width of the plane]."""
    seed = int.from_bytes(hashlib.sha256(np.asarray(prefix, "<u4").tobytes()).digest()[8:16], "little")
    return np.random.default_rng(seed).normal(size=PLANE.width).astype(np.float32)
