"""Many continuations at once on a CPU: every pass holds one token of each running row and whole new prompts.

Rows live in slots of one preallocated K/V buffer, each at its own length: nothing is padded or moved, and a slot whose
row has ended takes the next prompt in the same pass (continuous batching: Orca, Yu et al., OSDI 2022). All tokens of a
pass are packed into one sequence for the linear layers; attention runs per group of neighbouring slots, up to the
longest row of the group, with the query heads of one key head as rows of one product (no copy of keys or values).

What a row says depends on the model, the seed and the row's own key alone: greedy rows on nothing else, sampled rows
draw from noise that is a function of (seed, key, step).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from outrider.cloud.train.pick import Picker
from outrider.cloud.train.repetition import LoopWatch

NAME = "outrider-bulk"
GROUP = 8
"""Slots per attention call: fewer waste less on unequal lengths, more waste less on calls."""
_LOOKAHEAD = 48
"""Jobs that may wait, so that a slot gets one of about its neighbours' length."""
_HARMLESS = {"position_ids", "use_cache", "cache_position", "is_causal", "output_hidden_states"}


@dataclass(frozen=True, slots=True)
class Job:
    """One row to write."""

    key: int
    """Name of the row in the noise; two jobs with one key, prompt and temperature give one text."""
    prompt: NDArray[np.int32]
    max_tokens: int
    temperature: float = 0.0
    """0 is greedy."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Slots lo … hi-1, keys 0 … stop-1, and which of them each slot sees."""

    lo: int
    hi: int
    stop: int
    bias: Tensor


