"""What `outrider-cloud train moa` does: corpus, states, a fresh or resumed drafter, the loop, the final weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.cloud.export.bundle import stop_ids
from outrider.cloud.export.vocabulary import choose_vocabulary, required_ids
from outrider.cloud.kinds.base import Text
from outrider.cloud.kinds.target import TargetWeights, frozen_target
from outrider.cloud.moa.config import MoaSettings, settings_for_target
from outrider.cloud.moa.drafter import MoaDrafter
from outrider.cloud.moa.init import initialise
from outrider.cloud.moa.weights import load_drafter, save_drafter
from outrider.cloud.train.calibrate import calibrate
from outrider.cloud.train.corpus import Example, hold_out, read_examples
from outrider.cloud.train.states import StateCache
from outrider.cloud.train.trainer import Trainer, TrainingPlan
from outrider.cloud.train.validate import DrafterQuality, measure

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """Everything a run needs."""

    target: Path
    """Target folder."""
    corpus: Sequence[Path]
    """Files of `prompt_ids`/`answer_ids` rows; see `corpus.read_examples`."""
    out: Path
    """Folder of the finished weights."""
    work: Path
    """Folder of the run: checkpoints, log, cached states. A run found there is resumed."""
    plan: TrainingPlan
    vocabulary_size: int = 12_288
    """Draft vocabulary."""
    max_length: int = 640
    """Longest text, tokens."""
    held_out: int = 48
    """Greedy answers kept for validation."""


def train_moa(request: TrainingRequest, say: Say = print) -> DrafterQuality:
    """Train, fit the calibration, write the weights; returns the quality on the held-out answers.

    Raises ValueError if the corpus holds too little to train on.
    """
    examples = [row for path in request.corpus for row in read_examples(path, request.max_length)]
    training, validation = hold_out(examples, request.held_out)
    if len(training) < request.plan.batch_texts or not validation:
        raise ValueError(
            f"the corpus has {len(training)} texts to train on and {len(validation)} greedy ones to validate; "
            f"at least {request.plan.batch_texts} and 1 are needed"
        )
    config = target_config(request.target)
    drafter = fresh_drafter(
        request.target,
        [examples[row].answer_ids for row in training],
        vocabulary_size=request.vocabulary_size,
        seed=request.plan.seed,
    )
    settings = drafter.settings
    cache = StateCache(
        request.work / "states", examples, settings.needed_layers, settings.stream_layer, config
    )
    target = _Lazy(request.target)
    _standardise(drafter, cache, examples, training[:16], target)
    weights = TargetWeights(request.target)
    frozen = frozen_target(settings, weights, settings.draft_vocabulary).to(torch.bfloat16)
    run = request.work / "run"
    trainer = Trainer(run, request.plan, drafter, frozen, cache, examples, training, validation, target)
    say(f"{len(training)} texts, {_trained(drafter) / 1e6:.1f} M parameters, resumed: {trainer.resume()}")
    trainer.run(say)
    return _finish(request, run, weights, cache, examples, validation, target, say)


def fresh_drafter(
    target: Path, answers: Iterable[NDArray[np.int32]], *, vocabulary_size: int, seed: int, **shape: Any
) -> MoaDrafter:
    """A drafter initialised from a target folder, with the draft vocabulary of these answers.

    `shape` goes to `settings_for_target` (layers of LSA, SA, N, …).
    """
    torch.manual_seed(seed)
    tokenizer = json.loads((target / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary, _ = choose_vocabulary(answers, required_ids(tokenizer, stop_ids(target)), vocabulary_size)
    settings = settings_for_target(target_config(target), **shape)
    drafter = MoaDrafter(replace(settings, draft_vocabulary=vocabulary))
    initialise(drafter, TargetWeights(target), seed)
    return drafter


def target_config(target: Path) -> Any:
    """The target's transformers config, from its folder alone."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(str(target), local_files_only=True)


class _Lazy:
    """Loads the target on first use: a run whose states are all cached never needs it."""

    def __init__(self, folder: Path):
        self._folder, self._model = folder, None

    def __call__(self) -> Any:
        if self._model is None:
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(
                str(self._folder), dtype=torch.bfloat16, use_safetensors=True, local_files_only=True
            )
            self._model = model.eval().requires_grad_(False)
        return self._model


def _standardise(
    drafter: MoaDrafter, cache: StateCache, examples: Sequence[Example], rows: Sequence[int], target: _Lazy
) -> None:
    if missing := cache.missing(rows):
        cache.fill(missing, target())
    texts = []
    for row in rows:
        ids = torch.from_numpy(examples[row].ids).long()
        texts.append(Text(ids, cache.get(row).kv, 0, torch.zeros(len(ids), dtype=torch.long)))
    drafter.prepare(texts)


def _finish(
    request: TrainingRequest,
    run: Path,
    weights: TargetWeights,
    cache: StateCache,
    examples: Sequence[Example],
    validation: Sequence[int],
    target: _Lazy,
    say: Say,
) -> DrafterQuality:
    drafter = load_drafter(run)
    frozen = drafter.merge(frozen_target(drafter.settings, weights, drafter.settings.draft_vocabulary))
    frozen = frozen.to(torch.bfloat16)
    if missing := cache.missing(validation):
        cache.fill(missing, target())
    quality = measure(drafter, frozen, cache, examples, validation)
    calibration = calibrate(drafter, frozen, weights.head(), cache, examples, validation)
    settings: MoaSettings = calibration.apply(drafter.settings)
    save_drafter(drafter, settings, request.out, torch.bfloat16, int8=True)
    say(calibration.line())
    say(f"held-out answers: {quality.line()}; weights in {request.out}")
    return quality


def _trained(drafter: MoaDrafter) -> int:
    return sum(parameter.numel() for parameter in drafter.parameters())
