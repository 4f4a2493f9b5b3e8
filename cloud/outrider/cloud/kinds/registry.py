"""The kinds of drafter there are: one entry each, imported when it is asked for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from outrider.cloud.kinds.base import FrozenTarget, TrainableDrafter
from outrider.cloud.kinds.settings import DrafterSettings
from outrider.cloud.train.blocks import BlockMix
from outrider.shared.errors import ConfigError

KINDS = ("moa", "eagle2", "glide", "medusa", "independent")
"""Kinds with weights of their own, in the order tables list them."""


DrafterT = TypeVar("DrafterT", bound=TrainableDrafter)


def of_kind(drafter: TrainableDrafter, wanted: type[DrafterT]) -> DrafterT:
    """A drafter as the class it must be here; TypeError if it is another."""
    if not isinstance(drafter, wanted):
        raise TypeError(f"expected {wanted.__name__}, got {type(drafter).__name__}")
    return drafter


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Everything that differs between kinds, behind functions of one shape."""

    name: str
    settings_class: type[DrafterSettings]
    shape: Callable[..., Any]
    """(target config, **options) -> settings with this kind's defaults."""
    build: type[TrainableDrafter]
    """settings -> a drafter with fresh weights."""
    initialise: Callable[[Any, Any, int], None]
    """(drafter, TargetWeights, seed): start from the target."""
    server_half: Callable[[Any], Any]
    """drafter -> what the verifier runs of it."""
    mix: BlockMix = field(default_factory=BlockMix)
    """How texts are cut when nothing else is said."""
    dials: frozenset[str] = frozenset({"spans", "staircase", "features"})
    """Which of these training dials change anything in this kind: others are refused, not ignored."""

    def settings_for(self, config: Any, **overrides: Any) -> DrafterSettings:
        """Settings for a target, with any field overridden; what `shape` derives from one, follows it.

        Raises ValueError naming the field that cannot be.
        """
        parameters = inspect.signature(self.shape).parameters.values()
        anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        named = {parameter.name for parameter in parameters}
        derived = {name: value for name, value in overrides.items() if anything or name in named}
        settings: DrafterSettings = self.shape(config, **derived)
        rest = {name: value for name, value in overrides.items() if name not in derived}
        return replace(settings, **rest) if rest else settings

    def build_graph(
        self,
        drafter: TrainableDrafter,
        frozen: FrozenTarget,
        max_position: int,
        metadata: Mapping[str, str],
        *,
        int8: bool = True,
    ) -> Any:
        """The device's ONNX model, from the kind's module `graph`; onnx is loaded only here.

        Raises TypeError for a drafter of another kind.
        """
        graph = importlib.import_module(f"outrider.cloud.{self.name}.graph")
        return graph.build_graph(
            of_kind(drafter, self.build), frozen, max_position, dict(metadata), int8=int8
        )


def find_kind(name: str) -> Kind:
    """The entry `KIND` of `outrider.cloud.<name>.kind`; ConfigError listing the known ones."""
    if name not in KINDS:
        raise ConfigError(
            "KIND", f"no kind of drafter is called {name!r}", remedy=f"one of {', '.join(KINDS)}"
        )
    kind: Kind = importlib.import_module(f"outrider.cloud.{name}.kind").KIND
    return kind
