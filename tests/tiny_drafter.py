"""A tiny drafter with random weights, and the device half driven the way a device drives its graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.moa.device_half import DeviceHalf, DeviceStep
from outrider.cloud.moa.drafter import FrozenTarget, MoaDrafter
from outrider.cloud.moa.server_half import ServerHalf

LAYERS, VOCABULARY = 6, 64


def tiny_settings(num_tli_layers: int = 2, direct: bool = True, num_sa_layers: int = 2) -> MoaSettings:
    """Hidden 32, 4 query heads on 2 K/V heads of 8, six target layers."""
    return MoaSettings(
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


def random_drafter(settings: MoaSettings, seed: int = 0) -> tuple[MoaDrafter, FrozenTarget]:
    """Every parameter random, so that nothing can hide behind a zero or an identity."""
    generator = torch.Generator().manual_seed(seed)
    drafter, frozen = MoaDrafter(settings), FrozenTarget(settings, len(settings.draft_vocabulary))
    with torch.no_grad():
        for module in (drafter, frozen):
            for parameter in module.parameters():
                parameter.normal_(0.0, 0.3, generator=generator)
                if parameter.ndim == 1:
                    parameter.add_(1.0)
    return drafter.eval(), frozen.eval()


def random_kv(settings: MoaSettings, length: int, seed: int = 1) -> Tensor:
    """Stand-in for the target's cache: [length, num_needed, 2, kv_width]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, len(settings.needed_layers), 2, settings.kv_width, generator=generator)


def rows_of(drafter: MoaDrafter, kv: Tensor, start: int = 0) -> list[Tensor]:
    """State rows of the server half for `kv` of positions start, start + 1, …"""
    s = drafter.settings
    heads = kv.unflatten(-1, (s.num_kv_heads, s.head_dim)).permute(1, 2, 3, 0, 4)
    parts = {layer: (heads[i, 0], heads[i, 1]) for i, layer in enumerate(s.needed_layers)}
    return ServerHalf(s, drafter.memory).rows(parts, None, torch.arange(start, start + len(kv)))


@dataclass
class Device:
    """A device's view: own K/V of what it fed, rows of the first `num_rows` positions."""

    half: DeviceHalf
    rows: list[Tensor]
    num_rows: int

    def __post_init__(self) -> None:
        s = self.half.settings
        self.own_k = [torch.zeros(0, s.kv_width) for _ in range(s.own_layers)]
        self.own_v = [torch.zeros(0, s.kv_width) for _ in range(s.own_layers)]

    def feed(self, ids: Tensor) -> Tensor:
        """Feed the next n tokens in order; logits [n, V_d] at each."""
        past, n = len(self.own_k[0]), len(ids)
        own = torch.ones(n, past + n, dtype=torch.bool).tril(past)
        tli = own.clone()
        tli[:, : self.num_rows] = False
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
