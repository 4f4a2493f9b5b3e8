"""Disk cache of what drafters learn from: the target's K/V, residual streams and final states.

The target's forward is the most expensive part of a training step, and the same for every epoch: each
text goes through the target once and its states stay in memory-mapped files (bfloat16 as int16 bits). One
folder per corpus file: when the file grows, the states of its old texts stay. A text that has no states
yet gets them on first use, so training starts at once; another process may fill the same folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.cloud.train.corpus import Example

_DIGEST = 16
_META, _TEXTS = "states.json", "texts.bin"


@dataclass(frozen=True, slots=True)
class TargetStates:
    """States of one text of T tokens, bfloat16."""

    kv: Tensor
    """[T, num_layers, 2, kv_width]: keys (rotated at absolute positions) then values, heads flattened."""
    stream: Tensor | None
    """[T, hidden]: residual stream entering the asked-for target layer; None where none was asked for."""
    final: Tensor
    """[T, hidden]: after the final norm, what the LM head reads."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """What is kept of each token."""

    layers: tuple[int, ...]
    """Target layers whose K/V is kept, ascending."""
    streams: tuple[int, ...]
    """Target layers whose entering residual stream is kept, ascending."""
    kv_width: int
    hidden: int

    @classmethod
    def of(cls, config: Any, layers: Iterable[int], streams: Iterable[int | None]) -> StateShape:
        """For a target's transformers config; None among `streams` is left out."""
        head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        wanted = {layer for layer in streams if layer is not None}
        return cls(
            tuple(sorted(set(layers))),
            tuple(sorted(wanted)),
            int(config.num_key_value_heads) * head_dim,
            int(config.hidden_size),
        )

    @property
    def kv_values(self) -> int:
        """Values of a token in the K/V file."""
        return len(self.layers) * 2 * self.kv_width

    @property
    def state_values(self) -> int:
        """Values of a token in the file of streams and final states."""
        return (len(self.streams) + 1) * self.hidden

    @property
    def token_bytes(self) -> int:
        """Bytes of a token on disk."""
        return 2 * (self.kv_values + self.state_values)

    def holds(self, other: StateShape) -> bool:
        """Whether everything `other` asks for is kept."""
        same = (self.kv_width, self.hidden) == (other.kv_width, other.hidden)
        return same and set(other.layers) <= set(self.layers) and set(other.streams) <= set(self.streams)


