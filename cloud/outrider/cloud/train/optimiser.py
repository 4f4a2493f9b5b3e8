"""Muon for matrices, AdamW for everything else, and their state as plain tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outrider.cloud.kinds.base import TrainableDrafter


class Optimisers:
    """Both optimisers behind one step; the state goes to safetensors, never through pickle."""

    def __init__(self, module: TrainableDrafter, muon_rate: float, adam_rate: float, clip: float = 1.0):
        """Matrices go to Muon at the rate their name says, except what `adam_parts` names."""
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        rest: dict[str, nn.Parameter] = {}
        groups: dict[float, dict[str, nn.Parameter]] = {}
        for name, parameter in named.items():
            if parameter.ndim != 2 or any(part in name for part in module.adam_parts):
                rest[name] = parameter
                continue
            share = next((share for prefix, share in module.rate_shares if name.startswith(prefix)), 1.0)
            groups.setdefault(share, {})[name] = parameter
        self._parts: list[tuple[torch.optim.Optimizer, dict[str, nn.Parameter], float]] = [
            (
                torch.optim.Muon(group.values(), lr=share * muon_rate, weight_decay=0.01),
                group,
                share * muon_rate,
            )
            for share, group in groups.items()
        ]
        adam = torch.optim.AdamW(rest.values(), lr=adam_rate, betas=(0.9, 0.98), weight_decay=0.0)
        self._parts.append((adam, rest, adam_rate))
        self._clip = clip
        self._rest = list(rest.values())

    def step(self, rate: float) -> None:
        """Update at `rate` times the peak rates and clear gradients."""
        # Muon's update does not depend on the gradient's length, so only AdamW's part is clipped.
        torch.nn.utils.clip_grad_norm_(self._rest, self._clip)
        for optimiser, _, peak in self._parts:
            for group in optimiser.param_groups:
                group["lr"] = peak * rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Momenta and counters, keyed `<parameter>|<buffer>`."""
        return {
            f"{name}|{key}": value
            for optimiser, named, _ in self._parts
            for name, parameter in named.items()
            for key, value in optimiser.state[parameter].items()
            if isinstance(value, Tensor)
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Inverse of `state`."""
        for optimiser, named, _ in self._parts:
            for name, parameter in named.items():
                found = {k.split("|")[1]: v for k, v in tensors.items() if k.split("|")[0] == name}
                if found:
                    optimiser.state[parameter] = found
