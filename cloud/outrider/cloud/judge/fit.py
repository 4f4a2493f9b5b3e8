"""Fitting a judge: standardise, logistic regression, choose by cross-validation, calibrate on unseen templates.

Class weight and C are chosen on training labels alone, left out by whole templates, so that the AUC on the validation
templates is that of one head and not of the luckiest of many. Only mined labels are validated on: they are what the
rule meets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.judge.head import Feature, JudgeHead, Position, sigmoid
from outrider.cloud.judge.logistic import Linear, fit_logistic, platt
from outrider.cloud.judge.records import Row
from outrider.cloud.judge.stats import Interval, auc, auc_interval, wilson
from outrider.cloud.judge.table import Table, folds, parts, table
from outrider.shared.errors import ConfigError

CLASS_WEIGHTS = (1.0, 2.0, 4.0, 8.0)
CS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSetting:
    """How a head is fitted."""

    feature: Feature = Feature.PRENORM
    position: Position = Position.CANDIDATE
    recall: float = 0.95
    """Share of bad validation tokens that the threshold must refuse."""
    class_weights: tuple[float, ...] = CLASS_WEIGHTS
    cs: tuple[float, ...] = CS
    num_folds: int = 4
    corrupted: bool = True
    """Whether labels of corrupted answers are fitted on."""
    hold_out: tuple[str, ...] = ()
    """Families not fitted on, but for …"""
    adapt: int = 0
    """… so many training prompts of each."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Chosen:
    """The best of the grid."""

    class_weight: float
    c: float
    auc: float
    """Mean over folds of the AUC on mined labels left out."""
    grid: Mapping[str, float] = field(default_factory=dict)


def fit(rows: Sequence[Row], setting: FitSetting, *, target: str, data_hash: str) -> JudgeHead:
    """A head from labels; `JudgeHead.record` says how good it is, in figures and, where it is not, in words.

    ``target``: SHA-256 of the target's weights, hex. Raises ConfigError ("LABELS") for labels that nothing can be
    learned or calibrated from.
    """
    split = parts(rows, setting.hold_out, setting.adapt)
    train = table(split.train, setting.feature, setting.position)
    if not setting.corrupted:
        train = train.only(train.mined)
    validation = _mined(split.validation, setting)
    for name, data in (("training", train), ("validation", validation)):
        if not len(data) or not data.both:
            raise ConfigError(
                "LABELS", f"no good or no bad tokens among the {name} labels", remedy="mine more"
            )
    mean, spread = train.x.mean(axis=0), np.maximum(train.x.std(axis=0), 1e-6)
    scaled = Table(
        (train.x - mean) / spread, train.good, train.mined, train.prompts, train.templates, train.measures
    )
    chosen = choose(scaled, setting)
    plain = fit_logistic(
        scaled.x,
        scaled.good,
        c=chosen.c,
        row_weight=np.where(scaled.good, 1.0, chosen.class_weight),
    )
    # The standardiser: w · (x - mean) / spread + b = (w / spread) · x + (b - w · mean / spread).
    weight = plain.weight / spread
    folded = Linear(weight, plain.bias - float(weight @ mean))
    a, b = platt(folded.logits(validation.x), validation.good)
    final = Linear(a * folded.weight, a * folded.bias + b)
    scores = sigmoid(final.logits(validation.x))
    delta = delta_for_recall(scores, validation.good, setting.recall)
    record = _record(validation, scores, delta, setting)
    record |= {
        "chosen_by": {"auc": _round(chosen.auc), "grid": dict(chosen.grid)},
        "platt": [a, b],
        "sizes": _sizes(train, validation, split.doubles),
        "templates": {"train": sorted(set(train.templates)), "validation": sorted(set(validation.templates))},
    }
    if setting.hold_out:
        record["held_out"] = _held_out(_mined(split.held_out, setting), final, delta, setting)
    return JudgeHead(
        weight=final.weight,
        bias=final.bias,
        delta=delta,
        target=target,
        feature=setting.feature,
        position=setting.position,
        validation_auc=float(record["auc"][0]),
        data_hash=data_hash,
        class_weight=chosen.class_weight,
        c=chosen.c,
        record=record,
    )


def choose(train: Table, setting: FitSetting) -> Chosen:
    """Class weight and C of the largest mean AUC on folds left out; the smaller ones win ties."""
    left_out = [mask for mask in folds(train, setting.num_folds, setting.seed) if _usable(train, mask)]
    grid: dict[str, float] = {}
    best = Chosen(setting.class_weights[0], setting.cs[0], math.nan)
    for weight in setting.class_weights:
        starts: list[Linear | None] = [None] * len(left_out)
        for c in setting.cs:
            found = []
            for number, mask in enumerate(left_out):
                fitted, test = train.only(~mask), train.only(mask & train.mined)
                row_weight = np.where(fitted.good, 1.0, weight)
                starts[number] = model = fit_logistic(
                    fitted.x, fitted.good, c=c, row_weight=row_weight, start=starts[number]
                )
                found.append(auc(model.logits(test.x), test.good))
            mean = float(np.mean(found)) if found else math.nan
            grid[f"w={weight:g} c={c:g}"] = _round(mean)
            if found and not mean <= best.auc:
                best = Chosen(weight, c, mean)
    return Chosen(best.class_weight, best.c, best.auc, grid)


