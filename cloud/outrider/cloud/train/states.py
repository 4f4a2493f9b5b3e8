"""Disk cache of what the drafter learns from: the target's K/V, one residual stream and final states.

The target's forward is the most expensive part of a training step, and the same for every epoch: each
text goes through the target once and its states stay in memory-mapped files (bfloat16 as int16 bits).
A text that has no states yet gets them on first use, so training starts at once; another process may fill
the same folder in advance.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.cloud.train.corpus import Example, corpus_fingerprint


@dataclass(frozen=True, slots=True)
class TargetStates:
    """States of one text of T tokens, bfloat16."""

    kv: Tensor
    """[T, num_layers, 2, kv_width]: keys (rotated at absolute positions) then values, heads flattened."""
    stream: Tensor
    """[T, hidden]: residual stream entering the first target layer that runs on the device."""
    final: Tensor
    """[T, hidden]: after the final norm, what the LM head reads."""


class StateCache:
    """Target states of a corpus in a folder; `get` reads, `fill` computes what is missing."""

    def __init__(
        self,
        folder: Path,
        examples: Sequence[Example],
        layers: tuple[int, ...],
        stream_layer: int | None,
        config: Any,
    ):
        """Open or create. ValueError if the folder was made for other text, layers or target shapes."""
        self.layers = layers
        # With no layer named, the last entry stands in: nothing reads it.
        stream_layer = int(config.num_hidden_layers) if stream_layer is None else stream_layer
        self.stream_layer = stream_layer
        self._stored = layers
        self._examples = examples
        head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        self._width = int(config.num_key_value_heads) * head_dim
        self._hidden = int(config.hidden_size)
        self._starts = np.concatenate(([0], np.cumsum([len(example) for example in examples])))
        meta = {
            "corpus": corpus_fingerprint(examples),
            "layers": list(layers),
            "stream_layer": stream_layer,
            "kv_width": self._width,
            "hidden": self._hidden,
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "states.json"
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if {**found, "layers": None} != {**meta, "layers": None} or not set(layers) <= set(
                found["layers"]
            ):
                raise ValueError(f"{folder} caches other states ({found}), wanted {meta}; use another folder")
            self._stored = tuple(found["layers"])
        else:
            path.write_text(json.dumps(meta), encoding="utf-8")
        total = int(self._starts[-1])
        self._chosen = [self._stored.index(layer) for layer in layers]
        self._kv = _map(folder / "kv.bin", np.int16, (total, len(self._stored) * 2 * self._width))
        self._states = _map(folder / "states.bin", np.int16, (total, 2 * self._hidden))
        self._done = _map(folder / "done.bin", np.uint8, (len(examples),))

    def missing(self, rows: Sequence[int]) -> list[int]:
        """Those of `rows` that have no states yet."""
        return [row for row in rows if not self._done[row]]

    def get(self, row: int) -> TargetStates:
        """States of one text; KeyError if `fill` has not seen it."""
        if not self._done[row]:
            raise KeyError(f"no states for row {row}")
        start, stop = self._starts[row], self._starts[row + 1]
        kv = _to_tensor(self._kv[start:stop]).view(-1, len(self._stored), 2, self._width)[:, self._chosen]
        states = _to_tensor(self._states[start:stop])
        return TargetStates(kv, states[:, : self._hidden], states[:, self._hidden :])

    @torch.no_grad()
    def fill(self, rows: Sequence[int], target: Any, batch_tokens: int = 4096) -> None:
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
        cached = [out.cache.layers[layer] for layer in self._stored]
        # [batch, heads, T, d] -> [batch, T, layers * 2 * w]
        parts = [part.transpose(1, 2).flatten(2) for layer in cached for part in (layer.keys, layer.values)]
        kv = torch.cat(parts, dim=-1)
        states = torch.cat((out.hidden_states[self.stream_layer], out.last_hidden_state), dim=-1)
        for index, row in enumerate(rows):
            start, stop = self._starts[row], self._starts[row + 1]
            self._kv[start:stop] = _to_bits(kv[index, : stop - start])
            self._states[start:stop] = _to_bits(states[index, : stop - start])
            self._done[row] = 1


def _map(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if not path.exists() or path.stat().st_size != size:
        with path.open("wb") as stream:
            stream.truncate(size)
    return np.memmap(path, dtype=dtype, mode="r+", shape=shape)


def _to_bits(values: Tensor) -> np.ndarray[Any, np.dtype[np.int16]]:
    return values.to(torch.bfloat16).contiguous().view(torch.int16).numpy()


def _to_tensor(bits: Any) -> Tensor:
    return torch.from_numpy(np.array(bits)).view(torch.bfloat16)
