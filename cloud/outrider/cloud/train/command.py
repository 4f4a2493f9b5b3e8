"""What `outrider-cloud train` does: corpus, states, a fresh or resumed drafter, the loop, the final weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.cloud.export.bundle import stop_ids
from outrider.cloud.export.vocabulary import choose_vocabulary, required_ids
from outrider.cloud.fingerprint import weights_fingerprint
from outrider.cloud.kinds.base import Text, TrainableDrafter
from outrider.cloud.kinds.registry import find_kind
from outrider.cloud.kinds.settings import DrafterSettings
from outrider.cloud.kinds.target import TargetWeights, frozen_target
from outrider.cloud.kinds.weights import load_drafter, save_drafter
from outrider.cloud.train.calibrate import calibrate
from outrider.cloud.train.checkpoint import LOG_FILE, VALIDATION_FILE
from outrider.cloud.train.corpus import Example, hold_out, read_examples
from outrider.cloud.train.plan import TrainingPlan
from outrider.cloud.train.record import run_record
from outrider.cloud.train.states import CorpusStates, StateCache, StateShape
from outrider.cloud.train.trainer import Trainer
from outrider.cloud.train.validate import DrafterQuality, measure

Say = Callable[[str], None]
Tick = Callable[[float, str], None]
RUN_FILE = "run.json"
_SAMPLE = 16
"""Texts that statistics of a fresh drafter are taken from."""


class SettingsProblem(ValueError):
    """Settings of a drafter that cannot be."""


class CacheTooLarge(ValueError):
    """The target's states would take more room than was allowed."""


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
    """Folder of the run: checkpoints and logs. A run found there is resumed."""
    plan: TrainingPlan
    kind: str = "moa"
    """Name of a kind of drafter."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of the kind's settings that differ from its defaults."""
    cache: Path | None = None
    """Folder of cached target states, one folder in it per corpus file; None for one in the work folder."""
    cache_gib: float = 40.0
    """Largest size the caches may reach."""
    cache_layers: tuple[int, ...] = ()
    """Target layers whose K/V a new cache keeps besides what this drafter reads, for later runs of others."""
    cache_streams: tuple[int, ...] = ()
    """The same for residual streams."""
    vocabulary_size: int = 12_288
    """Draft vocabulary."""
    max_length: int = 640
    """Longest text, tokens."""
    held_out: int = 48
    """Greedy answers kept for validation."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts, their target states, and which of them are held out."""

    examples: list[Example]
    training: list[int]
    validation: list[int]
    states: CorpusStates


def train_drafter(request: TrainingRequest, say: Say = print, tick: Tick | None = None) -> DrafterQuality:
    """Train, fit the calibration, write weights, logs and run record; returns the quality on held-out answers.

    Raises ValueError if the corpus holds too little to train on, the settings cannot be, or the cache would
    grow beyond its budget.
    """
    files = [read_examples(path, request.max_length) for path in request.corpus]
    examples = [example for rows in files for example in rows]
    training, validation = hold_out(examples, request.held_out)
    if not training or not validation:
        raise ValueError(
            f"the corpus has {len(training)} texts to train on and {len(validation)} greedy ones to validate; "
            "at least one of each is needed"
        )
    drafter = fresh_drafter(
        request.target,
        [examples[row].answer_ids for row in training],
        kind=request.kind,
        vocabulary_size=request.vocabulary_size,
        seed=request.plan.seed,
        **request.settings,
    )
    states = open_states(request, files, drafter.settings, say)
    corpus = Corpus(examples, training, validation, states)
    target = LazyTarget(request.target)
    _prepare(drafter, corpus, target)
    weights = TargetWeights(request.target)
    frozen = frozen_target(drafter.settings, weights, drafter.settings.draft_vocabulary).to(torch.bfloat16)
    trainer = Trainer(
        request.work / "run", request.plan, drafter, frozen, states, examples, training, validation, target
    )
    resumed = trainer.resume()
    say(
        f"{request.kind}: {len(training)} texts, {_trained(drafter) / 1e6:.1f} M parameters, resumed: {resumed}"
    )
    trainer.run(say, tick)
    return _finish(request, trainer, weights, corpus, target, say)


