"""The training loop: resumable to the step, budgeted in computing time or answer tokens.

Phases of a step: 1. pick texts of like length and cut them into blocks · 2. states from the cache (the target
runs only for texts it has not seen) · 3. the drafter's loss, backward · 4. optimisers at this moment's rate ·
5. now and then: log, validate, checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from outrider.cloud.kinds.base import FrozenTarget, Text, TrainableDrafter
from outrider.cloud.kinds.fast import forget
from outrider.cloud.kinds.settings import DrafterSettings
from outrider.cloud.train.blocks import draw_rows
from outrider.cloud.train.checkpoint import (
    LOG_FILE,
    VALIDATION_FILE,
    Checkpoint,
    append_row,
    drop_rows_after,
    other_dial,
    read_checkpoint,
    write_checkpoint,
)
from outrider.cloud.train.corpus import Example, corpus_fingerprint, distinct_fraction
from outrider.cloud.train.losses import Losses, Teachers
from outrider.cloud.train.optimiser import Optimisers
from outrider.cloud.train.order import batches
from outrider.cloud.train.plan import TrainingPlan
from outrider.cloud.train.states import TargetStates
from outrider.cloud.train.validate import DrafterQuality, columns, measure

_LOG_SECONDS = 30.0
LEAST_WEIGHT = 0.25
"""Weight of a text that is nothing but a loop; one without repetition has 1."""
_FREE_DIALS = ("minutes", "tokens", "validate_minutes", "checkpoint_minutes")
"""Dials that may differ in every part of a run: how long it is, and when it is looked at."""


class States(Protocol):
    """A cache of target states, of one corpus file or of several."""

    def missing(self, rows: Sequence[int]) -> list[int]:
        """Those of `rows` without states."""

    def get(self, row: int) -> TargetStates:
        """States of one text."""

    def fill(self, rows: Sequence[int], target: Any) -> None:
        """Compute what is missing."""


@dataclass(slots=True)
class Progress:
    """Where a run stands; everything that is random follows from `seed` and these numbers."""

    step: int = 0
    answer_tokens: int = 0
    elapsed_s: float = 0.0
    """CPU seconds of this process over its threads, without the target's."""
    turn: int = 0
    """Passes over the corpus begun before this one."""
    place: int = 0
    """Next batch of this pass."""


