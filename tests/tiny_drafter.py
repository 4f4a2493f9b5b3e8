"""A tiny drafter with random weights, and the device half driven the way a device drives its graph."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.moa.device_half import DeviceOutput, DeviceStep
from outrider.cloud.moa.drafter import FrozenTarget, MoaDrafter
from outrider.cloud.moa.graph import build_graph
from outrider.cloud.moa.server_half import ServerHalf

LAYERS, VOCABULARY = 6, 64
MAX_POSITION = 64

GRID: dict[str, dict[str, Any]] = {
    "paper": {"num_tli_layers": 0, "direct": False, "num_sa_layers": 1},
    "n0": {"num_tli_layers": 0},
    "n1": {"num_tli_layers": 1, "lsa_layers": (1,), "lsa_heads": 2, "lsa_kv_heads": 1},
    "n3_rank": {"num_tli_layers": 3, "tli_rank": 3},
    "full": {"num_tli_layers": 2, "tli_full": True},
    "cross-attention alone": {"num_tli_layers": 1, "later_sa_layers": (0,), "later_direct_layers": (4,)},
    "blocks": {"num_tli_layers": 0, "later_sa_layers": (2,), "later_direct_layers": (5,)},
    "blocks_full": {
        "num_tli_layers": 1,
        "tli_full": True,
        "later_sa_layers": (1, 2),
        "later_direct_layers": (-1, 4),
        "ca_kv_heads": 1,
    },
    "attention_only": {"num_tli_layers": 1, "later_sa_layers": (0, 1), "later_direct_layers": (2, 3)},
    "weights": {"num_tli_layers": 1, "memory": "weights"},
    "last_layer": {"num_tli_layers": 0, "memory": "none", "lsa_layers": (), "direct_layer": 5},
    "one_head": {"num_tli_layers": 1, "ca_kv_heads": 1},
    "final": {"num_tli_layers": 0, "direct": False, "memory": "none", "feed_final": True},
    "final_lsa": {
        "num_tli_layers": 1,
        "feed_final": True,
        "later_sa_layers": (1,),
        "later_direct_layers": (3,),
    },
}
"""Settings that differ in every part that can: name -> arguments of `tiny_settings`."""


def tiny_settings(
    num_tli_layers: int = 2, direct: bool = True, num_sa_layers: int = 2, **changes: Any
) -> MoaSettings:
    """Hidden 32, 4 query heads on 2 K/V heads of 8, six target layers; `changes` are fields."""
    settings = MoaSettings(
        hidden_size=32,
        num_target_layers=LAYERS,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=48,
        vocab_size=VOCABULARY,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        lsa_layers=(0, 2, 5),
        lsa_heads=4,
        lsa_kv_heads=2,
        lsa_intermediate_size=32,
        num_sa_layers=num_sa_layers,
        direct_layer=LAYERS - 1 - num_tli_layers if direct else -1,
        num_tli_layers=num_tli_layers,
        draft_vocabulary=tuple(range(0, VOCABULARY, 2)),
    )
    return replace(settings, **changes)


def random_drafter(settings: MoaSettings, seed: int = 0) -> tuple[MoaDrafter, FrozenTarget]:
    """Every parameter random, so that nothing can hide behind a zero or an identity."""
    generator = torch.Generator().manual_seed(seed)
    drafter, frozen = MoaDrafter(settings), FrozenTarget(settings, len(settings.draft_vocabulary))
    statistics = [buffer for name, buffer in drafter.named_buffers() if name.endswith((".center", ".scale"))]
    with torch.no_grad():
        for tensor in (*drafter.parameters(), *frozen.parameters(), *statistics):
            tensor.normal_(0.0, 0.3, generator=generator)
            if tensor.ndim == 1:
                tensor.add_(1.0)
    return drafter.eval(), frozen.eval()


def trained_and_merged(settings: MoaSettings) -> tuple[MoaDrafter, FrozenTarget, FrozenTarget]:
    """A random drafter, the frozen parts as training runs them, and as the device gets them."""
    drafter, frozen = random_drafter(settings)
    merged = drafter.merge(deepcopy(frozen))
    drafter.correct(frozen)
    return drafter, frozen, merged


def random_kv(settings: MoaSettings, length: int, seed: int = 1) -> Tensor:
    """Stand-in for the target's cache: [length, num_needed, 2, kv_width]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, len(settings.needed_layers), 2, settings.kv_width, generator=generator)


def random_final(settings: MoaSettings, length: int, seed: int = 2) -> Tensor | None:
    """Stand-in for the target's final states [length, hidden], where the drafter reads them."""
    generator = torch.Generator().manual_seed(seed)
    final = torch.randn(length, settings.hidden_size, generator=generator)
    return final if settings.needs_final else None


def rows_of(drafter: MoaDrafter, kv: Tensor, start: int = 0, final: Tensor | None = None) -> list[Tensor]:
    """State rows of the server half for `kv` (and `final`) of positions start, start + 1, …"""
    s = drafter.settings
    heads = kv.unflatten(-1, (s.num_kv_heads, s.head_dim)).permute(1, 2, 3, 0, 4)
    parts = {layer: (heads[i, 0], heads[i, 1]) for i, layer in enumerate(s.needed_layers)}
    return ServerHalf(s, drafter.memory).rows(parts, final, torch.arange(start, start + len(kv)))


