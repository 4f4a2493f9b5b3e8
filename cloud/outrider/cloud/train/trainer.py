"""The training loop: resumable to the step, budgeted in computing time or answer tokens.

Phases of a step: 1. pick texts of like length and cut them into blocks · 2. states from the cache (the target
runs only for texts it has not seen) · 3. the drafter's loss, backward · 4. optimisers at this moment's rate ·
5. now and then: log, validate, checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.cloud.kinds.base import FrozenTarget, Text, TrainableDrafter
from outrider.cloud.kinds.fast import forget
from outrider.cloud.kinds.settings import SETTINGS_FILE, WEIGHTS_FILE, DrafterSettings, load_settings
from outrider.cloud.train.blocks import draw_rows
from outrider.cloud.train.corpus import Example, distinct_fraction
from outrider.cloud.train.losses import Losses, Teachers
from outrider.cloud.train.optimiser import Optimisers
from outrider.cloud.train.order import batches
from outrider.cloud.train.plan import TrainingPlan
from outrider.cloud.train.states import TargetStates
from outrider.cloud.train.validate import DrafterQuality, columns, measure

PROGRESS_FILE = "progress.json"
OPTIMISER_FILE = "optimiser.safetensors"
LOG_FILE = "log.csv"
VALIDATION_FILE = "validation.csv"
_LOG_SECONDS = 30.0
LEAST_WEIGHT = 0.25
"""Weight of a text that is nothing but a loop; one without repetition has 1."""


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
        """Load the folder's checkpoint, if there is one. ValueError if it is another drafter's."""
        path = self.folder / PROGRESS_FILE
        if not path.exists():
            return False
        self._check_settings(load_settings(self.folder))
        self.progress = Progress(**json.loads(path.read_text(encoding="utf-8")))
        self.drafter.load_state_dict(load_file(self.folder / WEIGHTS_FILE))
        self._optimisers.load(load_file(self.folder / OPTIMISER_FILE))
        return True

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
            _append(path, names, [*head, name, *quality.cells()])
            say(f"validation step={p.step} tokens={p.answer_tokens} {name}: {quality.line()}")
        return found

    def checkpoint(self) -> None:
        """Write weights, settings, optimiser state and progress; each file appears whole."""
        longest = max(len(self._examples[row]) for row in self._training)
        settings = replace(self.drafter.settings, training_step=self.progress.step, trained_length=longest)
        _write_whole(self.folder / SETTINGS_FILE, settings.to_json() + "\n")
        _save_whole(dict(self.drafter.state_dict()), self.folder / WEIGHTS_FILE)
        _save_whole(self._optimisers.state(), self.folder / OPTIMISER_FILE)
        # Last: it is what says that there is a checkpoint.
        _write_whole(self.folder / PROGRESS_FILE, json.dumps(asdict(self.progress)))

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
        _append(self.folder / LOG_FILE, names, cells)
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


def _append(path: Path, names: Sequence[str], cells: Sequence[str]) -> None:
    fresh = not path.exists()
    with path.open("a", encoding="utf-8") as stream:
        if fresh:
            stream.write(",".join(names) + "\n")
        stream.write(",".join(cells) + "\n")


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _save_whole(tensors: dict[str, Tensor], path: Path) -> None:
    partial = path.with_name(path.name + ".partial")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial)
    partial.replace(path)
