"""Muon for matrices, AdamW for everything else, and their state as plain tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MEMORY_SHARE = 0.3
"""Learning rate of LSA and its projection, over that of SA and CA."""


class Optimisers:
    """Both optimisers behind one step; the state goes to safetensors, never through pickle."""

    def __init__(self, module: nn.Module, muon_rate: float, adam_rate: float, clip: float = 1.0):
        """Matrices go to Muon, except the identity-initialised direct path and the low-rank corrections."""
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        apart = ("direct_", "null_", "corrections.")
        matrices = {n: p for n, p in named.items() if p.ndim == 2 and not any(part in n for part in apart)}
        # What the memory adds is small beside the direct path: at the full rate its updates are mostly noise.
        memory = {n: matrices.pop(n) for n in list(matrices) if n.startswith("memory.")}
        rest = {n: p for n, p in named.items() if n not in matrices and n not in memory}
        self._parts: list[tuple[torch.optim.Optimizer, dict[str, nn.Parameter], float]] = [
            (torch.optim.Muon(group.values(), lr=rate, weight_decay=0.01), group, rate)
            for group, rate in ((matrices, muon_rate), (memory, MEMORY_SHARE * muon_rate))
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