def random_step(
    settings: MoaSettings, planes: list[int], n: int, t: int, c: int, seed: int, missing: float = 0.3
) -> DeviceStep:
    """n new tokens after t slots under a random tree-like mask, c row positions of which some are missing."""
    g = torch.Generator().manual_seed(seed)
    own = torch.rand(n, t + n, generator=g) < 0.7
    own[:, t:] &= torch.ones(n, n, dtype=torch.bool).tril()
    own[:, t:] |= torch.eye(n, dtype=torch.bool)
    valid = torch.rand(c, generator=g) >= missing
    tli = own.clone()
    tli[:, : min(c, t)] &= ~valid[: min(c, t)]
    own_kv = [torch.randn(t, settings.kv_width, generator=g) for _ in range(2 * settings.own_layers)]
    return DeviceStep(
        ids=torch.randint(settings.vocab_size, (n,), generator=g),
        positions=torch.randint(MAX_POSITION, (n,), generator=g),
        own_mask=own,
        tli_mask=tli,
        own_k=own_kv[: settings.own_layers],
        own_v=own_kv[settings.own_layers :],
        rows=[torch.randn(c, width, generator=g) for width in planes],
        row_valid=valid,
        select=torch.randperm(n, generator=g)[: max(1, n // 2)],
    )


def feeds(
    step: DeviceStep, inputs: set[str], noise: NDArray[np.float32], warmth: float, kappa: float, k: int
) -> dict[str, object]:
    """The graph's inputs for a step, those it has."""
    names = ("ids", "positions", "own_mask", "tli_mask", "row_valid", "select")
    named = {name: getattr(step, name).numpy() for name in names}
    for part in ("own_k", "own_v", "rows"):
        named.update({f"{part}.{i}": value.numpy() for i, value in enumerate(getattr(step, part))})
    one = np.ones(1, dtype=np.float32)
    named |= {"noise": noise, "inv_temperature": one / warmth, "inv_kappa": one / kappa, "k": np.array([k])}
    return {name: value for name, value in named.items() if name in inputs}


def open_session(content: bytes) -> onnxruntime.InferenceSession:
    """A one-threaded session."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


class Half(Protocol):
    """Anything that runs a step: the torch oracle or the exported graph."""

    settings: MoaSettings

    def step(self, step: DeviceStep) -> DeviceOutput:
        """Run n new tokens."""
        ...


class GraphHalf:
    """The exported graph behind the oracle's interface."""

    def __init__(self, drafter: MoaDrafter, merged: FrozenTarget, *, int8: bool = False):
        self.settings = drafter.settings
        model = build_graph(drafter, merged, MAX_POSITION, {}, int8=int8)
        self.session = open_session(model.SerializeToString())
        self._inputs = {tensor.name for tensor in self.session.get_inputs()}
        self._places = {token: place for place, token in enumerate(self.settings.draft_vocabulary)}

    def step(self, step: DeviceStep) -> DeviceOutput:
        """All scores of the draft vocabulary, put back into its order."""
        size = len(self._places)
        given = feeds(step, self._inputs, np.zeros(size, np.float32), 1.0, 1.0, size)
        names = [tensor.name for tensor in self.session.get_outputs()]
        found = dict(zip(names, self.session.run(names, given), strict=True))
        logits = torch.empty(found["scores"].shape)
        places = [[self._places[token] for token in row] for row in found["token_ids"].tolist()]
        logits.scatter_(1, torch.tensor(places), torch.from_numpy(found["scores"]))
        new = [
            [torch.from_numpy(found[f"new_{part}.{layer}"]) for layer in range(self.settings.own_layers)]
            for part in "kv"
        ]
        return DeviceOutput(logits, new[0], new[1])


@dataclass
class Device:
    """A device's view: own K/V of what it fed, rows of the first `num_rows` positions."""

    half: Half
    rows: list[Tensor]
    num_rows: int
    """May be changed between steps: rows that come late."""

    def __post_init__(self) -> None:
        s = self.half.settings
        self.own_k = [torch.zeros(0, s.kv_width) for _ in range(s.own_layers)]
        self.own_v = [torch.zeros(0, s.kv_width) for _ in range(s.own_layers)]

    def feed(self, ids: Tensor) -> Tensor:
        """Feed the next n tokens in order; logits [n, V_d] at each."""
        past, n = len(self.own_k[0]), len(ids)
        own = torch.ones(n, past + n, dtype=torch.bool).tril(past)
        tli = own.clone()
        tli[:, : min(self.num_rows, past + n)] = False
        tli |= torch.cat((torch.zeros(n, past, dtype=torch.bool), torch.eye(n, dtype=torch.bool)), dim=1)
        out = self.half.step(
            DeviceStep(
                ids=ids,
                positions=torch.arange(past, past + n),
                own_mask=own,
                tli_mask=tli,
                own_k=self.own_k,
                own_v=self.own_v,
                rows=[plane[: self.num_rows] for plane in self.rows],
                row_valid=torch.ones(self.num_rows, dtype=torch.bool),
                select=torch.arange(n),
            )
        )
        self.own_k = [torch.cat(pair) for pair in zip(self.own_k, out.new_k, strict=True)]
        self.own_v = [torch.cat(pair) for pair in zip(self.own_v, out.new_v, strict=True)]
        return out.logits