@dataclass(frozen=True, slots=True)
class Pass:
    """What the attention function must know of one pass; travels as the keyword argument `bulk`."""

    buffer: Tensor
    """[layers, 2, slots, kv_heads, capacity, dim]"""
    rows: Tensor
    """Where each token's key goes among the buffer's [slots x kv_heads x capacity] rows, [tokens x kv_heads]."""
    decoding: Tensor
    """Slots with one new token; the first tokens of the pass, in this order."""
    groups: tuple[_Group, ...]
    prompts: tuple[tuple[int, int], ...]
    """Token ranges of whole prompts, behind the decoding ones."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    bulk: Pass,
    dropout: float = 0.0,
    **others: object,
) -> tuple[Tensor, None]:
    """transformers' attention function over [1, heads, tokens, dim]; writes keys and values.

    Returns [1, tokens, heads, dim]. Raises ValueError if the model asks for anything else than plain causal attention.
    """
    foreign = sorted(name for name, what in others.items() if what is not None and name not in _HARMLESS)
    if foreign or attention_mask is not None or dropout:
        raise ValueError(f"the target's attention uses {', '.join(foreign) or 'a mask or dropout'}")
    layer: int = module.layer_idx  # type: ignore[assignment]
    keys, values = bulk.buffer[layer]
    dim = query.shape[-1]
    keys.view(-1, dim).index_copy_(0, bulk.rows, key[0].transpose(0, 1).reshape(-1, dim).to(keys.dtype))
    values.view(-1, dim).index_copy_(0, bulk.rows, value[0].transpose(0, 1).reshape(-1, dim).to(keys.dtype))
    result = torch.empty_like(query[0].transpose(0, 1), memory_format=torch.contiguous_format)
    if count := len(bulk.decoding):
        result[:count] = _decode(query[0, :, :count], keys, values, bulk, scaling)
    for lo, hi in bulk.prompts:
        result[lo:hi] = scaled_dot_product_attention(
            query[:, :, lo:hi],
            key[:, :, lo:hi],
            value[:, :, lo:hi],
            is_causal=True,
            scale=scaling,
            enable_gqa=True,
        )[0].transpose(0, 1)
    return result[None], None


def _decode(query: Tensor, keys: Tensor, values: Tensor, bulk: Pass, scaling: float) -> Tensor:
    """One query [heads, rows, dim] of each decoding slot over that slot's keys; [rows, heads, dim]."""
    heads, _, dim = query.shape
    slots, kv_heads = keys.shape[:2]
    folded = keys.new_zeros(slots, kv_heads, heads // kv_heads, dim)
    folded[bulk.decoding] = query.transpose(0, 1).unflatten(1, (kv_heads, -1)).to(keys.dtype)
    for group in bulk.groups:
        part = slice(group.lo, group.hi)
        folded[part] = scaled_dot_product_attention(
            folded[part],
            keys[part, :, : group.stop],
            values[part, :, : group.stop],
            attn_mask=group.bias,
            scale=scaling,
        )
    return folded[bulk.decoding].flatten(1, 2).to(query.dtype)


AttentionInterface.register(NAME, attend)


class BulkDecoder:
    """Writes the rows of jobs, `slots` at a time."""

    def __init__(
        self,
        model: Any,
        stops: Sequence[int],
        *,
        slots: int = 128,
        capacity: int = 1216,
        seed: int = 1,
        prefill_tokens: int = 1024,
    ) -> None:
        """`capacity`: longest prompt with answer, tokens; `prefill_tokens`: prompt tokens of one pass, about."""
        self.model, self.capacity = model, capacity
        self._prefill_tokens = prefill_tokens
        self._lookahead = min(_LOOKAHEAD, 2 * slots)
        model.set_attn_implementation(NAME)
        config = model.config
        self._kv_heads = config.num_key_value_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        # float32 also for a bfloat16 model: torch's CPU kernel is faster on it than the bytes it saves are worth.
        # Zeros, as hidden keys are read and NaN times nothing is NaN; numpy's, as they take memory only when written.
        shape = (config.num_hidden_layers, 2, slots, self._kv_heads, capacity, dim)
        self._buffer = torch.from_numpy(np.zeros(shape, np.float32))
        self._pick = Picker(model.get_output_embeddings(), seed)
        self._stops = np.asarray(sorted(stops), dtype=np.int64)
        self._watch = LoopWatch(slots)
        self._jobs: list[Job | None] = [None] * slots
        self._busy = np.zeros(slots, bool)
        self._length = np.zeros(slots, np.int64)  # tokens with keys in the buffer
        self._written = np.zeros((slots, capacity), np.int64)
        self._count = np.zeros(slots, np.int64)  # tokens answered
        self._limit = np.zeros(slots, np.int64)
        self._heat = np.zeros(slots, np.float32)
        self._key = np.zeros(slots, np.uint64)
        self.tokens = 0
        """Answer tokens computed so far."""

    @torch.no_grad()
    def run(self, jobs: Iterable[Job | None]) -> Iterator[tuple[Job, list[int]]]:
        """Each job with its answer (stop id included), as they end. A looping answer is cut: see `LoopWatch`.

        `jobs` is read as slots become free, so it may depend on what came out before; it may yield None for "nothing
        now", as long as something is still running. Raises ValueError for a job that does not fit the capacity.
        """
        source, waiting, dry = iter(jobs), list[Job](), False
        while True:
            while not dry and len(waiting) < self._lookahead:
                job = next(source, _END)
                if job is _END:
                    dry = True
                elif job is None:
                    break
                else:
                    waiting.append(self._checked(job))
            admitted = self._admit(waiting)
            if not admitted and not self._busy.any():
                if dry or not waiting:
                    return
                continue
            yield from self._step(admitted)

    def _checked(self, job: Any) -> Job:
        if not len(job.prompt) or len(job.prompt) + job.max_tokens > self.capacity:
            raise ValueError(
                f"a prompt of {len(job.prompt)} tokens with an answer of {job.max_tokens} does not fit {self.capacity}"
            )
        return job

    def _admit(self, waiting: list[Job]) -> list[int]:
        """Put waiting jobs into free slots, each beside rows of about its length."""
        admitted: list[int] = []
        room = self._prefill_tokens
        for slot in np.flatnonzero(~self._busy):
            if not waiting or room <= 0:
                break
            lo = slot // GROUP * GROUP
            longest = int(self._length[lo : lo + GROUP].max(initial=0))
            place = min(
                range(len(waiting)), key=lambda i: abs(len(waiting[i].prompt) + 64 - longest) + 16 * i
            )
            job = waiting.pop(place)
            room -= len(job.prompt)
            self._place(int(slot), job)
            admitted.append(int(slot))
        return admitted

    def _place(self, slot: int, job: Job) -> None:
        self._jobs[slot], self._busy[slot] = job, True
        self._length[slot] = self._count[slot] = 0
        self._limit[slot], self._heat[slot] = job.max_tokens, job.temperature
        self._key[slot] = job.key
        self._watch.clear(slot)

    def _step(self, admitted: list[int]) -> Iterator[tuple[Job, list[int]]]:
        decoding = np.flatnonzero(self._busy & (self._count > 0))
        slots = np.concatenate((decoding, np.asarray(admitted, np.int64)))
        last = [int(self._written[slot, self._count[slot] - 1]) for slot in decoding]
        prompts = [self._prompt(slot) for slot in admitted]
        ends = np.cumsum([len(decoding), *map(len, prompts)])
        ids = torch.from_numpy(np.concatenate((np.asarray(last, np.int64), *prompts)))
        positions = np.concatenate((self._length[decoding], *(np.arange(len(p)) for p in prompts)))
        owners = np.concatenate(
            (decoding, *(np.full(len(p), s) for p, s in zip(prompts, admitted, strict=True)))
        )
        self._length[decoding] += 1
        self._length[admitted] = [len(prompt) for prompt in prompts]
        step = Pass(
            buffer=self._buffer,
            rows=self._rows(owners, positions),
            decoding=torch.from_numpy(decoding),
            groups=self._groups(decoding),
            prompts=tuple((int(lo), int(hi)) for lo, hi in zip(ends[:-1], ends[1:], strict=True)),
        )
        out = self.model.base_model(
            input_ids=ids[None], position_ids=torch.from_numpy(positions)[None], use_cache=False, bulk=step
        )
        final = np.concatenate((np.arange(len(decoding)), ends[1:] - 1))
        hidden = out.last_hidden_state[0, torch.from_numpy(final)]
        chosen = self._pick(hidden, self._heat[slots], self._key[slots], self._count[slots])
        yield from self._take(slots, chosen)

    def _prompt(self, slot: int) -> NDArray[np.int64]:
        job = self._jobs[slot]
        return np.asarray(job.prompt if job else (), dtype=np.int64)

    def _rows(self, owners: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        heads = np.arange(self._kv_heads)
        rows = (owners[:, None] * self._kv_heads + heads) * self.capacity + positions[:, None]
        return torch.from_numpy(rows.ravel())

    def _groups(self, decoding: NDArray[np.int64]) -> tuple[_Group, ...]:
        groups = []
        for lo in np.unique(decoding // GROUP) * GROUP:
            hi = min(int(lo) + GROUP, len(self._busy))
            lengths = np.where(self._busy[lo:hi], self._length[lo:hi], 1)
            stop = int(lengths.max())
            hidden = torch.from_numpy(np.arange(stop) >= lengths[:, None])
            bias = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
            groups.append(_Group(int(lo), hi, stop, bias[:, None, None]))
        return tuple(groups)

    def _take(self, slots: NDArray[np.int64], chosen: NDArray[np.int64]) -> Iterator[tuple[Job, list[int]]]:
        self._written[slots, self._count[slots]] = chosen
        self._count[slots] += 1
        self.tokens += len(slots)
        keep = self._watch.add(slots, chosen, self._written, self._count)
        over = np.isin(chosen, self._stops) | (self._count[slots] >= self._limit[slots]) | (keep > 0)
        for slot, cut in zip(slots[over], keep[over], strict=True):
            job = self._jobs[slot]
            self._jobs[slot], self._busy[slot] = None, False
            if job is not None:
                yield job, self._written[slot, : cut or self._count[slot]].tolist()
            self._length[slot] = 0


_END: Any = object()