def fresh_drafter(
    target: Path,
    answers: Iterable[NDArray[np.int32]],
    *,
    vocabulary_size: int,
    seed: int,
    kind: str = "moa",
    **settings: Any,
) -> TrainableDrafter:
    """A drafter initialised from a target folder, with the draft vocabulary of these answers.

    `settings` are fields that differ from the kind's defaults. The same seed gives the same weights.
    """
    torch.manual_seed(seed)
    entry = find_kind(kind)
    tokenizer = json.loads((target / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary, _ = choose_vocabulary(answers, required_ids(tokenizer, stop_ids(target)), vocabulary_size)
    try:
        shapes = entry.settings_for(target_config(target), **settings)
        drafter = entry.build(replace(shapes, draft_vocabulary=vocabulary))
    except ValueError as error:
        raise SettingsProblem(str(error)) from error
    entry.initialise(drafter, TargetWeights(target), seed)
    return drafter


def target_config(target: Path) -> Any:
    """The target's transformers config, from its folder alone."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(str(target), local_files_only=True)


def open_states(
    request: TrainingRequest, files: Sequence[Sequence[Example]], settings: DrafterSettings, say: Say
) -> CorpusStates:
    """The cache of every corpus file. Says how large they will be.

    Raises CacheTooLarge if that is more than allowed, ValueError if two files would share a folder.
    """
    config = target_config(request.target)
    folder = request.cache if request.cache is not None else request.work / "states"
    names = cache_names(request.corpus, request.max_length)
    # Without feature losses nothing reads the stream.
    stream = settings.stream_layer if request.plan.features != "off" else None
    extra = StateShape.of(config, request.cache_layers, request.cache_streams)
    tokens = sum(len(example) for rows in files for example in rows)
    wanted = StateShape.of(
        config,
        {*settings.needed_layers, *request.cache_layers},
        {stream, *request.cache_streams},
    )
    size = tokens * wanted.token_bytes / 2**30
    say(
        f"target states: {tokens / 1e6:.2f} M tokens of {wanted.token_bytes} bytes, {size:.2f} GiB in {folder}"
    )
    if size > request.cache_gib:
        raise CacheTooLarge(
            f"target states would take {size:.1f} GiB, more than the {request.cache_gib:g} allowed; "
            "shorten the corpus, read fewer layers, or allow more"
        )
    identity = weights_fingerprint(request.target).hex()
    caches = [
        StateCache(
            folder / name,
            rows,
            settings.needed_layers,
            stream,
            config,
            extra=extra,
            target=identity,
            source=path,
        )
        for name, path, rows in zip(names, request.corpus, files, strict=True)
    ]
    return CorpusStates(caches, [len(rows) for rows in files])


def cache_names(corpus: Sequence[Path], max_length: int) -> list[str]:
    """Folder of each corpus file's states: the file's name without its endings, and where texts were cut.

    Raises ValueError naming two files whose folder would be the same.
    """
    owners: dict[str, Path] = {}
    for path in corpus:
        name = f"{path.name.split('.')[0]}-{max_length}"
        if name in owners:
            raise ValueError(f"{owners[name]} and {path} would keep their states in one folder: rename one")
        owners[name] = path
    return list(owners)


class LazyTarget:
    """Loads the target on first use: a run whose states are all cached never needs it."""

    def __init__(self, folder: Path):
        self._folder, self._model = folder, None

    def __call__(self) -> Any:
        """The model, bfloat16, in inference mode."""
        if self._model is None:
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(
                str(self._folder), dtype=torch.bfloat16, use_safetensors=True, local_files_only=True
            )
            self._model = model.eval().requires_grad_(False)
        return self._model


def _prepare(drafter: TrainableDrafter, corpus: Corpus, target: LazyTarget) -> None:
    """Statistics of a fresh drafter, from some training texts without rows."""
    rows = corpus.training[:_SAMPLE]
    if missing := corpus.states.missing(rows):
        corpus.states.fill(missing, target())
    texts = []
    for row in rows:
        ids, states = torch.from_numpy(corpus.examples[row].ids).long(), corpus.states.get(row)
        texts.append(Text(ids, states.kv, 0, torch.zeros(len(ids), dtype=torch.long), states.final))
    drafter.prepare(texts)


def _finish(
    request: TrainingRequest,
    trainer: Trainer,
    weights: TargetWeights,
    corpus: Corpus,
    target: LazyTarget,
    say: Say,
) -> DrafterQuality:
    drafter = load_drafter(trainer.folder)
    frozen = drafter.merge(frozen_target(drafter.settings, weights, drafter.settings.draft_vocabulary))
    frozen = frozen.to(torch.bfloat16)
    if missing := corpus.states.missing(corpus.validation):
        corpus.states.fill(missing, target())
    found = measure(drafter, frozen, corpus.states, corpus.examples, corpus.validation)
    fitted = calibrate(drafter, frozen, weights.head(), corpus.states, corpus.examples, corpus.validation)
    save_drafter(drafter, fitted.apply(drafter.settings), request.out, torch.bfloat16, int8=True)
    for name in (LOG_FILE, VALIDATION_FILE):
        if (trainer.folder / name).exists():
            shutil.copyfile(trainer.folder / name, request.out / name)
    record = run_record(
        request, trainer.progress, drafter.settings, _trained(drafter), len(corpus.training), found
    )
    (request.out / RUN_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, quality in found.items():
        say(f"held-out answers, {name}: {quality.line()}")
    say(f"calibration: {fitted.line()}; weights in {request.out}")
    return found["all"]


def _trained(drafter: TrainableDrafter) -> int:
    return sum(parameter.numel() for parameter in drafter.parameters())
