"""Tiny drafters of any kind with random weights, and their exported graphs driven token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.client.drafters.graph import Layout, OnnxGraph, Step
from outrider.cloud.kinds.base import FrozenTarget, TrainableDrafter
from outrider.cloud.kinds.registry import find_kind
from outrider.cloud.kinds.settings import DrafterSettings

LAYERS, VOCABULARY, MAX_POSITION = 6, 64, 128
KAPPA = 1.3

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_target_layers": LAYERS,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "draft_vocabulary": tuple(range(0, VOCABULARY, 2)),
}
"""Hidden 32, 4 query heads on 2 K/V heads of 8, six target layers; every second id can be drafted."""


def random_kind(settings: DrafterSettings, seed: int = 0) -> tuple[Any, FrozenTarget]:
    """Every parameter random, so that nothing can hide behind a zero or an identity."""
    generator = torch.Generator().manual_seed(seed)
    drafter: TrainableDrafter = find_kind(settings.kind).build(settings)
    frozen = FrozenTarget(settings, len(settings.draft_vocabulary))
    with torch.no_grad():
        for module in (drafter, frozen):
            for parameter in module.parameters():
                parameter.normal_(0.0, 0.3, generator=generator)
                if parameter.ndim == 1:
                    parameter.add_(1.0)
    return drafter.eval(), frozen.eval()


def random_cache(settings: DrafterSettings, length: int, seed: int = 1) -> Tensor:
    """Stand-in for the target's cache: [length, num_needed, 2, kv_width]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, len(settings.needed_layers), 2, settings.kv_width, generator=generator)


def rows_of_kind(drafter: TrainableDrafter, kv: Tensor, start: int = 0) -> list[Tensor]:
    """State rows of the server half for `kv` of positions start, start + 1, …"""
    s = drafter.settings
    heads = kv.unflatten(-1, (s.num_kv_heads, s.head_dim)).permute(1, 2, 3, 0, 4)
    parts = {layer: (heads[i, 0], heads[i, 1]) for i, layer in enumerate(s.needed_layers)}
    half = find_kind(s.kind).server_half(drafter)
    rows: list[Tensor] = half.rows(parts, None, torch.arange(start, start + len(kv)))
    return rows


def graph_of(
    drafter: TrainableDrafter, frozen: FrozenTarget, *, kappa: float = KAPPA, max_position: int = MAX_POSITION
) -> OnnxGraph:
    """The float32 graph, with the layout its bundle would have."""
    s = drafter.settings
    kind = find_kind(s.kind)
    model = kind.build_graph(drafter, frozen, max_position, {}, int8=False)
    layout = Layout(
        kind=s.kind,
        own_layers=s.own_layers,
        own_width=s.kv_width,
        tli_layers=len(s.tli_layers),
        row_widths=tuple(plane.width for plane in kind.server_half(drafter).planes),
        vocabulary=np.array(s.draft_vocabulary, np.int64),
        kappa=kappa,
        max_position=max_position,
        row_mask=any(tensor.name == "tli_mask" for tensor in model.graph.input),
    )
    return OnnxGraph(model.SerializeToString(), layout)


class GraphSteps:
    """A graph with the first ``num_rows`` rows, fed in order: the device without its shortcuts."""

    def __init__(self, graph: OnnxGraph, rows: list[Tensor], num_rows: int) -> None:
        self.graph, self.rows, self.num_rows = graph, [plane.numpy() for plane in rows], num_rows
        layout = graph.layout
        empty = np.zeros((0, layout.own_width), np.float32)
        self.keys = [empty] * layout.own_layers
        self.values = [empty] * layout.own_layers

    def feed(self, ids: Tensor) -> Tensor:
        """Feed the next n tokens; calibrated log-probabilities [n, V_d] in the order of the draft vocabulary."""
        past, n = len(self.keys[0]), len(ids)
        vocabulary = self.graph.layout.vocabulary
        own = np.tri(n, past + n, past, dtype=np.bool_)
        block = own.copy()
        block[:, : self.num_rows] = False
        block[np.arange(n), past + np.arange(n)] = True
        answer = self.graph.run(
            Step(
                ids=ids.numpy(),
                positions=np.arange(past, past + n),
                own_mask=own,
                tli_mask=block,
                own_keys=self.keys,
                own_values=self.values,
                rows=[np.ascontiguousarray(plane[: self.num_rows]) for plane in self.rows],
                row_valid=np.ones(self.num_rows, np.bool_),
                select=np.arange(n),
                noise=np.zeros(len(vocabulary), np.float32),
                inv_temperature=1.0,
                children=len(vocabulary),
            )
        )
        self.keys = [np.concatenate(pair) for pair in zip(self.keys, answer.keys, strict=True)]
        self.values = [np.concatenate(pair) for pair in zip(self.values, answer.values, strict=True)]
        order = np.argsort(answer.token_ids, axis=1)
        return torch.from_numpy(np.take_along_axis(answer.log_probs, order, axis=1)).float()


def law(frozen: FrozenTarget, final: Tensor) -> Tensor:
    """Calibrated log-probabilities of features [n, hidden], as a graph gives them: [n, V_d]."""
    return (frozen.head(final) / KAPPA).log_softmax(-1)
