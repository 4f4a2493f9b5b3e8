"""The kinds of drafter there are: one entry each, imported when it is asked for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.cloud.kinds.base import TrainableDrafter
from outrider.cloud.kinds.settings import DrafterSettings
from outrider.cloud.train.blocks import BlockMix
from outrider.shared.errors import ConfigError

KINDS = ("moa", "eagle2", "glide", "medusa", "independent")
"""Kinds with weights of their own, in the order tables list them."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Everything that differs between kinds, behind functions of one shape."""

    name: str
    settings_class: type[DrafterSettings]
    shape: Callable[..., Any]
    """(target config, **options) -> settings with this kind's defaults."""
    build: Callable[[Any], TrainableDrafter]
    """settings -> a drafter with fresh weights."""
    initialise: Callable[[Any, Any, int], None]
    """(drafter, TargetWeights, seed): start from the target."""
    server_half: Callable[[Any], Any]
    """drafter -> what the verifier runs of it."""
    build_graph: Callable[..., Any]
    """(drafter, frozen, max_position, metadata, *, int8) -> the device's ONNX model."""
    mix: BlockMix = field(default_factory=BlockMix)
    """How texts are cut when nothing else is said."""

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


def find_kind(name: str) -> Kind:
    """The entry `KIND` of `outrider.cloud.<name>.kind`; ConfigError listing the known ones."""
    if name not in KINDS:
        raise ConfigError(
            "KIND", f"no kind of drafter is called {name!r}", remedy=f"one of {', '.join(KINDS)}"
        )
    kind: Kind = importlib.import_module(f"outrider.cloud.{name}.kind").KIND
    return kind
