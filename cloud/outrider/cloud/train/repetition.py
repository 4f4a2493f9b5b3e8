"""Loops in written text: cutting them while they are written, and saying how much a corpus loops."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.train.corpus import distinct_fraction, read_json_lines

PERIODS = 64
"""Longest period that is seen, tokens."""
_SHORTEST = 20
LOOPING = 0.5
"""A text with a smaller share of distinct 4-grams counts as looping."""


class LoopWatch:
    """Sees, per slot, when the newest tokens repeat what stands before them for the third time.

    A loop of period p is recognised when the last 2p tokens (at least 20, as digits, dashes and spaces repeat in good
    text) each equal the token p before them; the text is then kept up to the end of the second repetition.
    """

    def __init__(self, slots: int) -> None:
        self._period = np.arange(1, PERIODS + 1)
        self._needed = np.maximum(2 * self._period, _SHORTEST)
        self._run = np.zeros((slots, PERIODS), np.int64)

    def clear(self, slot: int) -> None:
        """Forget a slot's text."""
        self._run[slot] = 0

    def add(
        self,
        slots: NDArray[np.int64],
        tokens: NDArray[np.int64],
        written: NDArray[np.int64],
        count: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Note one new token per slot, already in `written` [all slots, width] with its `count` [all slots].

        Returns how many tokens to keep of each text that loops now, 0 for the others.
        """
        before = count[slots, None] - 1 - self._period
        same = (written[slots[:, None], np.maximum(before, 0)] == tokens[:, None]) & (before >= 0)
        run = np.where(same, self._run[slots] + 1, 0)
        self._run[slots] = run
        looping = run >= self._needed
        first = looping.argmax(1)
        rows = np.arange(len(slots))
        keep = count[slots] - run[rows, first] + self._period[first]
        return np.where(looping[rows, first], keep, 0)


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """How much the answers of one source repeat themselves."""

    source: str
    rows: int
    answer_tokens: int
    prompt_tokens: float
    """Mean length of a prompt."""
    greedy: float
    """Share of greedy rows."""
    looping: float
    """Share of rows with less than half of their 4-grams distinct."""
    looping_tokens: float
    """Share of answer tokens that stand in such rows."""
    bytes_per_token: float
    """Of all answers' ids, little-endian, compressed by zlib (level 9) as one stream."""


def corpus_statistics(path: Path) -> list[SourceStatistics]:
    """Statistics of each source in a corpus file of ready rows, then of all together under the name "all".

    Raises ValueError if a row has no answer.
    """
    by_source: dict[str, list[dict[str, Any]]] = {}
    for number, row in enumerate(read_json_lines(path), start=1):
        if not row.get("answer_ids") or "prompt_ids" not in row:
            raise ValueError(f"{path}: row {number} has no prompt_ids and answer_ids")
        by_source.setdefault(str(row.get("source", "unnamed")), []).append(row)
    every = [row for rows in by_source.values() for row in rows]
    if not every:
        raise ValueError(f"{path}: no rows")
    return [*(_statistics(name, rows) for name, rows in sorted(by_source.items())), _statistics("all", every)]


def _statistics(source: str, rows: list[dict[str, Any]]) -> SourceStatistics:
    answers = [np.asarray(row["answer_ids"], dtype=np.int32) for row in rows]
    looping = np.asarray([distinct_fraction(answer) < LOOPING for answer in answers])
    lengths = np.asarray([len(answer) for answer in answers])
    return SourceStatistics(
        source=source,
        rows=len(rows),
        answer_tokens=int(lengths.sum()),
        prompt_tokens=float(np.mean([len(row["prompt_ids"]) for row in rows])),
        greedy=float(np.mean([not row.get("temperature", 0.0) for row in rows])),
        looping=float(looping.mean()),
        looping_tokens=float(lengths[looping].sum() / lengths.sum()),
        bytes_per_token=compressed_bytes(answers) / float(lengths.sum()),
    )


def compressed_bytes(texts: Iterable[NDArray[np.int32]]) -> int:
    """Size of texts' ids after zlib, as 16-bit numbers if all are below 65,536, else as 32-bit ones."""
    ids = np.concatenate([*texts, np.zeros(0, np.int32)])
    small = not len(ids) or int(ids.max()) < 2**16
    return len(zlib.compress(ids.astype("<u2" if small else "<u4").tobytes(), 9))