class StateCache:
    """Target states of one corpus file in a folder; `get` reads, `fill` computes what is missing."""

    def __init__(
        self,
        folder: Path,
        examples: Sequence[Example],
        layers: Iterable[int],
        stream_layer: int | None,
        config: Any,
        *,
        extra: StateShape | None = None,
        target: str = "",
        source: Path | None = None,
    ):
        """Open or create; `extra` names more that a new folder should keep, for other drafters; `target` tells
        targets of one shape apart; `source` is the corpus file, for a message that names it.

        ValueError if the folder was made for other texts or another target, or keeps too little.
        """
        wanted = StateShape.of(config, layers, (stream_layer,))
        self._examples = examples
        self._starts = np.concatenate(([0], np.cumsum([len(example) for example in examples]))).astype(
            np.int64
        )
        folder.mkdir(parents=True, exist_ok=True)
        self._shape = _stored_shape(folder, wanted, extra, target, source)
        _keep_texts(folder, examples, source)
        self._layers = [self._shape.layers.index(layer) for layer in wanted.layers]
        self._stream = self._shape.streams.index(stream_layer) if stream_layer is not None else None
        total = int(self._starts[-1])
        self._kv = _map(folder / "kv.bin", np.int16, (total, self._shape.kv_values))
        self._states = _map(folder / "states.bin", np.int16, (total, self._shape.state_values))
        self._done = _map(folder / "done.bin", np.uint8, (len(examples),))

    @property
    def size_bytes(self) -> int:
        """Of the folder when every text has its states."""
        return int(self._starts[-1]) * self._shape.token_bytes

    def missing(self, rows: Iterable[int]) -> list[int]:
        """Those of `rows` that have no states yet."""
        return [row for row in rows if not self._done[row]]

    def get(self, row: int) -> TargetStates:
        """States of one text; KeyError if `fill` has not seen it."""
        if not self._done[row]:
            raise KeyError(f"no states for row {row}")
        start, stop = self._starts[row], self._starts[row + 1]
        # The count is spelled out: drafters that read no layer have nothing to infer it from.
        shape = (int(stop - start), len(self._shape.layers), 2, self._shape.kv_width)
        kv = _to_tensor(self._kv[start:stop]).view(shape)
        states = _to_tensor(self._states[start:stop]).view(
            -1, len(self._shape.streams) + 1, self._shape.hidden
        )
        stream = None if self._stream is None else states[:, self._stream]
        return TargetStates(kv[:, self._layers], stream, states[:, -1])

    @torch.no_grad()
    def fill(self, rows: Iterable[int], target: Any, batch_tokens: int = 4096) -> None:
        """Run the target over the missing ones of `rows`; texts of similar length share a batch."""
        order = sorted(self.missing(rows), key=lambda row: len(self._examples[row]))
        batch: list[int] = []
        for row in order:
            if batch and (len(batch) + 1) * len(self._examples[row]) > batch_tokens:
                self._run(batch, target)
                batch = []
            batch.append(row)
        if batch:
            self._run(batch, target)

    def _run(self, rows: list[int], target: Any) -> None:
        longest = max(len(self._examples[row]) for row in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for index, row in enumerate(rows):
            ids[index, : len(self._examples[row])] = torch.from_numpy(
                self._examples[row].ids.astype(np.int64)
            )
        # Padding stands on the right, so the causal mask alone keeps it away from the text.
        out = target.model(input_ids=ids, use_cache=True, output_hidden_states=True)
        cached = [out.cache.layers[layer] for layer in self._shape.layers]
        # [batch, heads, T, d] -> [batch, T, layers * 2 * w]
        parts = [part.transpose(1, 2).flatten(2) for layer in cached for part in (layer.keys, layer.values)]
        kv = torch.cat(parts, dim=-1) if parts else None
        states = torch.cat(
            [*(out.hidden_states[n] for n in self._shape.streams), out.last_hidden_state], dim=-1
        )
        for index, row in enumerate(rows):
            start, stop = self._starts[row], self._starts[row + 1]
            if kv is not None:
                self._kv[start:stop] = _to_bits(kv[index, : stop - start])
            self._states[start:stop] = _to_bits(states[index, : stop - start])
            self._done[row] = 1


class CorpusStates:
    """The caches of several corpus files as one; rows are numbered through in the files' order."""

    def __init__(self, caches: Sequence[StateCache], sizes: Sequence[int]):
        """`sizes`: texts of each cache."""
        self._caches = list(caches)
        self._places = [
            (cache, row) for cache, size in zip(caches, sizes, strict=True) for row in range(size)
        ]

    @property
    def size_bytes(self) -> int:
        """Of all folders when every text has its states."""
        return sum(cache.size_bytes for cache in self._caches)

    def missing(self, rows: Iterable[int]) -> list[int]:
        """Those of `rows` that have no states yet."""
        return [row for row in rows if self._places[row][0].missing([self._places[row][1]])]

    def get(self, row: int) -> TargetStates:
        """States of one text; KeyError if `fill` has not seen it."""
        cache, inside = self._places[row]
        return cache.get(inside)

    def fill(self, rows: Iterable[int], target: Any, batch_tokens: int = 4096) -> None:
        """Run the target over the missing ones of `rows`."""
        chosen = list(rows)
        for cache in self._caches:
            own = [self._places[row][1] for row in chosen if self._places[row][0] is cache]
            cache.fill(own, target, batch_tokens)


def _stored_shape(
    folder: Path, wanted: StateShape, extra: StateShape | None, target: str, source: Path | None
) -> StateShape:
    """What the folder keeps; written down where it is new."""
    path = folder / _META
    if path.exists():
        raw = json.loads(path.read_text(encoding="utf-8"))
        found = StateShape(tuple(raw["layers"]), tuple(raw["streams"]), raw["kv_width"], raw["hidden"])
        if not found.holds(wanted) or (target and raw.get("target", target) != target):
            raise ValueError(f"{folder} caches other states ({found}), wanted {wanted}; use another folder")
        return found
    layers, streams = set(wanted.layers), set(wanted.streams)
    if extra is not None:
        layers, streams = layers | set(extra.layers), streams | set(extra.streams)
    shape = StateShape(tuple(sorted(layers)), tuple(sorted(streams)), wanted.kv_width, wanted.hidden)
    values = {name: getattr(shape, name) for name in ("layers", "streams", "kv_width", "hidden")}
    made_for = {"target": target, "source": str(source.resolve()) if source is not None else ""}
    path.write_text(json.dumps({**values, **made_for}), encoding="utf-8")
    return shape


def _keep_texts(folder: Path, examples: Sequence[Example], source: Path | None) -> None:
    """Note which texts the folder is for: more at the end is growth, anything else is another corpus."""
    path = folder / _TEXTS
    texts = b"".join(_text_digest(example) for example in examples)
    known = path.read_bytes() if path.exists() else b""
    common = min(len(known), len(texts))
    if known[:common] != texts[:common]:
        first = json.loads((folder / _META).read_text(encoding="utf-8")).get("source")
        raise ValueError(
            f"{folder} caches states of other texts{f' ({first})' if first else ''} than "
            f"{source.resolve() if source else 'these'}: rename one of the files, or use another folder"
        )
    if len(texts) > len(known):
        partial = path.with_suffix(".partial")
        partial.write_bytes(texts)
        partial.replace(path)


def _text_digest(example: Example) -> bytes:
    length = np.int64(len(example.prompt_ids)).tobytes()
    return hashlib.sha256(length + example.ids.tobytes()).digest()[:_DIGEST]


def _map(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """A file as an array; grown with zeros where it is shorter, never shrunk."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if not size:
        return np.zeros(shape, dtype)
    if not path.exists() or path.stat().st_size < size:
        with path.open("ab") as stream:
            stream.truncate(size)
    return np.memmap(path, dtype=dtype, mode="r+", shape=shape)


def _to_bits(values: Tensor) -> np.ndarray[Any, np.dtype[np.int16]]:
    return values.to(torch.bfloat16).contiguous().view(torch.int16).numpy()


def _to_tensor(bits: Any) -> Tensor:
    return torch.from_numpy(np.array(bits)).view(torch.bfloat16)