class Trainer:
    """One run in one folder: the newest weights, optimiser state, progress, logs."""

    def __init__(
        self,
        folder: Path,
        plan: TrainingPlan,
        drafter: TrainableDrafter,
        frozen: FrozenTarget,
        cache: States,
        examples: Sequence[Example],
        training: Sequence[int],
        validation: Sequence[int],
        target: Callable[[], Any],
    ):
        """`target` loads the target model, called only when the cache lacks a text. Corrects `frozen`."""
        drafter.correct(frozen)
        self.folder, self.plan, self.drafter, self.frozen = folder, plan, drafter, frozen
        self._cache, self._examples, self._target = cache, examples, target
        self._training, self._validation = list(training), list(validation)
        self.progress = Progress()
        self._optimisers = Optimisers(drafter, plan.muon_rate, plan.adam_rate)
        self._weight = {
            row: max(LEAST_WEIGHT, distinct_fraction(examples[row].answer_ids)) for row in training
        }
        self._order: tuple[int, list[list[int]]] = (-1, [])
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def share(self) -> float:
        """Share of the budget that is used up."""
        return self.plan.spent(self.progress.elapsed_s, self.progress.answer_tokens)

    def resume(self) -> bool:
        """Load the folder's checkpoint, if there is one, and take later rows out of the logs.

        Raises ValueError if the checkpoint is another drafter's, or of another plan or corpus (a checkpoint of a
        version that did not write these down is taken as it is), or a mixture of two.
        """
        found = read_checkpoint(self.folder)
        if found is not None:
            self._check_settings(found.settings)
            self._check_origin(found.progress)
            names = {each.name for each in fields(Progress)}
            self.progress = Progress(**{name: found.progress[name] for name in names & found.progress.keys()})
            self.drafter.load_state_dict(found.weights)
            self._optimisers.load(found.optimiser)
        drop_rows_after(self.folder, self.progress.step)
        return found is not None

    def run(
        self, say: Callable[[str], None] = print, tick: Callable[[float, str], None] | None = None
    ) -> None:
        """Train until the budget is used; checkpoints at the end and on the way.

        `tick` gets the share of the budget that is used up and a few words, after every step.
        """
        p = self.progress
        last_check = last_valid = last_log = p.elapsed_s
        tokens, sums = p.answer_tokens, Sums()
        while self.share < 1.0:
            sums.add(self.step())
            if tick is not None:
                tick(self.share, f"step {p.step}, {p.answer_tokens / 1e6:.2f} M tokens")
            if p.elapsed_s - last_log >= _LOG_SECONDS or self.share >= 1.0:
                rate = (p.answer_tokens - tokens) / max(1e-9, p.elapsed_s - last_log)
                self._log(sums, rate, say)
                last_log, tokens, sums = p.elapsed_s, p.answer_tokens, Sums()
            if p.elapsed_s - last_check >= self.plan.checkpoint_minutes * 60:
                self.checkpoint()
                last_check = p.elapsed_s
            if p.elapsed_s - last_valid >= self.plan.validate_minutes * 60:
                self.validate(say)
                last_valid = p.elapsed_s
        self.checkpoint()

    def step(self) -> Losses:
        """One optimiser step."""
        rows = self._pick()
        if missing := self._cache.missing(rows):
            self._cache.fill(missing, self._target())
        begun = time.process_time()
        losses = self._backward(rows)
        p = self.progress
        self._optimisers.step(self.plan.rate(p.step, self.share))
        forget()
        p.step += 1
        p.place += 1
        p.answer_tokens += sum(len(self._examples[row].answer_ids) for row in rows)
        p.elapsed_s += (time.process_time() - begun) / torch.get_num_threads()
        return losses

    def validate(self, say: Callable[[str], None] = print) -> dict[str, DrafterQuality]:
        """Measure on held-out texts; one row of the validation log per set of texts."""
        rows = self._validation[: self.plan.validation_texts]
        if missing := self._cache.missing(rows):
            self._cache.fill(missing, self._target())
        found = measure(self.drafter, self.frozen, self._cache, self._examples, rows)
        p = self.progress
        head = [str(p.step), f"{p.elapsed_s / 60:.2f}", str(p.answer_tokens)]
        path = self.folder / VALIDATION_FILE
        for name, quality in found.items():
            names = ["step", "minutes", "answer_tokens", "set", *columns(len(quality.acceptance))]
            append_row(path, names, [*head, name, *quality.cells()])
            say(f"validation step={p.step} tokens={p.answer_tokens} {name}: {quality.line()}")
        return found

    def checkpoint(self) -> None:
        """Write weights, settings, optimiser state and progress, all of them or none."""
        longest = max(len(self._examples[row]) for row in self._training)
        settings = replace(self.drafter.settings, training_step=self.progress.step, trained_length=longest)
        progress = {**asdict(self.progress), **self._origin}
        weights = dict(self.drafter.state_dict())
        write_checkpoint(self.folder, Checkpoint(settings, weights, self._optimisers.state(), progress))

    @cached_property
    def _origin(self) -> dict[str, Any]:
        """What every part of the run must have in common, as JSON values."""
        dials = {name: value for name, value in asdict(self.plan).items() if name not in _FREE_DIALS}
        # The texts trained on, in the order that batches are drawn from, then those measured on.
        texts = [self._examples[row] for row in (*self._training, *self._validation)]
        origin = {"plan": dials, "corpus": f"{len(self._training)} {corpus_fingerprint(texts)}"}
        return dict(json.loads(json.dumps(origin)))

    def _check_origin(self, found: Mapping[str, Any]) -> None:
        """A run goes on with the plan and the texts it began with: it equals an uninterrupted one."""
        if dial := other_dial(self._origin["plan"], found.get("plan", {})):
            raise ValueError(f"{self.folder} holds a run with {dial}; use another work folder")
        if found.get("corpus", self._origin["corpus"]) != self._origin["corpus"]:
            raise ValueError(f"{self.folder} holds a run on other texts; use another work folder")

    def _check_settings(self, found: DrafterSettings) -> None:
        """A run goes on with the shapes it began with."""
        if type(found) is not type(self.drafter.settings):
            raise ValueError(
                f"{self.folder} holds a run of a {found.kind!r} drafter; use another work folder"
            )
        mine, its = asdict(self.drafter.settings), asdict(found)
        progress = ("training_step", "trained_length")
        if other := [name for name in mine if mine[name] != its[name] and name not in progress]:
            raise ValueError(f"{self.folder} holds a run with another {other[0]}; use another work folder")

    def _pick(self) -> list[int]:
        p = self.progress
        while True:
            if self._order[0] != p.turn:
                lengths = [len(example) for example in self._examples]
                answers = [len(example.answer_ids) for example in self._examples]
                order = batches(
                    self._training, lengths, answers, self.plan.batch_tokens, self.plan.seed, p.turn
                )
                self._order = (p.turn, order)
            if p.place < len(self._order[1]):
                return self._order[1][p.place]
            p.turn, p.place = p.turn + 1, 0

    def _backward(self, rows: list[int]) -> Losses:
        p = self.progress
        generator = torch.Generator().manual_seed(self.plan.seed * 1_000_003 + p.step)
        texts, teachers = self._texts(rows, generator)
        self.drafter.begin_step(p.step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            options = self.plan.losses(p.step, self.share)
            losses = self.drafter.training_loss(texts, teachers, self.frozen, options)
        losses.total.backward()
        return losses

    def _texts(self, rows: list[int], generator: torch.Generator) -> tuple[list[Text], Teachers]:
        texts, streams, finals, weights = [], [], [], []
        limited = self.plan.staircase_share(self.share)
        for row in rows:
            example, states = self._examples[row], self._cache.get(row)
            prompt = len(example.prompt_ids)
            first, seen = draw_rows(prompt, len(example), self.plan.mix, generator)
            staircase = limited > 0 and float(torch.rand((), generator=generator)) < limited
            ids = torch.from_numpy(example.ids).long()
            texts.append(Text(ids, states.kv, first, seen, states.final, staircase))
            # Loss only where inference can be: not in the prompt, and not at the last token, behind which
            # there is nothing to draft.
            weight = torch.full((len(example) - first,), self._weight[row])
            weight[: prompt - first] = 0.0
            weight[-1] = 0.0
            weights.append(weight)
            finals.append(states.final[first:])
            if states.stream is not None:
                streams.append(states.stream[first:])
        weight = torch.cat(weights)
        return texts, Teachers(
            torch.cat(finals), weight / weight.sum(), torch.cat(streams) if streams else None
        )

    def _log(self, sums: Sums, rate: float, say: Callable[[str], None]) -> None:
        names = ["step", "minutes", "answer_tokens", "law", "feature", "agreement", "tokens_per_s"]
        law, feature, agreed = sums.means()
        p = self.progress
        cells = [str(p.step), f"{p.elapsed_s / 60:.2f}", str(p.answer_tokens)]
        cells += [f"{law:.4f}", f"{feature:.4f}", f"{agreed:.4f}", f"{rate:.0f}"]
        append_row(self.folder / LOG_FILE, names, cells)
        say(" ".join(f"{name}={cell}" for name, cell in zip(names, cells, strict=True)))


class Sums:
    """Running means of `Losses` between two log lines."""

    def __init__(self) -> None:
        self._all: list[tuple[float, float, float]] = []

    def add(self, losses: Losses) -> None:
        """Count one step."""
        self._all.append((float(losses.law), float(losses.feature), float(losses.agreed)))

    def means(self) -> tuple[float, float, float]:
        """(law, feature, agreement) means; zeros if nothing was added."""
        count = max(1, len(self._all))
        law, feature, agreed = (sum(values[i] for values in self._all) / count for i in range(3))
        return law, feature, agreed