def delta_for_recall(scores: NDArray[np.float64], good: NDArray[np.bool_], recall: float) -> float:
    """The smallest threshold that refuses (score < threshold) at least ``recall`` of the bad ones.

    The good ones kept at it are then as many as can be. Raises ValueError without bad ones.
    """
    bad = np.sort(scores[~good])[::-1]
    if not len(bad):
        raise ValueError("no bad tokens to calibrate on")
    may_pass = math.floor((1 - recall) * len(bad) + 1e-9)
    # Equal scores fall together: all ties of the first one that must be refused are refused.
    return float(np.nextafter(bad[may_pass], np.inf)) if may_pass < len(bad) else float(bad[-1])


BASELINES: dict[str, Any] = {
    "probability": lambda one: one.probability,
    "rank": lambda one: -one.rank,
    "entropy": lambda one: one.entropy,
    "kl": lambda one: -one.kl,
    "drafted": lambda one: one.drafted,
}
"""Evidence without a judge, larger meaning "keep"."""


def _mined(rows: Sequence[Row], setting: FitSetting) -> Table:
    found = table(rows, setting.feature, setting.position)
    return found.only(found.mined)


def _usable(train: Table, mask: NDArray[np.bool_]) -> bool:
    return train.only(~mask).both and train.only(mask & train.mined).both


def _record(
    validation: Table, scores: NDArray[np.float64], delta: float, setting: FitSetting
) -> dict[str, Any]:
    interval = auc_interval(scores, validation.good, validation.prompts, setting.seed)
    baselines = {
        name: _baseline(validation, measure, setting.seed).to_json() for name, measure in BASELINES.items()
    }
    return {
        "auc": interval.to_json(),
        "learned": learned(interval),
        "verdict": verdict(interval, {name: found[0] for name, found in baselines.items()}),
        "baselines": baselines,
        "recall_wanted": setting.recall,
        **_at_delta(scores, validation.good, delta),
        "brier": _round(float(np.mean((scores - validation.good) ** 2))),
    }


def _baseline(data: Table, measure: Any, seed: int) -> Interval:
    values = np.asarray([measure(one) for one in data.measures], np.float64)
    return auc_interval(values, data.good, data.prompts, seed)


def learned(interval: Interval) -> bool:
    """Whether the interval of the AUC lies above one half."""
    return interval.low > 0.5


def verdict(interval: Interval, baselines: Mapping[str, float | None]) -> str:
    """What the AUC means, in a sentence."""
    if interval.high < 0.5:
        return "learned nothing that holds: the AUC on unseen templates lies below one half"
    if not learned(interval):
        return "learned nothing: the interval of the AUC on unseen templates holds one half"
    better = [name for name, value in baselines.items() if value is not None and value >= interval.value]
    if better:
        return f"learned something, but no more than {', '.join(better)} knows without a judge"
    return "learned something that none of the baselines knows"


def _at_delta(scores: NDArray[np.float64], good: NDArray[np.bool_], delta: float) -> dict[str, Any]:
    kept = scores >= delta
    return {
        "recall_of_bad": wilson(int((~kept & ~good).sum()), int((~good).sum())).to_json(),
        "good_kept": wilson(int((kept & good).sum()), int(good.sum())).to_json(),
    }


def _held_out(data: Table, model: Linear, delta: float, setting: FitSetting) -> dict[str, Any]:
    found: dict[str, Any] = {
        "families": list(setting.hold_out),
        "adapted_on": setting.adapt,
        "labels": len(data),
    }
    if len(data):
        scores = sigmoid(model.logits(data.x))
        found["auc"] = auc_interval(scores, data.good, data.prompts, setting.seed).to_json()
        found |= _at_delta(scores, data.good, delta)
    return found


def _sizes(train: Table, validation: Table, doubles: int) -> dict[str, int]:
    return {
        "train_good": int(train.good.sum()),
        "train_bad": int((~train.good).sum()),
        "train_mined": int(train.mined.sum()),
        "train_prompts": len(set(train.prompts)),
        "validation_good": int(validation.good.sum()),
        "validation_bad": int((~validation.good).sum()),
        "validation_prompts": len(set(validation.prompts)),
        "doubles_left_out": doubles,
    }


def _round(value: float) -> float:
    return round(value, 4) if math.isfinite(value) else 0.0
