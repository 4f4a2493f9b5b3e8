"""The states a judge reads: what enters the target's final norm, and what leaves it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from outrider.cloud.judge.head import Feature, Position
from outrider.shared.errors import ConfigError

State = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """One position's two states, [hidden] each."""

    prenorm: State
    postnorm: State

    def of(self, feature: Feature) -> State:
        """The one a head of that feature reads."""
        return self.prenorm if feature is Feature.PRENORM else self.postnorm


@dataclass(frozen=True, slots=True, eq=False)
class CandidateStates:
    """What can be read of one drafted token."""

    candidate: States
    """At the token itself."""
    previous: States
    """At the token before it."""

    def of(self, feature: Feature, position: Position) -> State:
        """The state [hidden] a head of that feature and position reads."""
        states = self.candidate if position is Position.CANDIDATE else self.previous
        return states.of(feature)


class NormTap:
    """Holds what entered a model's final norm in its latest pass."""

    def __init__(self) -> None:
        self._caught: Tensor | None = None

    @property
    def states(self) -> Tensor:
        """[rows, hidden] of the latest pass. Raises ValueError if there was none."""
        if self._caught is None:
            raise ValueError("no pass was made yet")
        return self._caught

    def __call__(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        """The hook: keep the norm's input [1, rows, hidden]."""
        del module
        self._caught = given[0].detach()[0]


def final_norm(model: Any) -> nn.Module:
    """The norm between the last layer and the LM head. Raises ConfigError for a model that does not say which."""
    norm = getattr(model.base_model, "norm", None)
    if not isinstance(norm, nn.Module):
        raise ConfigError(
            "--target", f"{type(model).__name__} has no final norm", remedy="judge decoding cannot be used"
        )
    return norm


@contextmanager
def tapped(model: Any) -> Iterator[NormTap]:
    """A tap on the model's final norm while the block runs."""
    tap = NormTap()
    handle = final_norm(model).register_forward_pre_hook(tap)
    try:
        yield tap
    finally:
        handle.remove()
