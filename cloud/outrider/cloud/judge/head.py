"""The judge's head: a linear classifier of one state of the target, and the file that carries it.

Bachmann et al. (ICLR 2025) read the target's last-layer state at the position of the drafted token itself, before the
final norm. The standardiser and the Platt scale are folded into weight and bias, so what is served is one product.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.shared.errors import ConfigError

FORMAT = 1
OPTION = "--judge-head"


class Feature(StrEnum):
    """Which state of the target is read."""

    PRENORM = "prenorm"
    """The last layer's, before the final norm: what the paper reads."""
    POSTNORM = "postnorm"
    """After it: what the LM head reads."""


class Position(StrEnum):
    """Where it is read."""

    CANDIDATE = "candidate"
    """At the drafted token, which the target has consumed."""
    PREVIOUS = "previous"
    """At the token before it, whose row chooses what follows."""


class Polarity(StrEnum):
    """What a large ``weight @ state + bias`` speaks for."""

    GOOD = "good"
    """For keeping the token (the paper's labels)."""
    BAD = "bad"
    """Against it (labels "important", as AutoJudge mines them)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgeHead:
    """A fitted head. `score` means the same under either polarity."""

    weight: NDArray[np.float64]
    """[hidden]"""
    bias: float
    delta: float
    """A token is kept when its score is at least this."""
    target: str
    """SHA-256 of the target's weights, hex (`Target.weights`): states of any other target mean nothing here."""
    feature: Feature = Feature.PRENORM
    position: Position = Position.CANDIDATE
    polarity: Polarity = Polarity.GOOD
    validation_auc: float
    """Of good against bad drafted tokens, on templates that were not fitted on."""
    data_hash: str
    """SHA-256 of the labels it was fitted and calibrated on, hex."""
    class_weight: float
    """How much more a bad token counted in the loss."""
    c: float
    """Inverse strength of the L2 penalty."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the fit for whoever reads the file; nothing depends on them."""

    @property
    def hidden(self) -> int:
        """Width of the states it reads."""
        return len(self.weight)

    def score(self, states: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Probability that a token is good, in [0, 1]: [n] for ``states`` [n, hidden], a scalar array for [hidden].

        ``states`` are of this head's `feature` at its `position`. Raises ValueError for another width.
        """
        given = np.asarray(states, np.float64)
        if given.shape[-1:] != self.weight.shape:
            raise ValueError(f"states are {given.shape[-1:]} wide, the head reads {self.weight.shape}")
        logit = given @ self.weight + self.bias
        return sigmoid(logit if self.polarity is Polarity.GOOD else -logit)

    def keeps(self, states: NDArray[np.floating[Any]], delta: float | None = None) -> NDArray[np.bool_]:
        """Whether each score reaches ``delta`` (None: the head's own)."""
        kept: NDArray[np.bool_] = self.score(states) >= (self.delta if delta is None else delta)
        return kept

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        content: dict[str, Any] = {"format": FORMAT}
        content |= {one.name: getattr(self, one.name) for one in fields(self)}
        content |= {"weight": self.weight.tolist(), "record": dict(self.record)}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        partial.replace(path)

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        target: str | None = None,
        hidden: int | None = None,
        feature: Feature | None = None,
        position: Position | None = None,
        option: str = OPTION,
    ) -> JudgeHead:
        """Read a head and compare it with what is served; None compares nothing.

        Raises ConfigError (``option``) naming the field that is missing, malformed or of something else.
        """
        head = _parsed(path, option)
        expected = {"target": target, "hidden": hidden, "feature": feature, "position": position}
        for name, here in expected.items():
            theirs = getattr(head, name)
            if here is not None and theirs != here:
                raise _wrong(option, path, name, f"the head is for {theirs}, here it is {here}")
        return head


def sigmoid(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """1 / (1 + exp(-logits)) without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * np.asarray(logits, np.float64))))


_NUMBERS = ("bias", "delta", "validation_auc", "class_weight", "c")
_WORDS: dict[str, type[StrEnum]] = {"feature": Feature, "position": Position, "polarity": Polarity}


def _parsed(path: Path, option: str) -> JudgeHead:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(option, f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(option, f"{path}: expected a JSON object")
    if content.pop("format", None) != FORMAT:
        raise _wrong(option, path, "format", f"expected {FORMAT}")
    names = {one.name for one in fields(JudgeHead)}
    for name in sorted(names ^ content.keys()):
        raise _wrong(option, path, name, "is missing" if name in names else "is no field of a head")
    for name in _NUMBERS:
        content[name] = _number(content[name], option, path, name)
    for name, kind in _WORDS.items():
        if content[name] not in list(kind):
            raise _wrong(option, path, name, f"expected {' or '.join(kind)}, got {content[name]!r}")
        content[name] = kind(content[name])
    for name in ("target", "data_hash"):
        if not isinstance(content[name], str) or len(content[name]) != 64:
            raise _wrong(option, path, name, "expected a SHA-256 in hex")
    if not isinstance(content["record"], dict):
        raise _wrong(option, path, "record", "expected an object")
    weight = content["weight"]
    if not isinstance(weight, list) or not weight:
        raise _wrong(option, path, "weight", "expected a list of numbers")
    content["weight"] = np.asarray([_number(one, option, path, "weight") for one in weight])
    return JudgeHead(**content)


def _number(given: object, option: str, path: Path, name: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise _wrong(option, path, name, f"expected a finite number, got {given!r}")
    return float(given)


def _wrong(option: str, path: Path, name: str, why: str) -> ConfigError:
    return ConfigError(option, f"{path.name}: {name}: {why}", remedy="fit a head for this target")
