"""Settings that drafters of every kind have, stored as JSON beside their weights.

Everything that decides shapes or row layout stands in a subclass of `DrafterSettings`; what only concerns
training stands in `outrider.cloud.train.plan`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

SETTINGS_FILE = "drafter.json"
WEIGHTS_FILE = "drafter.safetensors"
FIRST_KIND = "moa"
"""Kind of a weights folder that names none: the only one there was when such folders were written."""


@dataclass(frozen=True, kw_only=True)
class DrafterSettings:
    """Shapes of a drafter; field names are the JSON keys. Kinds add their own fields."""

    kind: str
    """Name of the kind, as `registry.find_kind` knows it."""
    # --- copied from the target
    hidden_size: int
    """Width of the residual stream."""
    num_target_layers: int
    """Decoder layers of the target."""
    num_heads: int
    """Query heads of the target."""
    num_kv_heads: int
    """Key/value heads of the target."""
    head_dim: int
    """Width of one head."""
    intermediate_size: int
    """MLP width of the target."""
    vocab_size: int
    """Target vocabulary (full)."""
    rope_theta: float
    """Base of the rotary embedding."""
    rms_norm_eps: float
    """Epsilon of every RMSNorm."""
    attention_bias: bool = False
    """Whether the target's queries, keys and values have a bias (Qwen2)."""
    # --- what training found
    draft_vocabulary: tuple[int, ...] = ()
    """Target ids the drafter can propose, in draft order; empty before training has chosen them."""
    kappa: float = 1.0
    """Temperature of the calibrated child law softmax(logits / kappa) of greedy answers, fitted on validation."""
    kappa_sampled: float = 0.0
    """The same of sampled ones, softmax((logits + noise) / kappa_sampled) at temperature 1; 0 = as `kappa`."""
    training_step: int = 0
    """Optimiser steps behind the weights."""
    trained_length: int = 0
    """Longest text seen in training, tokens; beyond it acceptance is unmeasured."""
    confidence: tuple[tuple[float, ...], ...] = ()
    """By depth and rank, how often a child is the target's greedy token; empty before it was fitted."""
    confidence_sampled: tuple[tuple[float, ...], ...] = ()
    """The same at temperature 1 with shared noise."""

    @property
    def kv_width(self) -> int:
        """Values of one key (or value) over all heads of the target."""
        return self.num_kv_heads * self.head_dim

    @property
    def tli_layers(self) -> tuple[int, ...]:
        """Top target layers that run on the device, ascending."""
        return ()

    @property
    def needed_layers(self) -> tuple[int, ...]:
        """Target layers whose K/V training or the server half reads, ascending."""
        return ()

    @property
    def needs_final(self) -> bool:
        """Whether training or the server half reads the target's final hidden state, after the final norm."""
        return False

    @property
    def stream_layer(self) -> int | None:
        """Target layer whose entering residual stream is a training target; None where none is."""
        return None

    @property
    def own_layers(self) -> int:
        """K/V buffers the device keeps for itself."""
        return 0

    def to_json(self) -> str:
        """Settings as one JSON object, keys in field order."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse `to_json` output of this class; ValueError on an unknown or missing key, or another kind."""
        raw: dict[str, Any] = {"kind": FIRST_KIND, **json.loads(text)}
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(raw) - known):
            raise ValueError(f"unknown drafter settings {unknown}; this version knows {sorted(known)}")
        mine = next(field.default for field in fields(cls) if field.name == "kind")
        if mine is not MISSING and raw["kind"] != mine:
            raise ValueError(f"these are settings of a {raw['kind']!r} drafter, expected {mine!r}")
        try:
            return cls(**{name: _frozen(value) for name, value in raw.items()})
        except TypeError as error:
            raise ValueError(f"drafter settings are incomplete: {error}") from error

    def save(self, folder: Path) -> None:
        """Write the settings into a weights folder."""
        (folder / SETTINGS_FILE).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the settings of a weights folder of this kind."""
        return cls.from_json((folder / SETTINGS_FILE).read_text(encoding="utf-8"))


def load_settings(folder: Path) -> DrafterSettings:
    """Settings of a weights folder of any kind. ValueError if they are none, ConfigError for an unknown kind."""
    from outrider.cloud.kinds.registry import find_kind

    text = (folder / SETTINGS_FILE).read_text(encoding="utf-8")
    name = json.loads(text).get("kind", FIRST_KIND)
    return find_kind(str(name)).settings_class.from_json(text)


def target_shape(config: Any) -> dict[str, Any]:
    """The fields every kind copies from the target's transformers config.

    Raises ValueError for a scaled rotary embedding: keys are turned by plain angles everywhere here, and
    a drafter whose parts disagree on angles would be wrong in silence.
    """
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    scaling = getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    if kind != "default":
        raise ValueError(
            f"rope_type: only the default rotary embedding is supported, the target uses {kind!r}"
        )
    heads = int(config.num_attention_heads)
    return {
        "hidden_size": int(config.hidden_size),
        "num_target_layers": int(config.num_hidden_layers),
        "num_heads": heads,
        "num_kv_heads": int(config.num_key_value_heads),
        "head_dim": int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        "intermediate_size": int(config.intermediate_size),
        "vocab_size": int(config.vocab_size),
        "rope_theta": float(rope.get("rope_theta", getattr(config, "rope_theta", 10000.0))),
        "rms_norm_eps": float(config.rms_norm_eps),
        # Qwen2 has these biases without a word in its config.
        "attention_bias": bool(
            getattr(config, "attention_bias", getattr(config, "model_type", "") == "qwen2")
        ),
    }


def parse_overrides(cls: type[Any], pairs: Iterable[str]) -> dict[str, Any]:
    """`name=value` words as fields of the dataclass `cls`, typed as it declares them.

    Lists are comma separated, `none` stands for None, true/false for bool. Raises ValueError naming the
    word, the field and what it expects.
    """
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls) if field.init]
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r}: expected name=value")
        if name not in names:
            raise ValueError(f"{name}: no such setting; there are {', '.join(names)}")
        try:
            values[name] = _typed(hints[name], text)
        except ValueError as error:
            raise ValueError(f"{name}: expected {_words(hints[name])}, got {text!r}") from error
    return values


def _typed(hint: Any, text: str) -> Any:
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return tuple(_typed(inner, part) for part in text.split(",") if part.strip())
    if isinstance(hint, UnionType):
        if text.lower() == "none":
            return None
        return _typed(next(option for option in get_args(hint) if option is not type(None)), text)
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if hint in (int, float, str):
        return hint(text)
    raise ValueError(f"values of type {hint} cannot be given as text")


def _words(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"a comma-separated list of {_words(get_args(hint)[0])}"
    if isinstance(hint, UnionType):
        return " or ".join(_words(option) for option in get_args(hint))
    return {int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}.get(
        hint, getattr(hint, "__name__", str(hint))
    )


def _frozen(value: Any) -> Any:
    """JSON lists as tuples, all the way down."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
