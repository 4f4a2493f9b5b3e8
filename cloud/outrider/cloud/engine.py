"""The target as an engine: one packed forward over the new tokens of many sessions, each against its own KV.

Width-invariant: a row's logits have the same bits whatever else is in the pass and however its context was chunked, on
one machine, dtype and thread count (`outrider.cloud.linear`, `outrider.cloud.attention`; checked at start-up by
`outrider.cloud.selfcheck`). Rows of a tree are too, as long as their path stands in one line of columns; the engine
lays a draft out depth first, best child first, so that this is the path most often taken. A row off that line sees its
ancestors in other columns and may differ by rounding: `Rows.exact` says which, rules distrust near ties there, and what
is kept of such a path is computed again in line by the next pass (`KvSlot.redo`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.cloud.attention import NAME, Segment, Step, padded_keys, tile_mask, visible
from outrider.cloud.judge.features import NormTap, final_norm
from outrider.cloud.kv import KvStore
from outrider.cloud.linear import pack_linears
from outrider.cloud.target import Target
from outrider.shared.draft import Draft

DEFAULT_KV_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Request:
    """One session's share of a pass: ``ids`` in a line from ``start`` (the KV's length), then a draft's nodes."""

    key: int
    start: int
    ids: tuple[int, ...]
    draft: Draft | None = None
    """None: no logits are wanted (prefill). Otherwise rows are the last of ``ids``, then every node."""
    final: bool = False
    """Keep what the LM head reads at every position beside the KV (`final`)."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a pass computed for one request; row 0 is the base (last of ``ids``), row k node k-1 of its draft."""

    logits: Tensor
    """[1 + nodes, vocabulary], float32."""
    hidden: Tensor | None
    """[1 + nodes, hidden], what the LM head read (see `Engine.show_prenorm`), if it was asked for."""
    exact: tuple[bool, ...]
    """Per row: it has the bits the target alone would compute."""
    columns: tuple[int, ...]
    """Per node: its KV column, counted from the one behind the base."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a request's rows stand: ``redo`` and ``ids`` in a line from column ``start``, then nodes in ``order``."""

    request: Request
    start: int
    line: tuple[int, ...]
    order: tuple[int, ...]
    """Node indices, depth first."""
    columns: tuple[int, ...]
    """Inverse of ``order``: per node, its place in it."""

    @property
    def rows(self) -> int:
        return len(self.line) + len(self.order)


