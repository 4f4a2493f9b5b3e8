"""Muon for matrices, AdamW for everything else, and their state as plain tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from outrider.cloud.kinds.base import TrainableDrafter

_STEPS = 5
_COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""Of the Newton-Schulz iteration (Jordan et al. 2024, "Muon"), as in torch.optim.Muon."""


class BatchedMuon(torch.optim.Optimizer):
    """torch.optim.Muon's update, with matrices of equal shape orthogonalised in one batched product.

    On a CPU the one-by-one form spends half its time on transposed operands and float32 copies.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], rate: float, decay: float = 0.01, momentum: float = 0.95
    ):
        """Parameters must be matrices."""
        super().__init__(list(parameters), {"lr": rate, "decay": decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        del closure
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    low, high = sorted(parameter.shape)
                    shapes.setdefault((low, high), []).append(parameter)
            for shape, parameters in shapes.items():
                self._update(parameters, shape, group)

    def _update(self, parameters: list[nn.Parameter], shape: tuple[int, int], group: dict[str, Any]) -> None:
        wide = torch.empty(len(parameters), *shape, dtype=torch.bfloat16)
        for place, parameter in zip(wide, parameters, strict=True):
            gradient = parameter.grad
            if gradient is None:
                continue
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(gradient)
            buffer: Tensor = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
            update = gradient.lerp(buffer, group["momentum"])
            place.copy_(update if tuple(parameter.shape) == shape else update.T)
        turned = orthogonalised(wide)
        for place, parameter in zip(turned, parameters, strict=True):
            parameter.mul_(1 - group["lr"] * group["decay"])
            ratio = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
            update = place if tuple(parameter.shape) == shape else place.T
            parameter.add_(update, alpha=-group["lr"] * ratio)


def orthogonalised(matrices: Tensor) -> Tensor:
    """bfloat16 [b, n, m] with n <= m -> about the nearest matrices with orthonormal rows; changes its argument."""
    a, b, c = _COEFFICIENTS
    x = matrices.div_(matrices.float().norm(dim=(1, 2), keepdim=True).clamp_min(1e-7).to(matrices.dtype))
    for _ in range(_STEPS):
        gram = torch.bmm(x, x.transpose(1, 2))
        mix = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, mix, x, beta=a)
    return x


class Optimisers:
    """Both optimisers behind one step; the state goes to safetensors, never through pickle."""

    def __init__(self, module: TrainableDrafter, muon_rate: float, adam_rate: float, clip: float = 1.0):
        """Matrices go to Muon at the rate their name says, except what `adam_parts` names."""
        rest: dict[str, nn.Parameter] = {}
        groups: dict[float, dict[str, nn.Parameter]] = {}
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter.ndim != 2 or any(part in name for part in module.adam_parts):
                rest[name] = parameter
                continue
            share = next((share for prefix, share in module.rate_shares if name.startswith(prefix)), 1.0)
            groups.setdefault(share, {})[name] = parameter
        self._parts: list[tuple[torch.optim.Optimizer, dict[str, nn.Parameter], float]] = [
            (BatchedMuon(group.values(), share * muon_rate), group, share * muon_rate)
            for share, group in groups.items()
        ]
        if rest:
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