class Engine:
    """Takes over ``target.model``: packs its layers and routes its attention. One thread at a time."""

    def __init__(self, target: Target, kv_bytes: int = DEFAULT_KV_BYTES) -> None:
        self.target = target
        self.kv = KvStore(target.kv_shape, kv_bytes)
        self.granule = pack_linears(target.model)
        self.passes = 0
        self._prenorm: NormTap | None = None
        self._group = target.query_heads // target.kv_shape.kv_heads
        target.model.set_attn_implementation(NAME)  # type: ignore[operator]

    def show_prenorm(self) -> None:
        """From now on `Rows.hidden` is what enters the final norm, not what leaves it.

        Raises ConfigError for a target that does not say where its norm is.
        """
        self._prenorm = NormTap()
        final_norm(self.target.model).register_forward_pre_hook(self._prenorm)

    # ------------------------------------------------------------------------------------------------ computing

    @torch.inference_mode()
    def forward(self, requests: Sequence[Request], *, hidden: bool = False) -> list[Rows | None]:
        """One packed pass over requests of distinct sessions; Rows per request, None for prefill.

        Reserves KV (`KvFull` changes nothing) and writes columns from each request's start on. No length changes:
        `keep` says afterwards what stays, so a failed pass leaves every session as it was.
        """
        layouts = [self._layout(request) for request in requests]
        for layout in layouts:
            self.kv.reserve(layout.request.key, layout.start + layout.rows, layout.request.final)
        ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        segments: list[Segment] = []
        for layout in layouts:
            segments.append(self._segment(layout, len(ids)))
            wanted += self._wanted(layout, len(ids))
            ids += self._row_ids(layout)
            positions += self._row_positions(layout)
        step = Step(tuple(segments))
        kept = any(segment.slot.final is not None for segment in segments)
        logits, states = self._pass(ids, positions, wanted, step, hidden or kept)
        if states is not None:
            _keep_final(step, states)
        if hidden and self._prenorm is not None:
            states = self._prenorm.states
        return self._split(layouts, logits, states[wanted] if hidden and states is not None else None)

    def _pass(
        self, ids: list[int], positions: list[int], wanted: list[int], step: Step, hidden: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Run the model on the packed rows; logits (float32) of the wanted ones, what the head reads of all."""
        self.passes += 1
        filler = [0] * (-len(ids) % self.granule)
        # The head's rows are padded like all others, by repeating one; the copies are dropped again.
        chosen = torch.tensor(wanted + wanted[:1] * (-len(wanted) % self.granule), dtype=torch.long)
        output = self.target.model(
            torch.tensor([ids + filler]),
            position_ids=torch.tensor([positions + filler]),
            use_cache=False,
            output_hidden_states=hidden or None,
            logits_to_keep=chosen,
            outrider=step,
        )
        states = output.hidden_states[-1][0] if hidden else None
        return output.logits[0, : len(wanted)].float(), states

    def _layout(self, request: Request) -> _Layout:
        slot = self.kv.slots.get(request.key)
        redo = slot.redo if slot and slot.length == request.start else ()
        draft = request.draft or Draft((), ())
        order = depth_first(draft)
        columns = [0] * len(order)
        for place, node in enumerate(order):
            columns[node] = place
        return _Layout(request, request.start - len(redo), redo + request.ids, order, tuple(columns))

    def _segment(self, layout: _Layout, lo: int) -> Segment:
        draft = layout.request.draft
        nodes = layout.order if draft else ()
        ancestors = (
            [[layout.columns[above] for above in draft.path_to(node)] for node in nodes] if draft else []
        )
        keys = padded_keys(layout.start + layout.rows)
        allowed = visible(layout.start, len(layout.line), ancestors, keys)
        mask = tile_mask(allowed, self._group, self.target.kv_shape.dtype)
        return Segment(self.kv.slots[layout.request.key], lo, lo + layout.rows, layout.start, mask)

    def _row_ids(self, layout: _Layout) -> list[int]:
        draft = layout.request.draft
        return [*layout.line, *(draft.ids[node] for node in layout.order)] if draft else list(layout.line)

    def _row_positions(self, layout: _Layout) -> list[int]:
        last = layout.start + len(layout.line) - 1
        line = list(range(layout.start, last + 1))
        draft = layout.request.draft
        if not draft:
            return line
        depths = draft.depths
        return line + [last + depths[node] for node in layout.order]

    def _wanted(self, layout: _Layout, lo: int) -> list[int]:
        """Packed rows whose logits are wanted: base, then nodes in the draft's own order."""
        if layout.request.draft is None:
            return []
        base = lo + len(layout.line) - 1
        return [base, *(base + 1 + column for column in layout.columns)]

    def _split(self, layouts: list[_Layout], logits: Tensor, states: Tensor | None) -> list[Rows | None]:
        results: list[Rows | None] = []
        at = 0
        for layout in layouts:
            draft = layout.request.draft
            if draft is None:
                results.append(None)
                continue
            stop = at + 1 + len(draft.ids)
            in_line = (
                column + 1 == depth for column, depth in zip(layout.columns, draft.depths, strict=True)
            )
            mine = None if states is None else states[at:stop]
            results.append(Rows(logits[at:stop], mine, (True, *in_line), layout.columns))
            at = stop
        return results

    # ----------------------------------------------------------------------------------------------------- keeping

    def keep(self, key: int, base: int) -> None:
        """Commit the first ``base`` positions of a pass: its line, without a draft's nodes."""
        self.kv.keep(key, base, ())

    def keep_path(self, key: int, base: int, rows: Rows, draft: Draft, path: Sequence[int]) -> None:
        """Commit ``base`` positions and the draft's nodes along ``path`` (0-based, root to leaf), compacted."""
        columns = tuple(rows.columns[node] for node in path)
        self.kv.keep(key, base, columns)
        in_line = next((index for index, column in enumerate(columns) if column != index), len(columns))
        self.kv.slots[key].redo = tuple(draft.ids[node] for node in path[in_line:])

    def truncate(self, key: int, length: int) -> None:
        """Keep the first ``length`` positions; unknown keys are ignored."""
        self.kv.truncate(key, length)

    def evict(self, key: int) -> None:
        """Drop a session's KV; unknown keys are ignored."""
        self.kv.evict(key)

    def length(self, key: int) -> int:
        """Positions held for ``key``; 0 if none."""
        return self.kv.length(key)

    def states(self, key: int, layers: Sequence[int], start: int, stop: int) -> Tensor | None:
        """Keys (rotated) and values of positions start … stop-1, [layers, 2, kv_heads, stop-start, head_dim].

        A copy. None when the KV does not hold all of them.
        """
        slot = self.kv.slots.get(key)
        if slot is None or not 0 <= start <= stop <= slot.length:
            return None
        return slot.buffer[list(layers), :, :, start:stop]

    def keeps_final(self, key: int) -> bool:
        """Whether final hidden states are kept for ``key``."""
        slot = self.kv.slots.get(key)
        return slot is not None and slot.final is not None

    def final(self, key: int, start: int, stop: int) -> Tensor | None:
        """What the LM head read (after the final norm) at positions start … stop-1, [stop-start, hidden].

        A copy. None when they are not kept for this session, or not all of them.
        """
        slot = self.kv.slots.get(key)
        if slot is None or slot.final is None or not 0 <= start <= stop <= slot.length:
            return None
        return slot.final[start:stop].clone()


def _keep_final(step: Step, states: Tensor) -> None:
    """Put the final hidden states of a pass where its keys and values went. ``states``: [rows, hidden]."""
    for segment in step.segments:
        if segment.slot.final is not None:
            columns = slice(segment.start, segment.start + segment.hi - segment.lo)
            segment.slot.final[columns] = states[segment.lo : segment.hi]


def depth_first(draft: Draft) -> tuple[int, ...]:
    """Node indices, each followed by its first child's whole subtree, then the next child's."""
    if draft.is_chain:
        return tuple(range(len(draft.ids)))
    below: list[list[int]] = [[] for _ in range(len(draft.ids) + 1)]
    for node, parent in enumerate(draft.parents):
        below[parent].append(node)
    order: list[int] = []
    waiting = below[0][::-1]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += below[node + 1][::-1]
    return tuple(order)
